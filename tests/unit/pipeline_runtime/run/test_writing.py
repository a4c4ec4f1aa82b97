"""Runs that write a table: results, reports, refusals, and attempts that follow one another."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline_runtime import Pipeline, hashing
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import AlreadyComplete, ManifestError, OutputRefused
from pipeline_runtime.kernels import loading
from pipeline_runtime.report import load_summary
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Finished, Watcher, run_experiment

ROWS = pa.table(
    {
        "id": np.arange(1000),
        "x": np.arange(1000) / 1000,
        "day": pa.array(["a", "a", "b", "b"] * 250),
    }
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(ROWS, tmp_path / "in.parquet", row_group_size=100)
    return tmp_path


def run(
    root: Path, *, resume: bool = False, watcher: Watcher | None = None, **output: object
) -> Finished:
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "kept"},
        "spec": {
            "dataset": {"parquet": {"uri": "in.parquet"}, "rowKey": ["id"]},
            "pipelineOptions": {"rowsPerBlock": 100},  # ten chunks
            "pipeline": [{"filter": {"where": "id % 2 = 0"}}],
            "output": {"parquet": {"uri": "out/"}, **output},
        },
    }
    options = RunOptions(
        output=root / "report", folder_per_run=True, storage_root=str(root), resume=resume
    )
    return run_experiment(parse_experiment(document), yaml.safe_dump(document), options, watcher)


def ids(root: Path) -> list[int]:
    return sorted(Pipeline.read_parquet("out/").to_table(str(root))["id"].to_pylist())


def test_a_run_leaves_the_table_and_a_report(root: Path) -> None:
    finished = run(root, columns=["id"], partitionBy=["day"])
    assert finished.outcome.kind == "Complete"
    assert ids(root) == list(range(0, 1000, 2))
    summary = load_summary(finished.output)
    assert summary.output is not None
    assert (summary.output.rows, summary.output.files) == (500, 2)
    assert [step.rows_out for step in summary.steps] == [1000, 500]
    assert [phase.name for phase in summary.run.phases] == [
        *("imports", "plan", "spooling", "merging", "committing", "report")
    ]
    assert "Rows written" in (finished.output / "report.html").read_text()
    [folder] = (root / "experiments" / "kept").iterdir()
    assert (folder / "summary.json").exists()
    assert not (root / "_staging").exists()


def test_the_end_of_a_run_stops_the_loading_of_kernels(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_LOADER", loading._Loader())
    monkeypatch.setattr(loading, "MIN_ITEMS", 1)
    monkeypatch.setattr(loading, "_PAUSE_SECONDS", 1e9)
    stops = []
    monkeypatch.setattr(loading._Loader, "stop", lambda self: stops.append(self._wanted_since))
    run(root)
    [wanted_since] = stops
    assert wanted_since is not None


def test_an_existing_table_is_refused_or_replaced(root: Path) -> None:
    run(root)
    with pytest.raises(OutputRefused, match="Overwrite"):
        run(root)
    assert run(root, mode="Overwrite", columns=["id"]).outcome.kind == "Complete"
    assert Pipeline.read_parquet("out/").to_table(str(root)).column_names == ["id"]


def test_nothing_is_left_to_resume_once_it_is_complete(root: Path) -> None:
    run(root)
    with pytest.raises(AlreadyComplete):
        run(root, resume=True)


@pytest.mark.parametrize(
    ("output", "field"),
    [
        ({"columns": ["nothing"]}, "spec.output.columns"),
        ({"partitionBy": ["x"]}, "spec.output.partitionBy"),
        ({"columns": ["day"], "partitionBy": ["day"]}, "spec.output.partitionBy"),
        ({"parquet": {"uri": "."}}, "spec.output.parquet.uri"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(
    root: Path, output: dict[str, object], field: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        run(root, **output)
    assert [problem.path for problem in caught.value.problems] == [field]


def stop_after(count: int) -> Watcher:
    """Send SIGINT to this process after so many records."""
    seen = iter(range(1000))

    def on_reading(reading: object) -> None:
        if next(seen) == count:
            os.kill(os.getpid(), signal.SIGINT)

    return Watcher(on_reading=on_reading)


@pytest.mark.parametrize("count", [1, 4, 11])
def test_a_stopped_run_is_resumed_without_losing_rows(root: Path, count: int) -> None:
    stopped = run(root, watcher=stop_after(count))
    assert stopped.outcome.kind == "Interrupted"
    assert stopped.summary.run.outcome == "Interrupted"
    assert not (root / "out").exists()
    resumed = run(root, resume=True)
    assert resumed.outcome.kind == "Complete"
    assert resumed.summary.run.attempt == 2
    assert [step.rows_out for step in resumed.summary.steps] == [1000, 500]
    assert ids(root) == list(range(0, 1000, 2))


def test_a_failing_step_ends_the_run_with_its_rows(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "bad_steps.py").write_text("def explode(table):\n    1 / 0\n")
    monkeypatch.syspath_prepend(str(root))
    pipeline = Pipeline.read_parquet("in.parquet").map(
        "bad_steps:explode", output_columns={"y": "int64"}
    )
    failed = pipeline.write_parquet("out/", storage_root=str(root))
    assert failed.outcome.error_kind == "StepError"
    assert "in.parquet, row group 0" in (failed.outcome.error or "")
    assert not (root / "out").exists()


def test_a_refusal_in_a_reader_process_keeps_its_kind(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "long_names.py").write_text(
        "def lengthen(table):\n    return table.append_column('y', [['x' * 300] * len(table)])\n"
    )
    monkeypatch.syspath_prepend(str(root))
    pipeline = Pipeline.read_parquet("in.parquet").map(
        "long_names:lengthen", output_columns={"y": "string"}
    )
    refused = pipeline.write_parquet("out/", partition_by="y", storage_root=str(root))
    assert refused.outcome.error_kind == "OutputRefused"


def test_the_fluent_api_writes_what_it_shows(root: Path) -> None:
    pipeline = Pipeline.read_parquet("in.parquet").derive(y="id * 2").select("id", "y", "day")
    finished = pipeline.write_parquet(
        "out/", partition_by="day", compression="lz4", storage_root=str(root)
    )
    assert finished.outcome.kind == "Complete"
    written = Pipeline.read_parquet("out/").to_table(str(root)).sort_by("id")
    assert written.select(["id", "y", "day"]).equals(pipeline.to_table(str(root)))


def test_neither_ray_nor_torch_is_imported(root: Path) -> None:
    program = (
        "import sys; from pipeline_runtime import Pipeline;"
        "done = Pipeline.read_parquet('in.parquet').write_parquet('out/', storage_root='.');"
        "print(done.outcome.kind, *sorted({'ray', 'torch'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (ended.stderr, ended.stdout.split()) == ("", ["Complete"])


@pytest.fixture
def scrape() -> Callable[[int], str]:
    from urllib.request import urlopen

    def get(port: int) -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text: bytes = answer.read()
            return text.decode()

    return get


def test_a_step_in_python_runs_in_several_processes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os\n"
        "def note(table):\n"
        "    return table.append_column('pid', [[os.getpid()] * len(table)])\n"
    )
    (root / "noting_steps.py").write_text(code)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    pipeline = Pipeline.read_parquet("in.parquet").map(
        "noting_steps:note", output_columns={"pid": "int64"}
    )
    finished = pipeline.write_parquet("out/", storage_root=str(root))
    assert finished.outcome.kind == "Complete", finished.outcome.error
    written = Pipeline.read_parquet("out/").to_table(str(root)).sort_by("id")
    assert written.select(ROWS.column_names).equals(ROWS)
    assert os.getpid() not in written["pid"].to_pylist()


def test_the_checksum_is_that_of_the_rows(root: Path) -> None:
    checksum = run(root, partitionBy=["day"]).summary.checksum
    hashes = hashing.hash_columns([pa.chunked_array([pa.array(np.arange(0, 1000, 2))])], seed=0)
    assert checksum.rows == 500
    assert checksum.sum == f"{int(hashes.sum(dtype=np.uint64)):016x}"


def test_metrics_say_what_is_written(root: Path, scrape: Callable[[int], str]) -> None:
    ports: list[int] = []
    pages: list[str] = []
    watcher = Watcher(
        on_metrics_port=ports.append, on_reading=lambda _: pages.append(scrape(ports[0]))
    )
    run(root, watcher=watcher)
    assert "lastmile_output_rows 500.0" in pages[-1]
    assert "lastmile_output_files 1.0" in pages[-1]
    assert 'lastmile_step_output_rows_total{step="1-filter"} 500.0' in pages[-1]
    assert 'lastmile_output_phase{phase="Committed"} 1.0' in pages[-1]
    assert "lastmile_run_rows_total 500.0" in pages[-1]
    assert "lastmile_run_steps_total 10.0" in pages[-1]
    assert "lastmile_progress_ratio 1.0" in pages[-1]
