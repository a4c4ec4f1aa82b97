"""The benchmark of loaders runs: they agree on every row, and the results are as documented."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dataloading.options import QUICK_PEERS, QUICK_ROWS
from benchmarks.dataloading.peers import COMPARED, FLOORS, LOADERS, ROOFLINE, SUBJECT, UNABLE
from benchmarks.dataloading.workloads import FORMS

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600  # less than a minute on idle cores, half of it Ray
LOADERS_RUN = [SUBJECT, *(name for name in COMPARED if name in QUICK_PEERS)]
INSTALLED = [name for name in LOADERS_RUN if LOADERS[name].is_installed]
CELLS = {
    (name, layout, form) for name in [*INSTALLED, *FLOORS] for layout, form in LOADERS[name].cells
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the benchmark once, on data of its own."""
    folder = tmp_path_factory.mktemp("benchmark")
    options = ["--quick", "--data", str(folder / "data"), "--output", str(folder / "results")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dataloading", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "results"


@pytest.fixture(scope="module")
def document(results: Path) -> dict[str, Any]:
    """Its JSON."""
    parsed: dict[str, Any] = json.loads((results / "dataloading.json").read_text())
    return parsed


def test_lastmile_is_compared_with_every_peer_on_both_layouts(document: dict[str, Any]) -> None:
    assert (document["version"], document["quick"]) == (4, True)
    assert (document["rows"], document["rounds"]) == (QUICK_ROWS, 1)
    found = {(row["layout"], row["peer"].split(" (")[0]) for row in document["comparisons"]}
    peers = {*INSTALLED, *FLOORS} - {SUBJECT}
    assert found == {(layout, peer) for layout in ("flat", "nested") for peer in peers}


def test_a_comparison_has_the_documented_shape(document: dict[str, Any]) -> None:
    for row in document["comparisons"]:
        assert (row["subject"], row["work"]) == ("lastmile", "heavy")
        assert row["form"] in FORMS
        assert row["ratio_median"] > 0
        assert (row["ratio_low"], row["ratio_high"]) == (None, None)  # a single round tells nothing
        assert row["equal_rows"] is True
        assert "peak_memory_bytes" in row


def test_every_loader_is_measured(document: dict[str, Any]) -> None:
    taken = of_consumer(document, "take")
    assert {(row["loader"], row["layout"], row["form"]) for row in taken} == CELLS
    assert {row["loader"] for row in of_consumer(document, "train")} == {SUBJECT, ROOFLINE}
    for row in [*document["throughput"], *document["ablation"]]:
        assert row["rowsIn"] == QUICK_ROWS
        assert row["rowsPerSecond"]["min"] <= row["rowsPerSecond"]["max"]


def test_the_start_of_a_process_and_of_an_epoch_is_measured(document: dict[str, Any]) -> None:
    for row in of_consumer(document, "take"):
        if row["loader"] == SUBJECT:
            assert row["coldFirstBatchSeconds"]["median"] > 0
            assert row["nextFirstBatchSeconds"]["median"] > 0


def test_all_loaders_deliver_the_same_rows_and_contents(document: dict[str, Any]) -> None:
    proof = document["proof"]["heavy"]
    wanted = [f"{n} ({layout}, {form})" for n, layout, form in CELLS if n not in FLOORS]
    assert sorted(proof["agreed"]) == sorted(wanted)
    assert {"cat_00", "user_sequence", "label", "sample_weight"} <= set(proof["checksums"])
    for row in of_consumer(document, "take"):
        assert row["rowsOut"] == (QUICK_ROWS if row["loader"] in FLOORS else proof["rows"])


def test_who_is_left_out_is_named_with_why(document: dict[str, Any]) -> None:
    assert set(document["absent"]) == {*COMPARED, *UNABLE} - set(INSTALLED)
    assert all(document["absent"].values())


def test_no_host_name_is_written(results: Path) -> None:
    name = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    for path in results.iterdir():
        assert name.strip() not in path.read_text()


def test_a_table_and_a_picture_are_written_beside_the_figures(results: Path) -> None:
    text = (results / "dataloading.md").read_text()
    assert "**Indicative" in text
    assert "| heavy | lastmile | flat, expanded |" in text
    assert "| heavy | ≥ 0.9 × |" in text
    assert "<svg" in (results / "dataloading.svg").read_text()


def of_consumer(document: dict[str, Any], consumer: str) -> list[dict[str, Any]]:
    return [row for row in document["throughput"] if row["consumer"] == consumer]
