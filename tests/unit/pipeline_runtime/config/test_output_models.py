"""The settings of `output`, and what may not stand beside it."""

from typing import Any

import pytest

from pipeline_runtime.config import parse_experiment, run_config, run_hash
from pipeline_runtime.errors import ManifestError

PLAIN = {"dataset": {"parquet": {"uri": "in/"}}}
OUTPUT = {"parquet": {"uri": "out/"}}


def parse(**spec: Any) -> Any:
    return parse_experiment(
        {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": "first"},
            "spec": PLAIN | spec,
        }
    )


@pytest.mark.parametrize(
    ("other", "value", "path"),
    [
        ("training", {}, "spec.output"),
        ("trainers", {}, "spec.trainers"),
        ("autoscaling", {"signal": "GpuUtilization"}, "spec.autoscaling.signal"),
    ],
)
def test_output_comes_without_training(other: str, value: dict[str, Any], path: str) -> None:
    parse(**{other: value})
    with pytest.raises(ManifestError) as caught:
        parse(output=OUTPUT, **{other: value})
    assert [problem.path for problem in caught.value.problems] == [path]
    assert other in str(caught.value)


def test_output_has_no_trainers_and_no_gpus() -> None:
    trains, writes = parse().spec, parse(output=OUTPUT).spec
    assert (trains.num_trainers, trains.num_gpus) == (1, 1)
    assert (writes.num_trainers, writes.num_gpus) == (0, 0)


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"mode": "Append", **OUTPUT},
        {"layout": "KeyAndScore", "columns": ["x"], **OUTPUT},
        {"partitionBy": ["day", "day"], **OUTPUT},
        {"parquet": {"uri": "s3://key:secret@bucket/out/"}},
        {"parquet": {"uri": "out/", "targetFileSizeBytes": 1}},
        {"parquet": {"uri": "out/", "compression": "brotli"}},
    ],
)
def test_an_invalid_output_is_refused(output: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        parse(output=output)


def test_a_manifest_without_output_keeps_its_hash() -> None:
    assert "output" not in run_config(parse())


def test_the_mode_makes_no_other_run() -> None:
    plain = run_hash(parse(output=OUTPUT))
    assert run_hash(parse(output={"mode": "Overwrite", **OUTPUT})) == plain
    assert run_hash(parse(output={"partitionBy": ["day"], **OUTPUT})) != plain
