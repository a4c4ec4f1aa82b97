"""The run's identity changes with what is trained, and with nothing else."""

import copy
import json
from typing import Any

import pytest

from pipeline_runtime.config import (
    apply_overrides,
    diff_configs,
    hash_parts,
    parse_experiment,
    run_config,
    run_hash,
)

DOCUMENT: dict[str, Any] = {
    "apiVersion": "experiments.lastmile.dev/v1alpha1",
    "kind": "DatasetExperiment",
    "metadata": {"name": "first"},
    "spec": {
        "dataset": {"parquet": {"uri": "impressions/"}},
        "pipeline": [
            {"antiJoin": {"parquet": {"uri": "spam/"}, "on": ["user_id"]}},
            {"downsample": {"keepPercent": 10, "seed": 17}},
            {"map": {"function": "team.steps:embed", "options": {"size": 8}}},
        ],
        "training": {"batchSize": 4096, "config": {"learningRate": 0.001}},
    },
}


def hash_with(*overrides: str) -> str:
    return run_hash(parse_experiment(apply_overrides(DOCUMENT, overrides)))


SAME = [
    "metadata.name=second",
    "suspend=true",
    "backoffLimit=7",
    "activeDeadlineSeconds=60",
    "updatePolicy=Restart",
    "trainers.gpusPerReplica=4",
    "dataWorkers.maxReplicas=9",
    "head.resources.requests.cpu=2",
    "autoscaling.targetGpuUtilizationPercent=80",
    "env=[{name: A, value: b}]",
    "storage.root=s3://bucket/",
    "artifacts.uri=elsewhere/",
    "training.checkpoint.everySteps=5",
    "pipelineOptions.fusion=false",
    "pipelineOptions.kernels=false",
    "pipelineOptions.pushdown=false",
    "pipelineOptions.feed=rayData",
    "pipeline[0].antiJoin.maxBytes=1000",
    "pipeline[2].map.concurrency=3",
    "pipeline[2].map.resources.cpu=2",
    "training.epochs=1",  # the default, said
]
OTHER = [
    "dataset.where=day = 3",
    "dataset.parquet.uri=other/",
    "pipeline[1].downsample.seed=18",
    "pipeline[2].map.options.size=9",
    "pipelineOptions.preserveOrder=true",
    "pipelineOptions.rowsPerBlock=1000",
    "training.batchSize=256",
    "training.epochs=2",
    "training.seed=1",
    "training.config.learningRate=0.01",
    "training.evaluation.holdoutPercent=5",
    "code.workingDir=s3://code/a.zip",
    "code.pip=[numpy]",
    "image=registry/runtime:2",
]


@pytest.mark.parametrize("override", SAME)
def test_the_run_stays_the_same_with(override: str) -> None:
    assert hash_with(override) == hash_with()


@pytest.mark.parametrize("override", OTHER)
def test_another_run_begins_with(override: str) -> None:
    assert hash_with(override) != hash_with()


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("dataset.where=day = 3", {"dataset"}),
        ("pipeline[1].downsample.keepPercent=20", {"pipeline"}),
        ("training.batchSize=256", {"training"}),
        ("training.epochs=2", set()),  # how often a row is read changes no rate
        ("trainers.replicas=2", set()),
    ],
)
def test_a_part_has_another_hash_with(override: str, changed: set[str]) -> None:
    before = hash_parts(parse_experiment(DOCUMENT))
    after = hash_parts(parse_experiment(apply_overrides(DOCUMENT, [override])))
    assert {field for field in before if before[field] != after[field]} == changed
    assert list(after) == ["dataset", "pipeline", "training"]


def test_the_hash_is_pinned() -> None:
    # A change here makes every checkpoint that exists unusable: say so in the CHANGELOG.
    assert hash_with() == "7699f3d96c1d4e6d"


def test_the_order_of_keys_and_1_for_1_0_do_not_matter() -> None:
    shuffled = copy.deepcopy(DOCUMENT)
    shuffled["spec"] = dict(reversed(shuffled["spec"].items()))
    shuffled["spec"]["training"]["config"] = {"rate": 1.0}
    other = copy.deepcopy(DOCUMENT)
    other["spec"]["training"]["config"] = {"rate": 1}
    assert run_hash(parse_experiment(shuffled)) == run_hash(parse_experiment(other))


def test_the_config_is_json_with_defaults_filled_in() -> None:
    config = run_config(parse_experiment(DOCUMENT))
    assert json.loads(json.dumps(config)) == config
    assert config["training"]["epochs"] == 1
    assert config["version"] == 1


def test_differences_are_lines_with_both_sides() -> None:
    before = run_config(parse_experiment(DOCUMENT))
    overrides = ["training.batchSize=256", "dataset.where=day = 3", "pipeline[2]=", "pipeline=[]"]
    after = run_config(parse_experiment(apply_overrides(DOCUMENT, overrides[:2])))
    assert diff_configs(before, after) == [
        'dataset.where: absent → "day = 3"',
        "training.batchSize: 4096 → 256",
    ]
    assert diff_configs(before, before) == []


def test_a_difference_in_length_and_type_shows() -> None:
    assert diff_configs({"a": [1], "b": {}}, {"a": [1, 2], "b": {"c": None}}) == [
        "a[1]: absent → 2",
        "b: {} → absent",
        "b.c: absent → null",
    ]


def test_credentials_are_hidden_in_differences() -> None:
    assert diff_configs({"u": "s3://a:b@c/"}, {"u": "s3://c/"}) == ['u: "s3://…@c/" → "s3://c/"']
