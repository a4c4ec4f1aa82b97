"""A real API server and the models agree on DatasetExperiments, except for the listed rules.

Documents are drawn from the models, and most of them are then changed. Both sides judge each; the
API server does so in a dry run with fieldValidation=Strict, as for kubectl.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes import client, config
from property_tests import examples

from pipeline_runtime.config import (
    GROUP,
    VERSION,
    ExperimentStatus,
    load_manifests,
    parse_experiment,
)
from pipeline_runtime.config.reading.validation import judge
from pipeline_runtime.config.texts.yaml_documents import format_path
from tools.cluster.box import Box
from tools.cluster.errors import KubectlError
from tools.crd import CRD_FILE, PLURAL

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "corpus" / "broken"
Document = dict[str, Any]


def _load_specs() -> Any:
    """Load the generator beside this file, since test folders are not packages."""
    found = importlib.util.spec_from_file_location(
        "crd_specs", Path(__file__).with_name("crd_specs.py")
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["crd_specs"] = module
    found.loader.exec_module(module)
    return module


specs = _load_specs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A rule that one side checks and the other cannot.

    Attributes:
        reason: why the other side cannot check it.
        problem: a pattern of the error of the side that does.
        example: a spec that shows that the entry is still needed.
    """

    reason: str
    problem: str
    example: Document


DATASET = {"dataset": {"parquet": {"uri": "x/"}}}

TWO_TO_ONE = [{"name": "a", "newName": "c"}, {"name": "b", "newName": "c"}]

ONLY_MODELS_SEE = {
    "credentials in free-form options": Difference(
        reason="`options` and `config` have no schema, and CEL sees only fields with a schema",
        problem=r"^spec\.(pipeline\[\d+\]\.map\.options|training\.config)\b.* must not carry",
        example=DATASET | {"training": {"config": {"apiKey": "x"}}},
    ),
    "a secret by the name of its argument": Difference(
        reason="the name may be the argument before, and a list of texts has no place for that",
        problem=r"^spec\.training\.args\[\d+\]: must not carry",
        example=DATASET | {"training": {"script": "train.py", "args": ["--api-key", "x"]}},
    ),
    "how deep something is nested": Difference(
        reason="only a schema could bound it, and these fields have none",
        problem=r"\bnested\b",
        example=DATASET | {"training": {"config": json.loads('{"a":' * 70 + "0" + "}" * 70)}},
    ),
    "most of a pod template": Difference(
        reason="a template is Kubernetes' own, of any version: the operator judges it by a dry run",
        problem=r"^spec\.(head|trainers|dataWorkers)\.template\b",
        example=DATASET
        | {"head": {"template": {"spec": {"volumes": [{"hostPath": {"path": "/"}}]}}}},
    ),
    "two columns renamed to one": Difference(
        reason="comparing every new name with every other is over the CEL budget",
        problem=r"\.rename\.columns: .*\btwo columns\b",
        example=DATASET | {"pipeline": [{"rename": {"columns": TWO_TO_ONE}}]},
    ),
    "a repeated column of a key": Difference(
        reason="an item of `keys`, a text or a mapping, has no type, so CEL does not see the list",
        problem=r"\.keys\[\d+\]: must not repeat\b",
        example=DATASET
        | {
            "pipeline": [
                {"antiJoin": {"parquet": {"uri": "x/"}, "keys": ["a", {"left": "a", "right": "b"}]}}
            ]
        },
    ),
    "a null in the key of a join": Difference(
        reason="the API server checks no keyword but type and enum of a null, and a key, a text or "
        "a mapping, has neither",
        problem=r"\.keys\[\d+\]: .*\(null\)",
        example=DATASET | {"pipeline": [{"antiJoin": {"parquet": {"uri": "x/"}, "keys": [None]}}]},
    ),
    "null": Difference(
        reason="the API server takes nulls out before it looks: a field is absent, or its default",
        problem=r"^(?!\S*\[\d+\]: ).*\(null\)",
        example=DATASET | {"suspend": None},
    ),
    "a whole number with a decimal point": Difference(
        reason="JSON knows one kind of number, and the API server takes 7.0 for an integer",
        problem=r"\binteger\b.* -?\d+\.0 \(a number\)",
        example=DATASET | {"training": {"epochs": 7.0}},
    ),
    "a request over its limit, of rarer resources": Difference(
        reason="quantities are expensive in CEL, so it compares only the three usual resources",
        problem=r"resources\.requests\.(?!cpu|memory|ephemeral-storage).*\blimits\b",
        example=DATASET
        | {
            "head": {
                "resources": {"requests": {"example.com/x": 2}, "limits": {"example.com/x": 1}}
            }
        },
    ),
    "a request over its limit by less than a billionth": Difference(
        reason="Kubernetes rounds quantities up to billionths",
        problem=r"\blimits\.\S+ .*\dn\b.*\dn\b",
        example=DATASET
        | {"head": {"resources": {"requests": {"cpu": "0.6n"}, "limits": {"cpu": "0.5n"}}}},
    ),
    "a secret's name in mixed case": Difference(
        reason="finding the words of `dbPassword` takes look-ahead, which RE2 lacks",
        problem=r"^spec\.env\[\d+\]\.value: must not hold a secret, got a value for "
        r"(?=\S*[a-z])(?=\S*[A-Z])",
        example=DATASET | {"env": [{"name": "dbPassword", "value": "x"}]},
    ),
    "a store's URI with more than a location": Difference(
        reason="a newer rule, which must not make the API server refuse older objects",
        problem=r"\b(uris?(\[\d+\])?|root|warehouse): must (have a scheme of|be like|not have)",
        example=DATASET | {"artifacts": {"uri": "gs://b/p?endpoint_override=h"}},
    ),
    "a percent-encoded key in a query": Difference(
        reason="a pattern does not decode",
        problem=r"\bcredentials\b.*\bquery\b",
        example=DATASET | {"artifacts": {"uri": "https://h/p?%74oken=1"}},
    ),
}

# Files of the corpus that the API server accepts, and why. (Errors about the columns of a table
# show only when the table is read; those files end in -planned.)
ADMITTED = {
    "06-yaml-duplicate-key": "kubectl converts it to JSON, and keeps the last of two equal keys",
    "11-yaml-key-not-a-text": "kubectl converts it to JSON, whose keys are texts",
    "16-another-kind-only": "it is a ConfigMap",
    "29-nothing-given": "null",
    "45-credentials-in-options": "credentials in free-form options",
    "53-template-ray-container": "most of a pod template",
    "70-template-security": "most of a pod template",
    **{
        path.stem: "the columns of a table"
        for path in CORPUS.glob("*-planned.yaml")
        if path.stem != "69-all-fields-at-once-planned"  # has a bare y, which kubectl reads as true
    },
}


class Api:
    """The API server's experiments in one namespace."""

    def __init__(self, box: Box, namespace: str) -> None:
        self._objects = client.CustomObjectsApi(config.new_client_from_config(str(box.kubeconfig)))
        self._place = {
            "group": GROUP,
            "version": VERSION,
            "namespace": namespace,
            "plural": PLURAL,
        }

    def create(self, document: Document, *, strict: bool = True, dry_run: bool = True) -> Document:
        """Create an experiment, by default in a dry run; return it as stored."""
        options = {"dry_run": "All"} if dry_run else {}
        mode = "Strict" if strict else "Ignore"
        return self._objects.create_namespaced_custom_object(
            **self._place, body=document, field_validation=mode, **options
        )

    def refusal(self, document: Document) -> str:
        """Return why the API server refuses a document; empty if it accepts it."""
        try:
            self.create(document)
        except client.ApiException as error:
            if error.status not in (400, 422):
                raise
            return str(json.loads(error.body)["message"])
        return ""

    def patch(self, name: str, body: Document) -> str:
        """Change an experiment; return why the API server refuses it, or ""."""
        return self._patch(self._objects.patch_namespaced_custom_object, name, body)

    def set_status(self, name: str, status: Document) -> str:
        """Replace an experiment's status; return why the API server refuses it, or ""."""
        call = self._objects.patch_namespaced_custom_object_status
        return self._patch(call, name, [{"op": "add", "path": "/status", "value": status}])

    def _patch(self, call: Callable[..., Any], name: str, body: Any) -> str:
        kind = "json-patch" if isinstance(body, list) else "merge-patch"
        strict = {"field_validation": "Strict", "_content_type": f"application/{kind}+json"}
        try:
            call(**self._place, name=name, body=body, **strict)
        except client.ApiException as error:
            return str(json.loads(error.body)["message"])
        return ""

    def get(self, name: str) -> Document:
        """Return an experiment as it is stored."""
        return self._objects.get_namespaced_custom_object(**self._place, name=name)

    def exists(self, name: str) -> bool:
        """Return whether an experiment of this name exists."""
        listed = self._objects.list_namespaced_custom_object(**self._place)
        return name in {item["metadata"]["name"] for item in listed["items"]}


@pytest.fixture(scope="module")
def crd(box: Box) -> Box:
    """Install the committed CRD in the cluster."""
    box.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    box.kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{PLURAL}.{GROUP}")
    return box


@pytest.fixture(scope="module")
def shared_api(crd: Box) -> Api:
    """Return the API of the namespace `default`, for dry runs only."""
    return Api(crd, "default")


@pytest.fixture
def api(crd: Box, namespace: str) -> Api:
    """Return the API of the test's own namespace."""
    return Api(crd, namespace)


def experiment(name: str = "first", **spec: Any) -> Document:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": copy.deepcopy(DATASET | spec),
    }


def problems(document: Document) -> list[str]:
    """Return the problems that the models find in a document."""
    return [f"{format_path(path)}: {message}" for path, message in judge(document).found]


def is_listed(said: list[str], differences: dict[str, Difference]) -> bool:
    """Return whether the differences list every problem that the models name.

    The models name 50 problems of a document, and count the others in one more.
    """
    patterns = [re.compile(difference.problem, re.DOTALL) for difference in differences.values()]
    patterns.append(re.compile(r"^: breaks [\d,]+ more rules"))
    return all(any(pattern.search(problem) for pattern in patterns) for problem in said)


def check_equal(api: Api, document: Document) -> str:
    """Fail unless both sides agree; return the problems that the models find."""
    ours, theirs = problems(document), api.refusal(document)
    if not ours and document["spec"].get("output") is not None:
        # Valid, and refused as long as the operator cannot run it.
        assert "spec.output" in theirs
    elif bool(ours) != bool(theirs):
        listed = bool(ours) and is_listed(ours, ONLY_MODELS_SEE)
        assert listed, f"models: {ours or 'good'}\nAPI server: {theirs or 'good'}"
    return "\n".join(ours)


def profile(num_examples: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(
        max_examples=examples(num_examples),
        deadline=None,
        suppress_health_check=slow,
        derandomize=True,
        database=None,
    )


@profile(100)
@given(document=specs.documents())
def test_the_api_server_accepts_valid_documents_with_the_same_defaults(
    shared_api: Api, document: Document
) -> None:
    assert problems(document) == []
    stored = shared_api.create(document)
    assert (
        parse_experiment(stored).spec.model_dump() == parse_experiment(document).spec.model_dump()
    )


@profile(250)
@given(document=specs.documents(), data=st.data())
def test_both_sides_agree_on_documents_with_one_change(
    shared_api: Api, document: Document, data: st.DataObject
) -> None:
    changed = copy.deepcopy(document)
    specs.mutate(data, changed)
    check_equal(shared_api, changed)


@pytest.mark.parametrize("name", ONLY_MODELS_SEE)
def test_the_api_server_still_does_not_see(shared_api: Api, name: str) -> None:
    difference = ONLY_MODELS_SEE[name]
    said = problems(experiment(**difference.example))
    assert len(said) == 1
    assert re.search(difference.problem, said[0])
    assert shared_api.refusal(experiment(**difference.example)) == ""


REFUSED: dict[str, tuple[Document, str]] = {
    "fewer workers at most than at least": (
        {"dataWorkers": {"minReplicas": 4, "maxReplicas": 2}},
        r"spec\.dataWorkers\.maxReplicas: .*minReplicas",
    ),
    "more workers at least than the default at most": (
        {"dataWorkers": {"minReplicas": 51}},
        r"spec\.dataWorkers\.maxReplicas: .*minReplicas",
    ),
    "two sources": (
        {"dataset": {"parquet": {"uri": "x/"}, "iceberg": {"catalog": "m", "table": "a.b"}}},
        r"spec\.dataset: .*parquet, iceberg",
    ),
    "a step of two kinds": (
        {"pipeline": [{"filter": {"where": "a"}, "drop": {"columns": ["a"]}}]},
        r"spec\.pipeline\[0\]: .*antiJoin, cast",
    ),
    "a table to write, which the operator cannot do yet": (
        {"output": {"parquet": {"uri": "x/"}}},
        r"spec\.output: .*lastmile run",
    ),
    "a misspelt field": (
        {"training": {"batchsize": 1}},
        r'unknown field "spec\.training\.batchsize"',
    ),
    "a password in a URI": (
        {"storage": {"root": "s3://key:word@bucket/"}},
        r"spec\.storage\.root",
    ),
    "a host namespace": (
        {"head": {"template": {"spec": {"hostNetwork": True}}}},
        r"spec\.head\.template\.spec\.hostNetwork: Unsupported value",
    ),
}


@pytest.mark.parametrize(("spec", "message"), REFUSED.values(), ids=REFUSED)
def test_the_api_server_names_the_field_and_the_rule(
    shared_api: Api, spec: Document, message: str
) -> None:
    assert re.search(message, shared_api.refusal(experiment(**spec)))


def test_a_name_of_41_characters_is_refused(shared_api: Api) -> None:
    assert shared_api.refusal(experiment("x" * 40)) == ""
    assert "at most 40 characters" in shared_api.refusal(experiment("x" * 41))
    assert "DNS-1035" in shared_api.refusal(experiment("1st"))


ROOTS: dict[str, tuple[Document, Document]] = {
    "changed": ({"storage": {"root": "s3://a/"}}, {"storage": {"root": "s3://b/"}}),
    "added": ({}, {"storage": {"root": "s3://b/"}}),
    "added to a Secret": (
        {"storage": {"secretRef": {"name": "a"}}},
        {"storage": {"root": "s3://b/"}},
    ),
    "removed": ({"storage": {"root": "s3://a/"}}, {"storage": {"root": None}}),
    "removed with its parent": ({"storage": {"root": "s3://a/"}}, {"storage": None}),
}


@pytest.mark.parametrize(("before", "after"), ROOTS.values(), ids=ROOTS)
def test_the_storage_root_cannot_be(api: Api, before: Document, after: Document) -> None:
    api.create(experiment(**before), dry_run=False)
    assert "storage.root" in api.patch("first", {"spec": after})
    assert api.patch("first", {"spec": {"suspend": True}}) == ""


def test_other_storage_fields_may_change(api: Api) -> None:
    api.create(experiment(storage={"root": "s3://a/"}), dry_run=False)
    assert api.patch("first", {"spec": {"storage": {"secretRef": {"name": "keys"}}}}) == ""


def test_typos_of_a_lax_client_are_pruned(shared_api: Api) -> None:
    stored = shared_api.create(experiment(training={"batchsize": 1}), strict=False)
    assert stored["spec"]["training"].get("batchsize") is None
    assert stored["spec"]["training"]["batchSize"] == 4096


def test_the_status_is_a_subresource_that_the_models_read(api: Api) -> None:
    status = {
        "phase": "Training",
        "gpus": 8,
        "dataWorkers": {"currentReplicas": 3, "desiredReplicas": 5},
        "trainer": {"progressPercent": 12, "samplesPerSecond": "1.5e3"},
        "conditions": [
            {
                "type": "Accepted",
                "status": "True",
                "reason": "Valid",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    api.create({**experiment(), "status": status}, dry_run=False)
    assert "status" not in api.get("first")
    assert api.set_status("first", status) == ""
    read = parse_experiment(api.get("first")).status
    assert read is not None
    assert read.trainer is not None
    assert (read.gpus, read.trainer.samples_per_second) == (8, "1.5e3")
    wrong = {"trainer": {"progressPercent": 101}}
    assert "less than or equal to 100" in api.set_status("first", wrong)


@profile(40)
@given(status=specs.models(ExperimentStatus))
def test_a_valid_status_is_stored_unchanged(api: Api, status: Document) -> None:
    if not api.exists("first"):
        api.create(experiment(), dry_run=False)
    assert api.set_status("first", status) == ""
    assert api.get("first").get("status", {}) == status


def test_kubectl_lists_and_explains(crd: Box, api: Api, namespace: str) -> None:
    api.create(experiment(), dry_run=False)
    trainer = {"progressPercent": 12, "gpuUtilizationPercent": 97, "productionWaitPercent": 2}
    status = {
        "phase": "Training",
        "gpus": 8,
        "dataWorkers": {"currentReplicas": 3, "desiredReplicas": 5},
        "trainer": trainer,
    }
    assert api.set_status("first", status) == ""
    for words in ("dsexp", "lastmile"):
        head, row = crd.kubectl("get", words, "-n", namespace).splitlines()
        assert head.split() == [
            *("NAME", "PHASE", "GPUS", "WORKERS", "DESIRED", "GPU%", "WAIT%", "PROGRESS", "AGE")
        ]
        assert row.split()[:-1] == ["first", "Training", "8", "3", "5", "97", "2", "12"]
    explained = crd.kubectl("explain", "dsexp.spec.dataWorkers.maxReplicas")
    assert "`minReplicas`" in explained


def test_two_appliers_share_the_environment_but_not_the_pipeline(
    crd: Box, api: Api, namespace: str
) -> None:
    def apply(manager: str, **spec: Any) -> None:
        document = json.dumps(experiment(**spec))
        words = ("apply", "--server-side", f"--field-manager={manager}", "-n", namespace, "-f", "-")
        crd.kubectl(*words, stdin=document)

    steps = [{"select": {"columns": ["b", "a"]}}]
    apply("person", env=[{"name": "A", "value": "1"}], pipeline=steps)
    apply("platform", env=[{"name": "B", "value": "2"}])
    assert [item["name"] for item in api.get("first")["spec"]["env"]] == ["A", "B"]
    apply("person", env=[{"name": "A", "value": "1"}], pipeline=[{"select": {"columns": ["a"]}}])
    assert api.get("first")["spec"]["pipeline"] == [{"select": {"columns": ["a"]}}]
    with pytest.raises(KubectlError, match="conflict"):
        apply("platform", pipeline=steps)


SAMPLES = sorted((ROOT / "deploy" / "samples").glob("*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_accepted(shared_api: Api, path: Path) -> None:
    for loaded in load_manifests(path):
        document = copy.deepcopy(loaded.document)
        document["metadata"].pop("namespace", None)
        assert shared_api.refusal(document) == ""


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.yaml")), ids=lambda path: path.stem)
def test_broken_manifests_are_refused_unless_listed(crd: Box, path: Path) -> None:
    words = ("create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", str(path))
    try:
        crd.kubectl(*words)
    except KubectlError:
        assert path.stem not in ADMITTED
    else:
        assert path.stem in ADMITTED


def test_the_api_server_stores_the_crd_as_committed(crd: Box) -> None:
    stored = json.loads(crd.kubectl("get", f"crd/{PLURAL}.{GROUP}", "-o", "json"))
    (version,) = stored["spec"]["versions"]
    (committed,) = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))["spec"]["versions"]
    assert version["schema"] == committed["schema"]
