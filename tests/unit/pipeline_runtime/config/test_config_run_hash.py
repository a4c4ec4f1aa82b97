"""The run's identity changes with what is trained, and with nothing else."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline_runtime.config import (
    DatasetExperiment,
    apply_overrides,
    diff_configs,
    hash_parts,
    parse_experiment,
    run_config,
    run_hash,
    upgrade_config,
)

DOCUMENT: dict[str, Any] = {
    "apiVersion": "experiments.lastmile.dev/v1alpha1",
    "kind": "DatasetExperiment",
    "metadata": {"name": "first"},
    "spec": {
        "dataset": {"parquet": {"uri": "impressions/"}},
        "pipeline": [
            {"antiJoin": {"parquet": {"uri": "spam/"}, "keys": ["user_id"]}},
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
    "pipelineOptions.debug.fusion=false",
    "pipelineOptions.debug.kernels=false",
    "pipelineOptions.debug.pushdown=false",
    "pipelineOptions.feed=RayData",
    "pipeline[0].antiJoin.maxBytes=1000",
    "pipeline[2].map.concurrency=3",
    "pipeline[2].map.resources.cpu=2",
    "training.epochs=1",  # the default, said
    "pipeline[1].name=thin",
    'pipeline[1].downsample.keepPercent="10.0"',
    "pipeline[1].downsample.applyTo=All",  # without an evaluation, both are the same
    "pipeline[0].antiJoin.keys=[{left: user_id, right: user_id}]",
    "dataset.parquet={uris: [impressions/]}",
    "dataset.parquet.s3={anonymous: false}",
    "pipeline[0].antiJoin.parquet={uris: [spam/], s3: {}}",
]
OTHER = [
    "dataset.where=day = 3",
    "dataset.parquet.uri=other/",
    "pipeline[1].downsample.seed=18",
    "pipeline[1].downsample.keepPercent=10.5",
    "pipeline[0].antiJoin.keys=[{left: user_id, right: id}]",
    "pipeline[0].antiJoin.keys=[user_id, day]",
    "dataset.parquet={uris: [impressions/, clicks/]}",
    "dataset.parquet.s3.anonymous=true",
    "pipeline[2].map.options.size=9",
    "pipelineOptions.preserveOrder=true",
    "pipelineOptions.rowsPerBlock=1000",
    "training.batchSize=256",
    "training.epochs=2",
    "training.seed=1",
    "training.config.learningRate=0.01",
    "training.evaluation.holdoutPercent=5",
    "training.evaluation={holdoutPercent: 5, maxRows: 9}",
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
    assert hash_with() == "f6aa0a88127083d3"


# Each optional field of the run config, with its default.
@pytest.mark.parametrize(
    "override",
    [
        "dataset.parquet.s3=",
        "pipeline[0].antiJoin.maxBytes=1073741824",
        "pipeline[1].downsample.where=",
        "pipeline[2].map.changesRows=false",
        "pipelineOptions.preserveOrder=false",
        "training.epochs=1",
        "training.shuffle={unit: Row}",
        "training.seed=0",
        "code={}",
        "code.pip=[]",
        "image=",
    ],
)
def test_a_default_that_is_written_out_changes_no_hash(override: str) -> None:
    assert hash_with(override) == hash_with()


JOIN = "{join: {parquet: {uri: side/}, keys: VALUE}}"
PAD = "{padSequence: {columns: [a], length: 3, value: VALUE}}"
DIGITS = "1234567890" * 4


@pytest.mark.parametrize(
    ("step", "spellings"),
    [
        (JOIN, ["[a, b]", "[a, {left: b, right: b}]", "[{left: a, right: a}, b]"]),
        (JOIN, ["[{left: a, right: b}, c]", "[{left: a, right: b}, {left: c, right: c}]"]),
        (PAD, ["-1", '"-1"', '"-1.0"', '"-10e-1"', '"-0.1e1"']),
        (PAD, ['"0.5"', '"0.50"', '"5e-1"']),
        (PAD, [f'"{DIGITS}.5"', f'"{DIGITS}.50"']),
        (PAD, ['"1e300"', '"10e299"']),
    ],
)
def test_spellings_of_one_meaning_have_one_run_config(step: str, spellings: list[str]) -> None:
    def find_config(spelling: str) -> dict[str, Any]:
        override = f"pipeline[1]={step.replace('VALUE', spelling)}"
        return run_config(parse_experiment(apply_overrides(DOCUMENT, [override])))

    first, *others = map(find_config, spellings)
    assert others == [first] * len(others)


def test_inference_workers_are_no_part_of_the_identity() -> None:
    fused: dict[str, Any] = {
        "name": "m",
        "onnx": {"uri": "m.onnx"},
        "outputs": [{"name": "y", "type": "float32"}],
    }
    hashes = set()
    for model, groups in ((fused, []), (fused | {"workerGroup": "large"}, [{"name": "large"}])):
        spec = {"pipeline": [{"predict": {"models": [model]}}], "inferenceWorkers": groups}
        document = {**DOCUMENT, "spec": {**DOCUMENT["spec"], **spec}}
        hashes.add(run_hash(parse_experiment(document)))
    assert len(hashes) == 1


ICEBERG: dict[str, Any] = {
    "catalogs": [
        {"name": "main", "uri": "https://catalog", "secretRef": {"name": "keys"}},
        {"name": "other", "type": "Glue"},
    ],
    "dataset": {"iceberg": {"catalog": "main", "table": "db.t"}},
}


@pytest.mark.parametrize(
    ("override", "is_same"),
    [
        ("catalogs[main].secretRef.name=others", True),
        ("catalogs[other].type=Sql", True),
        ("catalogs[other]={name: third}", True),
        ("dataset.iceberg.keepDays=7", True),
        ("catalogs[main].uri=https://elsewhere", False),
        ("catalogs[main].type=Sql", False),
    ],
)
def test_the_catalog_of_the_table_is_part_of_the_run(override: str, is_same: bool) -> None:
    document = DOCUMENT | {"spec": ICEBERG}
    changed = apply_overrides(document, [override])
    hashes = {run_hash(parse_experiment(part)) for part in (document, changed)}
    assert (len(hashes) == 1) is is_same


def test_the_version_rises_only_for_specs_that_use_the_changed_field() -> None:
    def has_epochs(config: Mapping[str, Any]) -> bool:
        return "epochs" in config.get("training", {})

    def find_version(*overrides: str) -> int:
        experiment = parse_experiment(apply_overrides(DOCUMENT, overrides))
        version: int = run_config(experiment, changes=[(7, has_epochs), (5, bool)])["version"]
        return version

    assert find_version("training.epochs=2") == 7
    assert find_version() == 5
    experiment = parse_experiment(DOCUMENT)
    assert run_config(experiment, changes=[(7, has_epochs)]) == run_config(experiment)


EVALUATED = "training.evaluation.holdoutPercent=5"
ON_ALL = "pipeline[1].downsample.applyTo=All"


@pytest.mark.parametrize(
    ("overrides", "version"),
    [
        ([], 2),
        ([EVALUATED], 3),
        ([EVALUATED, "pipeline[1].downsample.applyTo=Training"], 3),
        ([EVALUATED, ON_ALL], 2),
        ([EVALUATED, "pipeline[1]={sample: {keepPercent: 10}}"], 2),
    ],
)
def test_only_downsampling_with_an_evaluation_has_version_3(
    overrides: list[str], version: int
) -> None:
    experiment = parse_experiment(apply_overrides(DOCUMENT, overrides))
    assert run_config(experiment)["version"] == version


@pytest.mark.parametrize("stored", ["version 2", "version 1"])
def test_an_older_downsample_resumes_as_one_that_applies_to_all(stored: str) -> None:
    now = parse_experiment(apply_overrides(DOCUMENT, [EVALUATED]))
    on_all = parse_experiment(apply_overrides(DOCUMENT, [EVALUATED, ON_ALL]))
    older = run_config(now, changes=()) if stored == "version 2" else fill_defaults(now)
    for step in older["pipeline"]:
        step.get("downsample", {}).pop("applyTo", None)  # no older release had it
    assert upgrade_config(older) == run_config(on_all)
    assert diff_configs(upgrade_config(older), run_config(now)) == [
        'pipeline[1].downsample.applyTo: "All" → absent',
        "version: 2 → 3",
    ]
    assert upgrade_config(run_config(now)) == run_config(now)


@pytest.mark.parametrize("damaged", [{"training": 1}, {"pipeline": {}}, {"pipeline": [1, {}]}])
def test_a_damaged_run_config_is_returned_as_it_is(damaged: dict[str, Any]) -> None:
    config = {"version": 2, "training": {"evaluation": {}}, "pipeline": []} | damaged
    assert upgrade_config(config) == config


def fill_defaults(experiment: DatasetExperiment) -> dict[str, Any]:
    """Return a run config of version 1, which had the defaults filled in."""
    spec = experiment.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    filled: dict[str, Any] = run_config(experiment) | {"version": 1}
    for name in ("dataset", "pipeline", "training", "code"):
        filled[name] = spec[name]
    del filled["training"]["checkpoint"]
    return filled


def test_a_run_config_with_defaults_is_upgraded() -> None:
    experiment = parse_experiment(DOCUMENT)
    filled = fill_defaults(experiment)
    assert filled["training"]["epochs"] == 1
    assert upgrade_config(filled) == run_config(experiment)
    filled["training"]["epochs"] = 2
    assert upgrade_config(filled) != run_config(experiment)
    assert diff_configs(upgrade_config(filled), run_config(experiment)) == [
        "training.epochs: 2 → absent"
    ]


def test_an_older_run_config_has_the_older_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = parse_experiment(DOCUMENT)
    filled = fill_defaults(experiment)
    monkeypatch.setitem(run_config.__kwdefaults__, "changes", ((3, bool),))
    assert run_config(experiment)["version"] == 3
    assert upgrade_config(filled) != run_config(experiment)


# A run config of version 1 that uses every part of the API that has other words since, and the spec
# that says the same today.
VERSION_1: dict[str, Any] = {
    "version": 1,
    "dataset": {"parquet": {"uri": "clicks/"}, "requestKey": "request"},
    "pipeline": [
        {"join": {"parquet": {"uri": "side/"}, "on": ["user"], "how": "inner"}},
        {"antiJoin": {"parquet": {"uri": "spam/"}, "leftOn": ["user"], "rightOn": ["id"]}},
        {"truncate": {"columns": ["items"], "length": 5, "keep": "tail"}},
        {
            "map": {
                "function": "team.steps:embed",
                "options": {},
                "format": "numpy",
                "outputColumns": {"e": "float32"},
            }
        },
        {"derive": {"columns": {"y": "x * 2", "a": "b"}}},
        {"rename": {"columns": {"y": "z"}}},
        {"cast": {"columns": {"z": "int8"}}},
        {"fillNull": {"columns": {"z": 0, "f": 0.5, "b": True}}},
        {"padSequence": {"columns": ["items"], "length": 3, "value": -1.5}},
    ],
    "pipelineOptions": {"preserveOrder": False},
    "training": {
        "shuffle": {"unit": "request", "windowRows": 40},
        "lastBatch": "drop",
        "precision": "float32",
    },
    "code": {"pip": []},
}
TODAY: dict[str, Any] = {
    "dataset": {"parquet": {"uri": "clicks/"}, "requestKey": "request"},
    "pipeline": [
        {"join": {"parquet": {"uri": "side/"}, "keys": ["user"], "how": "Inner"}},
        {"antiJoin": {"parquet": {"uri": "spam/"}, "keys": [{"left": "user", "right": "id"}]}},
        {"truncate": {"columns": ["items"], "length": 5, "keep": "Tail"}},
        {
            "map": {
                "function": "team.steps:embed",
                "format": "Numpy",
                "outputColumns": [{"name": "e", "type": "float32"}],
            }
        },
        {
            "derive": {
                "columns": [
                    {"name": "y", "expression": "x * 2"},
                    {"name": "a", "expression": "b"},
                ]
            }
        },
        {"rename": {"columns": [{"name": "y", "newName": "z"}]}},
        {"cast": {"columns": [{"name": "z", "type": "int8"}]}},
        {
            "fillNull": {
                "columns": [
                    {"name": "z", "value": 0},
                    {"name": "f", "value": "0.5"},
                    {"name": "b", "value": True},
                ]
            }
        },
        {"padSequence": {"columns": ["items"], "length": 3, "value": "-1.5"}},
    ],
    "training": {"shuffle": {"unit": "Request", "windowRows": 40}, "lastBatch": "Drop"},
}


def test_a_run_config_of_version_1_is_translated() -> None:
    experiment = parse_experiment(DOCUMENT | {"spec": TODAY})
    assert upgrade_config(VERSION_1) == run_config(experiment)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"version": 1},
        {"version": 1, "dataset": []},
        {"version": 1, "dataset": {"parquet": {"uri": "a/"}}, "training": {"removed": 1}},
        {"version": "1", "dataset": {"parquet": {"uri": "a/"}}},
        {"version": 3, "dataset": {"parquet": {"uri": "a/"}}},
        *(
            {"version": 1, "dataset": {"parquet": {"uri": "a/"}}} | wrong
            for wrong in (
                {"pipeline": {"join": {"how": "inner"}}},
                {"pipeline": ["join"]},
                {"pipeline": [{"join": ["how"]}]},
                {"pipeline": [{"join": {"how": []}}]},
                {"pipeline": [{"join": {"leftOn": "a", "rightOn": [1]}}]},
                {"pipeline": [{"join": {"on": {"a": "b"}}}]},
                {"pipeline": [{"derive": {"columns": ["x"]}}]},
                {"pipeline": [{"cast": {"columns": {"x": {}}}}]},
                {"training": [{"lastBatch": "pad"}]},
                {"training": {"shuffle": "none"}},
            )
        ),
    ],
)
def test_what_is_no_older_run_config_stays_as_it_is(config: dict[str, Any]) -> None:
    assert upgrade_config(config) == config


def test_the_order_of_keys_and_1_for_1_0_do_not_matter() -> None:
    shuffled = copy.deepcopy(DOCUMENT)
    shuffled["spec"] = dict(reversed(shuffled["spec"].items()))
    shuffled["spec"]["training"]["config"] = {"rate": 1.0}
    other = copy.deepcopy(DOCUMENT)
    other["spec"]["training"]["config"] = {"rate": 1}
    assert run_hash(parse_experiment(shuffled)) == run_hash(parse_experiment(other))


def test_the_config_is_json_without_defaults() -> None:
    config = run_config(parse_experiment(DOCUMENT))
    assert json.loads(json.dumps(config)) == config
    assert config == {
        "version": 2,
        "dataset": DOCUMENT["spec"]["dataset"],
        "pipeline": DOCUMENT["spec"]["pipeline"],
        "training": {"config": {"learningRate": 0.001}},  # a batch size of 4096 is the default
    }


def test_differences_are_lines_with_both_sides() -> None:
    before = run_config(parse_experiment(DOCUMENT))
    overrides = ["training.batchSize=256", "dataset.where=day = 3", "pipeline[2]=", "pipeline=[]"]
    after = run_config(parse_experiment(apply_overrides(DOCUMENT, overrides[:2])))
    assert diff_configs(before, after) == [
        'dataset.where: absent → "day = 3"',
        "training.batchSize: absent → 256",
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
