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


@pytest.mark.parametrize("other", ["training", "trainers"])
def test_output_comes_without_training(other: str) -> None:
    parse(**{other: {}})
    with pytest.raises(ManifestError) as caught:
        parse(output=OUTPUT, **{other: {}})
    assert other in str(caught.value)


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"mode": "Append", **OUTPUT},
        {"layout": "KeyAndScore", **OUTPUT},
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
