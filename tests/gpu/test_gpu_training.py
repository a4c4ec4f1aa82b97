"""The same manifest on a GPU: the device is CUDA, mixed precision runs, the rows are the same."""

from pathlib import Path
from typing import Any

import pytest

from pipeline_runtime.config import load_manifests
from pipeline_runtime.sample_data import SampleDataOptions, write_sample_data

SAMPLE = Path(__file__).parents[2] / "deploy" / "samples" / "quickstart.yaml"


def run(folder: Path, name: str, *overrides: str) -> Any:
    from pipeline_runtime.run.options import RunOptions
    from pipeline_runtime.run.session import run_experiment

    changes = ["training.batchSize=512", *overrides]
    manifest = load_manifests(SAMPLE, overrides=changes)[0]
    options = RunOptions(output=folder / name, storage_root=f"{folder}/")
    finished = run_experiment(manifest.experiment, manifest.text, options)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    return finished.summary


@pytest.mark.timeout(600)
def test_a_run_uses_the_gpu_and_trains_on_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("ray")  # a machine that is lent for its GPU may have none
    write_sample_data(tmp_path / "data", SampleDataOptions(rows=20_000))
    on_gpu = run(tmp_path, "gpu")
    assert on_gpu.training.device.startswith("cuda")
    half = run(tmp_path, "half", "training.precision=float16")
    on_cpu = run(tmp_path, "cpu", "trainers.gpusPerReplica=0")
    assert on_gpu.checksum == half.checksum == on_cpu.checksum
    assert on_gpu.training.metrics["eval_auc"] == pytest.approx(
        on_cpu.training.metrics["eval_auc"], abs=0.05
    )
