"""Random DatasetExperiments drawn from the models: valid ones, and ones with one change."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from hypothesis import strategies as st
from pydantic import AfterValidator, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from pipeline_runtime.config import (
    API_VERSION,
    KIND,
    DatasetExperiment,
    SpecModel,
    base,
    cluster,
    dataset,
    decimals,
    experiment,
    experiment_status,
    output,
    quantities,
    steps,
    training,
)
from pipeline_runtime.config.introspect import field_names, walk_fields
from pipeline_runtime.steps.generate.model import GenerateStep, check_prompt
from pipeline_runtime.steps.measure.model import Metric
from pipeline_runtime.steps.predict.model import Ablation, PredictModel, PredictStep
from pipeline_runtime.steps.rename.model import RenameStep

Document = dict[str, Any]
Strategy = st.SearchStrategy[Any]

COLUMNS = ["user_id", "item id", "größe", "_lastmile_row_id", "a.b", "label", "x" * 256]
URIS = [
    "impressions/",
    "s3://bucket/a/b?part=3",
    "abfss://c@account.dfs/x",
    "a..b/",
    "日本/*.parquet",
]
URIS += ["git+ssh://git@host/repo", "data/user@home/x.parquet", "http://minio:9000/x", "u" * 1024]
PLACES = ["impressions/", "s3://bucket/a/b", "abfss://c@account.dfs.core.windows.net/x", "a..b/"]
PLACES += ["日本/*.parquet", "data/user@home/x.parquet", "gs://b", "hdfs://h:1/x", "/a#b?c"]
# The model accepts every text here.
BY_PATTERN: Mapping[str, Sequence[str]] = {
    base.IMPORT_PATH_PATTERN: ["a:b", "my_team.ranking:train.loop", "_x1.größe:f"],
    dataset.ICEBERG_TABLE_PATTERN: ["db.t", "a.b.c", "größe.t-1"],
    cluster.OBJECT_NAME_PATTERN: ["a", "site", "a-1.b"],
    cluster.ENV_NAME_PATTERN: [
        "A",
        "LOG_LEVEL",
        "a.b-c",
        "RAY_DATA_X",
        "HF_TOKENIZER",
        "TOKEN_PATH",
    ],
    cluster.DATA_KEY_PATTERN: ["key", ".a", "A-1_b"],
    base.LABEL_PATTERN: ["a", "thin", "1-x", "x" * 63],
    base.SCRIPT_PATTERN: ["train.py", "a b/größe.py", "/opt/t.py"],
    experiment_status.SHA256_PATTERN: ["0123456789abcdef" * 4],
    experiment_status.MODEL_NAME_PATTERN: ["step-0000000021", "ranker.onnx", "20260101T000000Z-0"],
    experiment_status.DECIMAL_PATTERN: ["0.25", "-1", "1.5e-3"],
    dataset.REF_PATTERN: ["week-1", "größe/x", "x" * 256],
    cluster.GROUP_NAME_PATTERN: ["a", "large", "a-1", "x" * 24],
    cluster.IMAGE_PATTERN: ["registry:5000/a/b:1.0", "a@sha256:0"],
}
PERCENTS = [1, 50, "0.5", "12.250000", "50.0", "0.000001", "09.5"]
PADDINGS = [0, -1, base.MAX_SAFE_INTEGER, "0.5", "-1e300", "18446744073709551615"]
BY_VALIDATOR: Mapping[Callable[..., Any], Strategy] = {
    base.check_uri: st.sampled_from(URIS),
    base.check_store_uri: st.sampled_from(PLACES),
    base.check_table_uri: st.sampled_from([*PLACES, "day=*/part-?.parquet"]),
    base.check_column: st.sampled_from(COLUMNS),
    base.check_expression: st.sampled_from(["a > 1", "x", " y\n", "größe = 'ß'", "z" * 16_384]),
    dataset.check_snapshot: st.sampled_from(["1", "9007199254740993", str(base.MAX_INT64)]),
    check_prompt: st.sampled_from(["{title}", "Tag: {größe}\n{{x}} {a b}", "{{{x}}}"]),
    decimals.check_temperature: st.sampled_from([0, 100, "0.7", "1.50"]),
    decimals.check_percent: st.sampled_from([0, 100, "100.0", "0", *PERCENTS]),
    decimals.check_holdout_percent: st.sampled_from(PERCENTS[:-1]),
    decimals.check_number: st.sampled_from(PADDINGS),
    decimals.check_constant: st.sampled_from([True, -7, -base.MAX_SAFE_INTEGER, "", "x", "0.5"]),
    quantities.check_quantity: st.sampled_from(
        [0, 2, 10**18 - 1, "500m", "1.5Gi", ".5", "1e3", "+1"]
    ),
}
SCALARS = st.sampled_from([True, 0, -7, 2**53, 0.5, -1e300, "", "text", "1"])
FREE = st.dictionaries(
    st.sampled_from(["a", "b.c", "größe", ""]),
    st.recursive(
        SCALARS | st.none(),
        lambda x: (
            st.lists(x, max_size=2) | st.dictionaries(st.sampled_from(["d", "e"]), x, max_size=2)
        ),
        max_leaves=4,
    ),
    max_size=3,
)
TEMPLATES = st.sampled_from(
    [
        {},
        {"metadata": {"labels": {"team": "ads"}}},
        {
            "spec": {
                "hostPID": False,
                "automountServiceAccountToken": False,
                "nodeSelector": {"a": "b"},
            }
        },
        {
            "spec": {
                "containers": [
                    {"name": "log", "command": ["tail"], "ports": [{"containerPort": 1}]}
                ]
            }
        },
    ]
)
BY_FIELD: Mapping[tuple[str, str], Strategy] = {
    ("SideTableStep", "keys"): st.lists(
        st.sampled_from(COLUMNS), min_size=1, max_size=3, unique=True
    ).flatmap(
        lambda names: st.tuples(
            *(st.sampled_from([name, {"left": name, "right": f"r{name[1:]}"}]) for name in names)
        ).map(list)
    ),
    ("PredictStep", "batch_size"): st.sampled_from(["Auto", 1, 512, base.MAX_INT32]),
    ("S3Options", "endpoint"): st.sampled_from(["http://minio:9000", "https://s3"]),
    ("EnvVar", "value"): st.sampled_from(["", "1", "/var/run/key.json", "größe", "v" * 32_768]),
    ("PodGroup", "template"): TEMPLATES,
    ("Code", "pip"): st.lists(
        st.sampled_from(["a", "a==1", "a @ git+ssh://git@host/r"]), max_size=3
    ),
}
TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456+00:00"])
RESOURCE_NAMES = st.sampled_from(["cpu", "memory", "ephemeral-storage", "example.com/fpga"])

# Models in which exactly one field must be given.
CHOICES: Mapping[type[SpecModel], Sequence[str]] = {
    dataset.SourceChoice: ["parquet", "iceberg"],
    dataset.ParquetSource: ["uri", "uris"],
    steps.Step: steps.list_kinds(),
    output.Output: ["parquet", "iceberg"],
    training.Evaluation: ["where", "holdoutPercent"],
    Metric: [to_camel(name) for name in Metric.KINDS],
    cluster.EnvSource: ["secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef"],
    cluster.EnvFromSource: ["secretRef", "configMapRef"],
}


def documents() -> Strategy:
    """Draw whole experiments that the models accept."""
    return st.builds(
        lambda name, spec: {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": spec,
        },
        st.sampled_from(["a", "first", "x" * experiment.MAX_NAME_CHARS, "a-1-b"]),
        models(experiment.ExperimentSpec),
    )


@functools.cache
def models(model: type[SpecModel]) -> Strategy:
    """Draw values that a model accepts, with some of its optional fields."""
    return _draw_model(model)


@st.composite
def _draw_model(draw: st.DrawFn, model: type[SpecModel]) -> Document:
    choices = [name for base_ in model.__mro__ for name in CHOICES.get(base_, ())]
    chosen = draw(st.sampled_from(choices)) if choices else ""
    given: Document = {}
    for alias, name in field_names(model).items():
        wanted = alias == chosen or model.model_fields[name].is_required()
        if wanted or (alias not in choices and draw(st.integers(0, 2)) == 0):
            given[alias] = draw(_field_values(model, name))
    for base_ in model.__mro__:
        REPAIRS.get(base_, lambda _: None)(given)
    return given


@functools.cache
def _field_values(model: type[SpecModel], name: str) -> Strategy:
    for base_ in model.__mro__:
        if (base_.__name__, name) in BY_FIELD:
            return BY_FIELD[base_.__name__, name]
    if issubclass(model, experiment_status.StatusModel) and name.endswith("time"):
        return TIMES
    field = model.model_fields[name]
    return values(field.annotation, field.metadata)


def values(annotation: Any, constraints: Sequence[Any] = ()) -> Strategy:
    """Draw values that a field of this type accepts."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(args[0], [*args[1:], *constraints])
    flat = [item for c in constraints for item in (c.metadata if isinstance(c, FieldInfo) else [c])]
    validators = [c.func for c in flat if isinstance(c, AfterValidator)]
    for validator in validators:
        if validator in BY_VALIDATOR:
            return BY_VALIDATOR[validator]
    if origin in (Union, types.UnionType):
        return _union_values([arg for arg in args if arg is not type(None)])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        least = next((c.min_length for c in flat if isinstance(c, annotated_types.MinLen)), 0)
        unique = base.check_unique in validators
        longest = [c.max_length for c in flat if isinstance(c, annotated_types.MaxLen)]
        most = min([3, *longest])
        if base.check_unique_names in validators:
            return st.lists(
                values(args[0]), min_size=least, max_size=most, unique_by=lambda item: item["name"]
            )
        return st.lists(values(args[0]), min_size=least, max_size=most, unique=unique)
    if origin is dict:
        return _dict_values(args, flat)
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return models(annotation)
    return _plain_values(annotation, flat)


def _union_values(members: Sequence[Any]) -> Strategy:
    assert len(members) == 1, members  # others have an entry in BY_VALIDATOR or BY_FIELD
    return values(members[0])


def _dict_values(args: Sequence[Any], flat: Sequence[Any]) -> Strategy:
    if getattr(args[1], "__name__", "") == "JsonValue":
        return FREE
    least = next((c.min_length for c in flat if isinstance(c, annotated_types.MinLen)), 0)
    keys = RESOURCE_NAMES if args[0] is base.Text else values(args[0])
    return st.dictionaries(keys, values(args[1]), min_size=least, max_size=3)


def _plain_values(annotation: Any, flat: Sequence[Any]) -> Strategy:
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        low = next(c.ge for c in flat if isinstance(c, annotated_types.Ge))
        high = next(c.le for c in flat if isinstance(c, annotated_types.Le))
        return st.sampled_from([low, high]) | st.integers(low, min(high, low + 99))
    for constraint in flat:
        if pattern := getattr(constraint, "pattern", None):
            return st.sampled_from(BY_PATTERN[pattern])
    most = max(c.max_length or 0 for c in flat if isinstance(c, StringConstraints))
    return st.sampled_from(["a", "größe", " ", "y" * most])


def _repair_dataset(given: Document) -> None:
    if "requestKey" not in given:
        given.pop("requestColumns", None)


def _repair_rename(given: Document) -> None:
    for index, column in enumerate(given["columns"]):
        column["newName"] = f"new_{index}"


def _repair_generate(given: Document) -> None:
    if given.get("errorColumn") == given["outputs"][0]["name"]:
        given["errorColumn"] = "error"


def _repair_predict(given: Document) -> None:
    for index, model in enumerate(given["models"]):
        for place, output_ in enumerate(model["outputs"]):
            output_["name"] = f"output_{index}_{place}"
    if "ablation" in given:
        given["ablation"]["model"] = given["models"][0]["name"]


def _repair_ablation(given: Document) -> None:
    given.pop("repeats", None)
    del given["groups"][40:]


def _repair_metric(given: Document) -> None:
    if "ndcg" in given:
        given.setdefault("per", "user_id")
    elif "auc" not in given:
        given.pop("per", None)
    elif "per" in given:
        given["auc"].pop("weight", None)


def _repair_evaluation(given: Document) -> None:
    if "holdoutPercent" not in given:
        given.pop("by", None)


def _repair_workers(given: Document) -> None:
    most = given.get("maxReplicas", 1 if "name" in given else 50)  # a list's groups have names
    least = given.get("minReplicas", 1)
    if least > most:
        given |= {"minReplicas": most, "maxReplicas": least}


def _repair_policies(given: Document) -> None:
    for index, policy in enumerate(given.get("policies", [])):
        policy["periodSeconds"] = index + 1


def _repair_resources(given: Document) -> None:
    for name in given.get("requests", {}).keys() & given.get("limits", {}).keys():
        given["limits"][name] = given["requests"][name]


def _repair_env(given: Document) -> None:
    if "valueFrom" in given:
        given.pop("value", None)


_JOINS = ("antiJoin", "join")


def _repair_training(given: Document) -> None:
    for name in ("entrypoint", "precision") if "script" in given else ("args",):
        given.pop(name, None)
    if "script" in given:
        given.pop("model", None)
    elif "model" in given:
        given.pop("entrypoint", None)
        given.setdefault("labelColumn", "user_id")
    best = given.get("checkpoint", {}).get("keepBest")
    if best and "evaluation" not in given:
        best["metric"] = "loss"


def _repair_iceberg(given: Document) -> None:
    for name in [name for name in ("snapshotId", "branch", "tag") if name in given][1:]:
        del given[name]


def _repair_iceberg_target(given: Document) -> None:
    if ("bucketBy" in given) != ("buckets" in given):
        given.pop("bucketBy", None)
        given.pop("buckets", None)


def _repair_spec(given: Document) -> None:
    if "output" in given:
        given.pop("training", None)
        given.pop("trainers", None)
        given.get("autoscaling", {}).pop("signal", None)
    steps_ = given.get("pipeline", [])
    kept = [step for step in steps_ if "materialize" in step]
    steps_[:] = [step for step in steps_ if step not in kept[1:]]
    if kept:
        given["dataset"].setdefault("rowKey", ["user_id"])
    if "output" not in given:
        steps_[:] = [step for step in steps_ if "generate" not in step]
        for step in steps_:
            step.get("predict", {}).pop("ablation", None)
    elif any(
        step.keys() & {"generate", "measure"} or "ablation" in step.get("predict", {})
        for step in steps_
    ):
        given["output"].pop("mode", None)
    for index, step in enumerate(steps_):
        if "name" in step:
            step["name"] = f"{step['name'][:60]}{index}"
    for index, variable in enumerate(given.get("env", [])):
        variable["name"] = variable["name"] + f"_{index}_PATH"
    if "activeDeadlineSeconds" in given:
        given.pop("preRunningDeadlineSeconds", None)
    kinds = (*_JOINS, "materialize")
    sources = [given["dataset"], *(step.get(kind, {}) for step in steps_ for kind in kinds)]
    sources.append(given.get("output", {}))
    used = {source["iceberg"]["catalog"] for source in sources if "iceberg" in source}
    known = {catalog["name"] for catalog in given.get("catalogs", [])}
    if missing := sorted(used - known):
        given["catalogs"] = given.get("catalogs", []) + [{"name": name} for name in missing]
    _repair_worker_groups(given)
    if "requestKey" not in given["dataset"]:
        given.get("training", {}).get("shuffle", {}).pop("unit", None)


def _repair_worker_groups(given: Document) -> None:
    models = [
        model
        for step in given.get("pipeline", [])
        for model in step.get("predict", {}).get("models", [])
    ]
    groups = given.get("inferenceWorkers", [])[: len(models)]
    given.pop("inferenceWorkers", None)
    for model in models:
        model.pop("workerGroup", None)
    for model, group in zip(models, groups, strict=False):
        model["workerGroup"] = group["name"]
    if groups:
        given["inferenceWorkers"] = groups


def _repair_status(given: Document) -> None:
    for index, condition in enumerate(given.get("conditions", [])):
        condition["type"] = f"Type{index}"


def _repair_model(given: Document) -> None:
    kinds = [name for name in ("experimentRef", "checkpoint", "onnx", "function") if name in given]
    for name in kinds[1:]:
        del given[name]
    if not kinds:
        given["onnx"] = {"uri": "x.onnx"}
    if "function" in given:
        given.setdefault("inputs", ["x"])
    else:
        given.pop("options", None)
        given.pop("format", None)


def _repair_output(given: Document) -> None:
    if given.get("layout") == "KeyAndScore":
        given.pop("columns", None)
    if given.get("mode") == "OverwritePartitions" and "iceberg" not in given:
        del given["mode"]


REPAIRS: Mapping[type[SpecModel], Callable[[Document], None]] = {
    dataset.Dataset: _repair_dataset,
    dataset.IcebergSource: _repair_iceberg,
    Metric: _repair_metric,
    RenameStep: _repair_rename,
    training.Training: _repair_training,
    training.Evaluation: _repair_evaluation,
    cluster.DataWorkers: _repair_workers,
    cluster.InferenceWorkers: _repair_workers,
    cluster.ScalingRules: _repair_policies,
    cluster.Resources: _repair_resources,
    cluster.EnvVar: _repair_env,
    experiment.ExperimentSpec: _repair_spec,
    output.Output: _repair_output,
    GenerateStep: _repair_generate,
    PredictModel: _repair_model,
    PredictStep: _repair_predict,
    Ablation: _repair_ablation,
    output.IcebergTarget: _repair_iceberg_target,
    experiment_status.ExperimentStatus: _repair_status,
}

FIELDS = sorted({str(path[-1]) for path, _ in walk_fields(DatasetExperiment)})
NUMBERS: Sequence[Any] = [0, 1, -1, 101, 2**31 - 1, 2**31, 2**53, 2**63, 10**20, 0.5, 7.0]
NUMBERS = [*NUMBERS, True, False]
TEXTS: Sequence[Any] = [
    *(
        "",
        " ",
        "\n",
        "x",
        "true",
        "10",
        "x" * 257,
        "ü" * 1025,
        "Max",
        "a b",
        "a.b",
        "a.b.c",
        "Größe",
    ),
    *("_lastmile_x", "_lastmile_row_id", "RAY_ADDRESS", "RAY_DATA_X", "2FAST"),
    *("A_TOKEN", "apiKey", "API_KEY", "DB_PASSWORD_FILE", "db.password", "PASSWORD2", "TOKENS"),
    *("a:b", "a.b:c", "ä:b", "a:ä", "a\u00a0b.c", "a\u0085b", "a:b\n", "a\n"),
    *("a/../b", "../b", "a..b", "..", "a?../b", "a/..?b", "http://x", "HTTP://x"),
    *("s3://k:w@b/x", "s3://key@bucket/", "s3://@bucket/x", "x s3://key@bucket/"),
    *("abfss://c@a/x", "ABFS://c@a/x", "abfss://c:w@a/x", "xabfs://c@a", "git+ssh://git@h/r"),
    *(
        "https://h/p?sig=1",
        "h?api_key=1",
        "https://h/p?a=1&X-Amz-Signature=a",
        "https://h/p?token=",
    ),
    *("h?secret=1#x", "h#?secret=1", "h?a=secret", "AKIA" + "A" * 16, "hf_" + "a" * 20),
    *(
        "0.5",
        "5",
        "050",
        "50.5",
        "100.0",
        "100.000001",
        "0.0",
        "0.0000001",
        "-0.5",
        "1e5",
        "1e9999",
    ),
    *("9223372036854775807", "9223372036854775808", "9" * 20, "0", "007", "1."),
    *("8Gi", "16 GB", "8Gi\n", "-1", "1e3", "12.5u", "0.1234567891", "1" * 19, "1e100"),
]
ODD: Sequence[Any] = [
    *(None, [], ["a"], ["a", "a"], [None], {}, [{}], [[]], ["a"] * 257, ["a", "_lastmile_x"]),
    *({"a": "b"}, {"a": "b", "c": "b"}, {"": "b"}, {"_lastmile_x": "b"}, {"_lastmile_row_id": "b"}),
    *({"x" * 257: "b"}, {"a": None}, {"a": 0.5}, {"a": []}, {"a": {}}, {"a": "x" * 129}),
    *({"parquet": {"uri": "x/"}}, {"columns": ["a"]}, {"where": "a"}, {"uri": "x", "uris": ["x"]}),
    *({"cpu": "2", "memory": "1Gi"}, {"nvidia.com/gpu": 1}, {"amd.com/gpu": "1"}),
    *({"requests": {"cpu": 2}, "limits": {"cpu": "1999m"}}, {"limits": {"cpu": "-1"}}),
    *({"requests": {"memory": "1Ki"}, "limits": {"memory": "1k"}}, {"minReplicas": 51}),
    *({"left": "a", "right": "b"}, {"left": "a"}, {"left": "", "right": "b"}),
    *([{"left": "a", "x": 1}], [1], [True], [{"left": "_lastmile_x", "right": "b"}]),
    [{"left": "a", "right": "b", "c": "d"}],
    *({"name": "A", "value": "1"}, {"name": "a", "key": "b"}, {"type": "Percent"}),
    *({"spec": {"hostPID": True}}, {"nodeSelector": {}}, {"spec": {"hostNetwork": False}}),
]
ODD = [*ODD, *NUMBERS, *TEXTS]
NAMES = ["", "A", "a_b", "1a", "a-", "-a", "a.b", "x" * 41, "ä", "a\n", "xn--a", "a" * 64]


def mutate(data: st.DataObject, document: Document) -> str:
    """Change one thing in the document, which may make it invalid; return a description."""
    if data.draw(st.integers(0, 29)) == 0:
        document["metadata"]["name"] = data.draw(st.sampled_from(NAMES))
        return "name"
    above, key = data.draw(st.sampled_from(list(_places(document["spec"], document, "spec"))))
    below, odd = above[key], copy.deepcopy(data.draw(_like(above[key]) | st.sampled_from(ODD)))
    change = data.draw(
        st.sampled_from(["replace", "replace", "replace", "remove", "add", "misspell"])
    )
    if change == "add" and isinstance(below, dict):
        below[data.draw(st.sampled_from(FIELDS))] = odd
    elif change == "add" and isinstance(below, list):
        below.append(copy.deepcopy(data.draw(st.sampled_from([*below, odd]))))
    elif change == "misspell" and isinstance(above, dict):
        above[str(key).swapcase()] = above.pop(key)
    elif change == "remove":
        del above[key]
    else:
        above[key] = odd
    return f"{change} {key}"


def _like(value: Any) -> Strategy:
    """Draw odd values of the same type, which pass the first check."""
    texts = isinstance(value, str)
    return st.sampled_from(TEXTS if texts else NUMBERS if isinstance(value, int | float) else ODD)


def _places(value: Any, above: Any, key: str | int) -> Iterator[tuple[Any, str | int]]:
    yield above, key
    items: Any = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for name, item in items:
        yield from _places(item, value, name)
