"""Specs that the models accept or refuse, beyond the corpus of broken manifests."""

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from experiments import build_experiment
from facts import assert_all_told, assert_told

from pipeline_runtime.config import DatasetExperiment, DataWorkers, ManifestError, parse_experiment
from pipeline_runtime.config.introspect import walk_fields
from pipeline_runtime.config.quantities import parse_quantity
from pipeline_runtime.config.reading.wording import show
from pipeline_runtime.config.texts.credentials import (
    find_uri_credential,
    hide_credentials,
    is_secret_env,
    is_secret_name,
)


def problems(**spec: Any) -> list[str]:
    try:
        parse_experiment(build_experiment(**spec))
    except ManifestError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_the_smallest_manifest_has_the_defaults() -> None:
    spec = parse_experiment(build_experiment()).spec
    assert (spec.trainers.replicas, spec.trainers.gpus_per_replica) == (1, 1)
    assert (spec.data_workers.min_replicas, spec.data_workers.max_replicas) == (1, 50)
    assert spec.autoscaling.target_gpu_utilization_percent == 95
    assert (spec.backoff_limit, spec.update_policy, spec.artifacts.uri) == (
        2,
        "AfterRun",
        "experiments/",
    )


def problem_paths(**spec: Any) -> list[str]:
    return [problem.split(": ")[0] for problem in problems(**spec)]


A_TO_B, A_TO_C, C_TO_B = ({"left": x, "right": y} for x, y in ("ab", "ac", "cb"))


@pytest.mark.parametrize(
    ("keys", "repeated"),
    [
        (["a", "b", A_TO_C, "a"], ["[2]", "[3]"]),
        (["a", "a"], ["[1]"]),
        ([A_TO_B, A_TO_B], ["[1]"]),
        ([A_TO_B, A_TO_C], ["[1]"]),
        ([A_TO_B, C_TO_B], ["[1]"]),
        (["a", C_TO_B], []),
        ([A_TO_B, {"left": "b", "right": "a"}], []),
    ],
)
def test_a_repeated_key_of_a_join_is_reported_once(keys: list[Any], repeated: list[str]) -> None:
    step = {"join": {"parquet": {"uri": "side/"}, "keys": keys}}
    expected = [f"spec.pipeline[0].join.keys{index}" for index in repeated]
    assert problem_paths(pipeline=[step]) == expected


def join_on(key: Any) -> dict[str, Any]:
    return {"pipeline": [{"join": {"parquet": {"uri": "side/"}, "keys": [key]}}]}


KEY = "spec.pipeline[0].join.keys[0]"
FILL = {"fillNull": {"columns": [{"name": "a", "value": {"bool": 1}}]}}
# Pydantic places an error of a key at "[key]" behind it.
REQUESTS = {"[key]": "x", "a": {"int": 1, "str": 2}, "": 1, "b": {"[key]": 1}}


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        (join_on({"pair": {"left": "a"}}), [f"{KEY}.left", f"{KEY}.right", f"{KEY}.pair"]),
        (join_on({"name": "a"}), [f"{KEY}.left", f"{KEY}.right", f"{KEY}.name"]),
        (join_on({"left": {"pair": "a"}, "right": "b"}), [f"{KEY}.left"]),
        (join_on(["a", "b"]), [KEY]),
        (
            {"pipeline": [{"sample": {"keepPercent": {"int": 5, "str": 6}}}]},
            ["spec.pipeline[0].sample.keepPercent"],
        ),
        (
            {"training": {"evaluation": {"holdoutPercent": {"int": {}}}}},
            ["spec.training.evaluation.holdoutPercent"],
        ),
        ({"pipeline": [FILL]}, ["spec.pipeline[0].fillNull.columns[0].value"]),
        (
            {"head": {"resources": {"requests": REQUESTS}}},
            [f"spec.head.resources.requests{key}" for key in (".[key]", "", ".a", ".b")],
        ),
    ],
)
def test_errors_are_at_fields_and_not_at_members_of_unions(
    spec: dict[str, Any], paths: list[str]
) -> None:
    assert problem_paths(**spec) == paths


PAIR_HINT = "keys: [{left: name, right: name}]"


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("on", "keys: [name]"),
        ("using", "keys: [name]"),
        ("USING", "keys: [name]"),
        *((field, PAIR_HINT) for field in ("leftOn", "left_on", "right-on", "rightOn")),
        *((field, PAIR_HINT) for field in ("left_keys", "rightKeys", "left_by")),
    ],
)
@pytest.mark.parametrize("kind", ["join", "antiJoin"])
def test_a_key_in_words_of_another_tool_gets_a_hint(kind: str, field: str, hint: str) -> None:
    step = {kind: {"parquet": {"uri": "side/"}, field: ["a"]}}
    missing, unknown = problems(pipeline=[step])
    assert_told(missing, f"spec.pipeline[0].{kind}.keys: …")
    assert_told(unknown, f"spec.pipeline[0].{kind}.{field}: … {hint}")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"suspend": "true"}, "true without quotes"),
        ({"suspend": "False"}, "false without quotes"),
        ({"suspend": "yes"}, "true"),
        ({"pipelineOptions": {"debug": {"fusion": "off"}}}, "false"),
        ({"suspend": "maybe"}, "true or false"),
        ({"suspend": "7"}, "true or false"),
        ({"training": {"epochs": "true"}}, "integer"),
        ({"training": {"epochs": "7"}}, "quotes"),
        (join_on(None), "item"),
        ({"pipeline": {"filter": {"where": "a"}}}, "put '- '"),
        ({"pipeline": [{"join": {"parquet": {"uri": "s/"}, "keys": {"a": "b"}}}]}, "{left: …, "),
    ],
)
def test_a_value_of_another_type_gets_a_hint(spec: dict[str, Any], hint: str) -> None:
    (problem,) = problems(**spec)
    assert hint in problem.rpartition("; ")[2]


def test_config_imports_no_ray_torch_or_other_runtime_module() -> None:
    program = (
        "import sys, pipeline_runtime.config\n"
        "heavy = {'ray', 'torch', 'pyarrow', 'numpy', 'numba'} & sys.modules.keys()\n"
        "own = {m for m in sys.modules if m.startswith('pipeline_runtime.')}\n"
        "own = {m for m in own if not m.startswith(('pipeline_runtime.config', "
        "'pipeline_runtime.errors'))}\n"
        "packages = {m for m in own if hasattr(sys.modules[m], '__path__')}\n"
        "own = {m for m in own - packages if m.split('.')[3:] != ['model']}\n"
        "sys.exit(f'{heavy} {own}' if heavy or own else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_step_s_model_can_be_imported_first_without_arrays() -> None:
    program = (
        "import sys, pipeline_runtime.steps.join.model\n"
        "heavy = {'ray', 'torch', 'pyarrow', 'numpy', 'numba'} & sys.modules.keys()\n"
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


SECRET_NAMES = ["password", "dbPassword", "apiKey", "secret_access_key", "token", "hfToken"]
SECRET_NAMES += ["AWS_SECRET_ACCESS_KEY", "accountKey", "CREDENTIALS", "private_key", "auth-token"]
EVERYDAY_NAMES = ["padToken", "tokenizer", "maxTokens", "key", "keys", "rowKey", "monkey", "on"]
EVERYDAY_NAMES += ["secretName", "passwordFile", "tokenColumn", "special_tokens", "tokens", ""]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_holds_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", EVERYDAY_NAMES)
def test_an_everyday_name_holds_no_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_any_token_is_a_secret_in_the_environment() -> None:
    assert is_secret_env("MY_TOKEN")
    assert not is_secret_env("TOKENIZERS_PARALLELISM")


URIS = {
    "s3://bucket/path": False,
    "s3://key:word@bucket/path": True,
    "s3://key@bucket/path": True,
    "abfss://container@account.dfs.core.windows.net/path": False,
    "abfss://container:word@account/path": True,
    "https://host/path?X-Amz-Signature=abc": True,
    "https://host/path?sig=abc": True,
    "https://host/path?part=3": False,
    "data/day=*/part-?.parquet": False,
    "data/user@home/part.parquet": False,
    "http://[bad": False,  # opening it reports the error
    "3s3://key@bucket/": True,
    "x" * 200_000: False,  # fast: a scheme is searched for once, not from every character
    "git+ssh://git@host/repo": False,
    "AKIA" + "A" * 16: True,
}


@pytest.mark.parametrize(("uri", "carries"), URIS.items(), ids=[uri[:60] for uri in URIS])
@pytest.mark.timeout(5)
def test_a_uri_carries_credentials(uri: str, carries: bool) -> None:
    assert (find_uri_credential(uri) is not None) == carries


def test_credentials_are_hidden() -> None:
    assert hide_credentials("s3://u:p@b/x?sig=1&a=2") == "s3://…@b/x?sig=…&a=2"
    assert show("x" * 100) == "'" + "x" * 58 + "…"
    assert "hush" not in show("hush", ("spec", "env", 0, "value"))
    assert "hush" not in show("hush", ("spec", "training", "config", "apiKey"))


def test_a_message_about_a_long_uri_hides_its_password() -> None:
    uri = "s3://user:hush@bucket/" + "x" * 2000
    (problem,) = problems(artifacts={"uri": uri})
    assert "hush" not in problem


QUANTITIES: list[tuple[str | int, Decimal | None]] = [
    (2, Decimal(2)),
    ("500m", Decimal("0.5")),
    ("1.5Gi", Decimal(1536) * 2**20),
    ("1e3", Decimal(1000)),
    ("2k", Decimal(2000)),
    (".5", Decimal("0.5")),
    ("-1", None),
    ("1 Gi", None),
    ("1GB", None),
    ("8Gi\n", None),  # the API server's patterns end where the text does
    (10**18 - 1, Decimal(10**18 - 1)),
    (10**18, None),  # 19 digits
    ("", None),
    ("1e999999999", None),  # no number that takes a minute to compare
]


@pytest.mark.parametrize(("text", "number"), QUANTITIES, ids=[str(text) for text, _ in QUANTITIES])
def test_a_quantity_is(text: str | int, number: Decimal | None) -> None:
    assert parse_quantity(text) == number


CONSTANTS = [{"name": f"c{i}", "value": value} for i, value in enumerate([1, "0.5", "x", False])]
ACCEPTED: dict[str, dict[str, Any]] = {
    "a request equal to its limit": {
        "head": {"resources": {"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}}}
    },
    "minReplicas equal to maxReplicas": {"dataWorkers": {"minReplicas": 7, "maxReplicas": 7}},
    "a sidecar with a command": {
        "trainers": {"template": {"spec": {"containers": [{"name": "log", "command": ["tail"]}]}}}
    },
    "tuning of Ray Data": {"env": [{"name": "RAY_DATA_DISABLE_PROGRESS_BARS", "value": "1"}]},
    "a module, a table and an image of other scripts": {
        "pipeline": [{"map": {"function": "_x1.größe:f"}}],
        "catalogs": [{"name": "main"}],
        "dataset": {"iceberg": {"catalog": "main", "table": "größe.t-1"}},
        "image": "registry:5000/a/b@sha256:0",
    },
    "a path to credentials": {
        "env": [{"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/var/run/key.json"}]
    },
    "an empty value": {"env": [{"name": "HF_TOKEN", "value": ""}]},
    "words of language models": {"training": {"config": {"padToken": "[PAD]", "maxTokens": 512}}},
    "no automount": {
        "head": {"template": {"spec": {"automountServiceAccountToken": False, "hostPID": False}}}
    },
    "null in free-form options": {"training": {"config": {"a": None, "b": [None]}}},
    "keeping nothing": {"pipeline": [{"downsample": {"keepPercent": 0}}]},
    "constants of every type": {"pipeline": [{"fillNull": {"columns": CONSTANTS}}]},
}


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(spec: dict[str, Any]) -> None:
    document = build_experiment(**spec)
    assert parse_experiment(document).to_document() == document


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a template larger than 64 KiB": (
        {"head": {"template": {"metadata": {"annotations": {"a": "x" * 70_000}}}}},
        "spec.head.template: … 65,536 … 70,037",
    ),
    "more than 256 steps": (
        {"pipeline": [{"drop": {"columns": ["a"]}}] * 257},
        "spec.pipeline: … 256 … 257",
    ),
    "an address without a scheme": (
        {"dataset": {"parquet": {"uri": "s3://b/x", "s3": {"endpoint": "minio:9000"}}}},
        "spec.dataset.parquet.s3.endpoint: … http:// … 'minio:9000'",
    ),
    "a string of the wrong type deep inside": (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": 3}}}]},
        "spec.env[0].valueFrom.fieldRef.fieldPath: … string … 3 … integer",
    ),
}


@pytest.mark.parametrize(("spec", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_spec_beyond_a_bound_is_refused(spec: dict[str, Any], expected: str) -> None:
    assert_all_told(problems(**spec), [expected])


def test_status_takes_at_most_sixteen_metrics() -> None:
    metrics = [{"name": f"m{index}", "value": "0.5"} for index in range(17)]
    document = build_experiment() | {"status": {"trainer": {"metrics": metrics}}}
    with pytest.raises(ManifestError, match=r"status\.trainer\.metrics: .*16"):
        parse_experiment(document)


def test_a_model_built_in_python_names_its_broken_rules() -> None:
    with pytest.raises(ValueError, match=r"maxReplicas.*minReplicas.*3.*2"):
        DataWorkers(min_replicas=3, max_replicas=2)


def test_every_field_is_reached_by_the_walk() -> None:
    paths = [path for path, _ in walk_fields(DatasetExperiment)]
    assert ("spec", "pipeline", 0, "map", "resources", "gpu") in paths
    assert len(paths) == len(set(paths)) > 250


@pytest.mark.parametrize(
    ("training", "paths"),
    [
        ({"script": "train.py", "args": ["--lr", "0.1", ""]}, []),
        ({"script": "/opt/team/train.py"}, []),
        ({"script": "a/../train.py"}, ["script"]),
        ({"script": "train.sh"}, ["script"]),
        ({"script": ".py"}, ["script"]),
        ({"script": "train.py", "entrypoint": "my.own:loop"}, ["entrypoint"]),
        # The API server fills in the default, so it cannot be refused.
        ({"script": "train.py", "entrypoint": "pipeline_runtime.training.ranking:train_loop"}, []),
        ({"script": "train.py", "precision": "bfloat16"}, ["precision"]),
        ({"args": ["--lr"]}, ["args"]),
        ({"script": "train.py", "args": ["--api-key=x"]}, ["args[0]"]),
        ({"script": "train.py", "args": ["--api-key", "x"]}, ["args[1]"]),
        ({"script": "train.py", "args": ["--pad-token", "x", "--tokenizer", "y"]}, []),
        ({"script": "train.py", "args": ["s3://me:secret@bucket/"]}, ["args[0]"]),
    ],
)
def test_a_script_excludes_what_only_an_entrypoint_has(
    training: dict[str, Any], paths: list[str]
) -> None:
    assert problem_paths(training=training) == [f"spec.training.{path}" for path in paths]


BEST_AUC = {"keepBest": {"metric": "eval_auc", "mode": "Max"}}
HOLDOUT = {"holdoutPercent": 10}


@pytest.mark.parametrize(
    ("training", "paths"),
    [
        ({"model": "my.own:net", "labelColumn": "clicked"}, []),
        ({"model": "my.own:net"}, ["labelColumn"]),
        ({"model": "my.own", "labelColumn": "clicked"}, ["model"]),
        ({"model": "a:b", "labelColumn": "c", "script": "train.py"}, ["model"]),
        ({"model": "a:b", "labelColumn": "c", "entrypoint": "my.own:loop"}, ["model"]),
        ({"checkpoint": BEST_AUC, "evaluation": HOLDOUT}, []),
        ({"checkpoint": BEST_AUC}, ["checkpoint.keepBest"]),
        # Loops of the user may evaluate rows of their own.
        ({"checkpoint": BEST_AUC, "script": "train.py"}, []),
        ({"checkpoint": BEST_AUC, "entrypoint": "my.own:loop"}, []),
        ({"checkpoint": {"keepBest": {"metric": "train_loss", "mode": "Min"}}}, []),
        ({"checkpoint": {"keepBest": {"metric": "train_loss"}}}, ["checkpoint.keepBest.mode"]),
    ],
)
def test_a_model_and_its_best_checkpoint_need_their_fields(
    training: dict[str, Any], paths: list[str]
) -> None:
    assert problem_paths(training=training) == [f"spec.training.{path}" for path in paths]


def test_a_script_is_not_the_built_in_model() -> None:
    training = parse_experiment(build_experiment(training={"script": "train.py"})).spec.training
    assert not training.is_built_in
    assert not training.takes_requests
