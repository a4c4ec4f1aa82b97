"""The files of a run that is killed before its report."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Watcher, run_experiment

MANIFEST = "kind: DatasetExperiment  # as it was given\n"


class KilledError(Exception):
    """In the place of a SIGKILL as the run is about to start Ray."""


def run_until_killed(root: Path) -> None:
    (root / "t").mkdir()
    pq.write_table(pa.table({"score": [1.0], "clicked": [0.0]}), root / "t/a.parquet")
    experiment = Pipeline.read_parquet("t/").experiment("clicks", batchSize=1)
    options = RunOptions(output=root / "out", storage_root=str(root))

    def die(_: int) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        run_experiment(experiment, MANIFEST, options, Watcher(on_metrics_port=die))


def test_plan_and_manifest_outlive_a_run_that_is_killed_as_it_starts(tmp_path: Path) -> None:
    run_until_killed(tmp_path)

    [folder] = (tmp_path / "experiments/clicks").iterdir()
    for place in (folder, tmp_path / "out"):
        names = {path.name for path in place.iterdir()}
        assert names == {"run.json", "plan.json", "manifest.yaml"}
        assert (place / "manifest.yaml").read_text() == MANIFEST
        plan = json.loads((place / "plan.json").read_text())
        assert [stage["name"] for stage in plan["stages"]]


def test_a_store_that_refuses_the_plan_does_not_keep_the_run_from_starting(tmp_path: Path) -> None:
    (tmp_path / "experiments").write_text("no folder")
    run_until_killed(tmp_path)
