"""The operator reads what a driver tells about the table that it writes."""

from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from dataset_operator.observed import OUTPUT_PHASES, WrittenTable
from dataset_operator.ray.jobs import parse_table
from dataset_operator.ray.runtime_metrics import parse_progress
from pipeline_runtime.cli import main
from pipeline_runtime.output.job import Phase, Progress
from pipeline_runtime.run.writing.writing_metrics import WritingCollector

SPEC = {
    "dataset": {"parquet": {"uri": "in.parquet"}},
    "output": {"parquet": {"uri": "out/"}, "partitionBy": ["day"]},
}


@pytest.mark.parametrize("phase", get_args(Phase))
def test_the_metrics_of_each_phase_are_read(phase: Phase) -> None:
    collector = WritingCollector([(0, "read")], planned_rows=1000)
    registry = CollectorRegistry()
    registry.register(collector)
    collector.update(
        Progress(phase=phase, rows=700, resumed_rows=200, files=3, num_bytes=2**53 - 1)
    )
    progress = parse_progress(generate_latest(registry).decode())
    assert progress is not None
    assert progress.table == WrittenTable(phase=phase, rows=700, files=3, num_bytes=2**53 - 1)
    assert progress.table.phase in OUTPUT_PHASES
    assert progress.counters.trainer is not None


@pytest.mark.parametrize("as_json", [False, True])
def test_the_end_of_a_log_names_the_table(
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": range(5), "day": list("aabbb")}), "in.parquet")
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "kept"},
        "spec": SPEC,
    }
    Path("kept.yaml").write_text(yaml.safe_dump(document))
    for resume in (False, True):  # the second attempt finds the run complete
        options = [*["--json"] * as_json, *["--resume"] * resume, "--metrics-port", "0"]
        command = ["lastmile", "run", "-f", "kept.yaml", "--storage-root", str(tmp_path)]
        monkeypatch.setattr("sys.argv", [*command, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        log = "".join(capfd.readouterr())
        files = list(Path("out").rglob("*.parquet"))
        size = sum(file.stat().st_size for file in files)
        assert parse_table(log.encode()) == WrittenTable(rows=5, files=2, num_bytes=size)
