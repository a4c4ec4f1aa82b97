"""The benchmark of loaders: it runs, its loaders agree, and one that does not is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.dataloading.checksums import check_agreement, proof_of, totals_of
from benchmarks.dataloading.epochs import Epoch, Job
from benchmarks.dataloading.errors import DisagreementError
from benchmarks.dataloading.hosts import LOADERS
from benchmarks.dataloading.schedule import Settings, Table, run_schedule
from benchmarks.dataloading.torch_loader import cut
from benchmarks.dataloading.workloads import LEVELS
from pipeline_runtime.batches import Batch

ROOT = Path(__file__).parents[2]
QUICK_ROWS = 20_000
TIMEOUT_SECONDS = 900  # under a minute on idle cores; most of it is Ray starting processes

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the benchmark once, on data of its own."""
    folder = tmp_path_factory.mktemp("benchmark")
    options = ["--quick", "--data", str(folder / "data"), "--output", str(folder / "results")]
    command = [sys.executable, "-m", "benchmarks.dataloading", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "results"


@pytest.fixture(scope="module")
def document(results: Path) -> dict[str, Any]:
    """Its JSON."""
    parsed: dict[str, Any] = json.loads((results / "dataloading.json").read_text())
    return parsed


def test_every_loader_is_measured_at_every_level(document: dict[str, Any]) -> None:
    found = {(row["level"], row["loader"]) for row in of_consumer(document, "touch")}
    assert found == {(level, loader) for level in LEVELS for loader in LOADERS}
    assert {row["loader"] for row in of_consumer(document, "train")} == set(LOADERS)


def test_figures_have_the_documented_shape(document: dict[str, Any]) -> None:
    assert (document["version"], document["quick"]) == (1, True)
    for row in [*document["throughput"], *document["ablation"]]:
        assert row["rowsIn"] == QUICK_ROWS
        assert len(row["seconds"]) == 1
        for name in ("rowsPerSecond", "steadyRowsPerSecond", "firstBatchSeconds", "ratio"):
            spread = row[name]
            assert set(spread) == {"median", "min", "max"}
            assert spread["min"] <= spread["max"]


def test_all_loaders_deliver_the_same_rows_and_contents(document: dict[str, Any]) -> None:
    assert set(document["proof"]) == set(LEVELS)
    for proof in document["proof"].values():
        assert proof["agreed"] == list(LOADERS)
    assert {"cat_00", "user_sequence", "label", "sample_weight"} <= set(
        document["proof"]["heavy"]["checksums"]
    )
    for level in LEVELS:
        delivered = {r["rowsOut"] for r in document["throughput"] if r["level"] == level}
        assert delivered == {document["proof"][level]["rows"]}


def test_the_best_dataloader_is_what_ratios_stand_against(document: dict[str, Any]) -> None:
    best = [row for row in document["throughput"] if row.get("isBestDataloader")]
    assert [row["ratio"] for row in best] == [{"median": 1.0, "min": 1.0, "max": 1.0}] * len(best)


def test_no_host_name_is_written(results: Path) -> None:
    name = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    for path in results.iterdir():
        assert name.strip() not in path.read_text()


def test_a_table_and_a_picture_are_written_beside_the_figures(results: Path) -> None:
    assert "| heavy | lastmile |" in (results / "dataloading.md").read_text()
    assert "<svg" in (results / "dataloading.svg").read_text()


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


class CorruptHost:
    """Measures nothing, and loses a row in one loader."""

    def __init__(self, loader: str) -> None:
        self._loader = loader

    def run(self, job: Job) -> Epoch:
        rows = 3 if job.loader == self._loader else 4
        return Epoch(
            job=job,
            seconds=1.0,
            first_batch_seconds=0.1,
            first_batch_rows=rows,
            batches=1,
            num_bytes=1,
            cpu_seconds=None,
            sums={"rows": rows},
            profile={},
        )


def make_settings() -> Settings:
    table = Table(root="nowhere", rows=4)
    return Settings(
        table=table,
        small=table,
        repeats=1,
        tuning_repeats=1,
        worker_counts=(0,),
        train_levels=("heavy",),
        ablations=("all on",),
        quick=True,
    )


@pytest.mark.parametrize("loader", [name for name in LOADERS if name != "dataloader"])
def test_a_benchmark_with_a_loader_that_loses_rows_is_refused(loader: str) -> None:
    host = CorruptHost(loader)
    with pytest.raises(DisagreementError, match=rf"{loader} differs .* 'rows' \(4, got 3\)"):
        run_schedule(make_settings(), {"plain": host, "ray": host})


def test_batches_are_cut_to_size_whatever_the_pieces() -> None:
    pieces = [{"row_weight": torch.ones(rows)} for rows in (0, 4000, 97, 0, 8192, 3)]
    assert [len(batch["row_weight"]) for batch in cut(pieces)] == [4096, 4096, 4096, 4]


def test_a_dataloader_that_is_faster_in_the_median_is_chosen() -> None:
    from benchmarks.dataloading.schedule import best_workers

    host = CorruptHost("none")
    base = host.run(Job(loader="dataloader", workload=None, consumer="touch"))  # type: ignore[arg-type]
    epochs = [
        replace(base, job=replace(base.job, num_workers=workers), seconds=seconds)
        for workers, seconds in [(0, 3.0), (2, 1.0), (2, 9.0), (2, 1.5), (1, 2.0)]
    ]
    assert best_workers(epochs, "dataloader") == 2
