"""The benchmark of loaders: it runs, its loaders agree, and one that does not is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.dataloading.checksums import check_agreement, proof_of, totals_of
from benchmarks.dataloading.errors import DisagreementError
from benchmarks.dataloading.peers import COMPARED, FLOORS, LOADERS, SUBJECT, TRAINED, UNABLE
from benchmarks.dataloading.pieces import cut
from benchmarks.dataloading.workloads import LEVELS
from pipeline_runtime.batches import Batch

ROOT = Path(__file__).parents[2]
QUICK_ROWS = 20_000
TIMEOUT_SECONDS = 900  # a minute on idle cores; most of it is Ray starting processes
INSTALLED = [name for name in COMPARED if LOADERS[name].is_installed]

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the benchmark once, on data of its own."""
    folder = tmp_path_factory.mktemp("benchmark")
    options = ["--quick", "--data", str(folder / "data"), "--output", str(folder / "results")]
    done = run_benchmark(*options)
    assert done.returncode == 0, done.stderr
    return folder / "results"


def run_benchmark(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.dataloading", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


@pytest.fixture(scope="module")
def document(results: Path) -> dict[str, Any]:
    """Its JSON."""
    parsed: dict[str, Any] = json.loads((results / "dataloading.json").read_text())
    return parsed


def test_lastmile_is_compared_with_every_peer_at_every_level(document: dict[str, Any]) -> None:
    assert (document["version"], document["quick"]) == (2, True)
    assert (document["rows"], document["rounds"]) == (QUICK_ROWS, 1)
    peers = {*INSTALLED, *FLOORS} - {SUBJECT}
    found = {(row["work"], row["peer"]) for row in document["comparisons"]}
    assert found == {(level, peer) for level in LEVELS for peer in peers}


def test_a_comparison_has_the_documented_shape(document: dict[str, Any]) -> None:
    for row in document["comparisons"]:
        assert (row["subject"], row["layout"], row["form"]) == ("lastmile", "flat", "expanded")
        assert row["ratio_median"] > 0
        assert (row["ratio_low"], row["ratio_high"]) == (None, None)  # a single round tells nothing
        assert row["equal_rows"] is True
        assert "peak_memory_bytes" in row


def test_every_loader_is_measured_at_every_level(document: dict[str, Any]) -> None:
    found = {(row["level"], row["loader"]) for row in of_consumer(document, "take")}
    assert found == {(level, name) for level in LEVELS for name in [*INSTALLED, *FLOORS]}
    assert {row["loader"] for row in of_consumer(document, "train")} == set(TRAINED)
    for row in [*document["throughput"], *document["ablation"]]:
        assert row["rowsIn"] == QUICK_ROWS
        assert row["rowsPerSecond"]["min"] <= row["rowsPerSecond"]["max"]


def test_a_fresh_process_tells_when_its_first_batch_came(document: dict[str, Any]) -> None:
    rows = {(row["level"], row["loader"]): row for row in of_consumer(document, "take")}
    assert rows["heavy", SUBJECT]["coldFirstBatchSeconds"]["median"] > 0
    assert rows["heavy", "dataloader"]["coldFirstBatchSeconds"] is None  # a quick run asks for one
    for level in LEVELS:
        assert rows[level, SUBJECT]["nextFirstBatchSeconds"]["median"] > 0


def test_all_loaders_deliver_the_same_rows_and_contents(document: dict[str, Any]) -> None:
    assert set(document["proof"]) == set(LEVELS)
    for proof in document["proof"].values():
        assert proof["agreed"] == [f"{name} (flat, expanded)" for name in INSTALLED]
    assert {"cat_00", "user_sequence", "label", "sample_weight"} <= set(
        document["proof"]["heavy"]["checksums"]
    )
    for row in of_consumer(document, "take"):
        decodes = row["loader"] in FLOORS
        wanted = QUICK_ROWS if decodes else document["proof"][row["level"]]["rows"]
        assert row["rowsOut"] == wanted


def test_who_is_left_out_is_named_with_why(document: dict[str, Any]) -> None:
    assert set(document["absent"]) == {*COMPARED, *UNABLE} - set(INSTALLED)
    for name, reason in document["absent"].items():
        assert name in UNABLE or reason.startswith("not installed: pip install ")


def test_no_host_name_is_written(results: Path) -> None:
    name = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    for path in results.iterdir():
        assert name.strip() not in path.read_text()


def test_a_table_and_a_picture_are_written_beside_the_figures(results: Path) -> None:
    text = (results / "dataloading.md").read_text()
    assert "| heavy | lastmile | flat, expanded |" in text
    assert "| flat files, share of the decode floor | heavy | ≥ 0.9 × |" in text
    assert "<svg" in (results / "dataloading.svg").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--peers", "spark"], "--peers: must be among dataloader", id="unknown"),
        pytest.param(["--peers", "tf.data"], "TensorFlow has no reader of Parquet", id="unable"),
        pytest.param(["--layouts", "nested"], "must have a cell that Lastmile", id="no such cell"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused(options: list[str], message: str) -> None:
    done = run_benchmark("--quick", *options)
    assert done.returncode == 1
    assert message in done.stderr


def of_consumer(document: dict[str, Any], consumer: str) -> list[dict[str, Any]]:
    return [row for row in document["throughput"] if row["consumer"] == consumer]


# --- the comparison alone -------------------------------------------------------------------------


def make_batch() -> Batch:
    """Four rows with a number, a fixed-size list and a ragged one."""
    return {
        "request_id": torch.tensor([1, 1, 2, 2]),
        "position": torch.tensor([0, 1, 0, 1], dtype=torch.int8),
        "dense": torch.tensor([0.5, float("nan"), 2.0, -1.0]),
        "padded": torch.tensor([[1, 2], [3, 0], [4, 5], [0, 0]]),
        "ragged.values": torch.tensor([7, 8, 9]),
        "ragged.offsets": torch.tensor([0, 2, 2, 3, 3]),
        "row_weight": torch.ones(4),
    }


def with_column(name: str, values: list[Any]) -> Batch:
    batch = make_batch()
    return {**batch, name: torch.tensor(values, dtype=batch[name].dtype)}


def reversed_rows() -> Batch:
    batch = {n: t.flip(0) for n, t in make_batch().items() if not n.startswith("ragged")}
    ragged = {
        "ragged.values": torch.tensor([9, 7, 8]),
        "ragged.offsets": torch.tensor([0, 0, 1, 1, 3]),
    }
    return batch | ragged


def test_checksums_do_not_depend_on_the_order_of_rows() -> None:
    for sums_of in (totals_of, proof_of):
        check_agreement("test", {"one": sums_of(make_batch()), "other": sums_of(reversed_rows())})


@pytest.mark.parametrize(
    ("batch", "column"),
    [
        pytest.param(with_column("dense", [0.5, 0.0, 2.0, -1.0]), "dense", id="a lost null"),
        pytest.param(
            with_column("dense", [2.0, float("nan"), 0.5, -1.0]), "dense", id="two values swapped"
        ),
        pytest.param(
            with_column("padded", [[2, 1], [3, 0], [4, 5], [0, 0]]),
            "padded",
            id="items of a list in another order",
        ),
        pytest.param(
            with_column("ragged.offsets", [0, 1, 2, 3, 3]), "ragged", id="an item in another list"
        ),
        pytest.param(
            with_column("request_id", [1, 1, 2, 3]), "identities", id="another row's identity"
        ),
    ],
)
def test_a_corrupted_batch_is_refused_by_the_column_that_differs(batch: Batch, column: str) -> None:
    good = proof_of(make_batch())
    with pytest.raises(DisagreementError, match=rf"bad differs from good in .*'{column}'"):
        check_agreement("heavy work", {"good": good, "bad": proof_of(batch)})


def test_batches_are_cut_to_size_whatever_the_pieces() -> None:
    pieces = [{"row_weight": torch.ones(rows)} for rows in (0, 4000, 97, 0, 8192, 3)]
    assert [len(batch["row_weight"]) for batch in cut(pieces)] == [4096, 4096, 4096, 4]
