"""A real API server and the models agree on DatasetExperiments, except for the listed rules.

Documents are drawn from the models, and most of them are then changed. Both sides judge each; the
API server does so in a dry run with fieldValidation=Strict, as for kubectl.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import crd_specs as specs
import pytest
import yaml
from crd_agreement import ONLY_MODELS_SEE, Api, Document, check_equal, experiment, problems
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.config import GROUP, ExperimentStatus, load_manifests, parse_experiment
from tools.cluster.box import Box, KubectlError
from tools.crd import CRD_FILE, PLURAL

ROOT = Path(__file__).parents[4]
CORPUS = ROOT / "tests" / "corpus" / "broken"
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
    "an output in a catalog that is not listed": (
        {"output": {"iceberg": {"catalog": "m", "table": "a.b"}}},
        r"spec\.output: .*spec\.catalogs",
    ),
    "a step of two kinds": (
        {"pipeline": [{"filter": {"where": "a"}, "drop": {"columns": ["a"]}}]},
        r"spec\.pipeline\[0\]: .*antiJoin, cast",
    ),
    "a table and a training": (
        {"output": {"parquet": {"uri": "x/"}}, "training": {"epochs": 1}},
        r"spec\.output: .*training",
    ),
    "a table and trainers": (
        {"output": {"parquet": {"uri": "x/"}}, "trainers": {}},
        r"spec\.trainers: .*output",
    ),
    "a table and the GPUs' utilization": (
        {"output": {"parquet": {"uri": "x/"}}, "autoscaling": {"signal": "GpuUtilization"}},
        r"spec\.autoscaling\.signal: .*Rows",
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
    trainer |= {"samplesPerSecond": "12300", "estimatedRemaining": "45m"}
    status = {
        "phase": "Training",
        "gpus": 8,
        "dataWorkers": {"currentReplicas": 3, "desiredReplicas": 5},
        "trainer": trainer,
        "output": {"rows": 1234567},
        "usage": {"cost": "27.50"},
    }
    assert api.set_status("first", status) == ""
    for words in ("dsexp", "lastmile"):
        head, row = crd.kubectl("get", words, "-n", namespace).splitlines()
        assert head.split() == [
            *("NAME", "PHASE", "GPUS", "WORKERS", "DESIRED", "GPU%", "WAIT%", "PROGRESS"),
            *("ROWS", "ROWS/S", "ETA", "COST", "AGE"),
        ]
        assert row.split()[:-1] == [
            *("first", "Training", "8", "3", "5", "97", "2", "12"),
            *("1234567", "12300", "45m", "27.50"),
        ]
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
