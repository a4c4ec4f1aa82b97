"""The operator is upgraded, rolled back, removed and installed again while real pods train."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from release import OPERATOR_NAMESPACE, ROOT
from stage import Stage, condition

# An operator that outlives its experiments, six minutes in pods.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAMESPACE = "leaving"
# Pods may take their half minute to end, and Kubernetes then looks seldom: 75 s where nothing else
# runs, more than 120 beside other tests.
GONE = "--timeout=600s"
NAME = "endless"
OPERATORS = ("-n", OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=lastmile-operator")
EXPERIMENT = ("-n", NAMESPACE, "-l", f"experiments.lastmile.dev/experiment={NAME}")
EPOCHS = 10_000  # it trains until it is taken away


@pytest.fixture
def leaving(stage: Stage) -> Iterator[Stage]:
    """A namespace; after the test it is deleted, and the operator is there, whatever happened."""
    stage.node.kubectl("create", "namespace", NAMESPACE)
    secret = {"metadata": {"name": "storage"}, "stringData": stage.store.environment}
    document = json.dumps({"apiVersion": "v1", "kind": "Secret", **secret})
    stage.node.kubectl("create", "-n", NAMESPACE, "-f", "-", stdin=document)
    yield stage
    stage.node.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    if not stage.release.is_installed():
        stage.release.install()


def test_training_goes_on_while_the_operator_comes_and_goes(leaving: Stage) -> None:
    elsewhere = leaving.within(NAMESPACE)
    elsewhere.apply(endless())
    elsewhere.until(NAME, lambda found: condition(found, "Training"))
    pods, operators = list_uids(leaving, *EXPERIMENT), list_uids(leaving, *OPERATORS)
    assert len(pods) == 4  # a head, a trainer, two data workers

    leaving.release.upgrade(podAnnotations={"example.com/upgraded": "yes"})
    upgraded = list_uids(leaving, *OPERATORS)
    assert not upgraded & operators
    assert list_uids(leaving, *EXPERIMENT) == pods

    leaving.release.command("rollback", "--wait")
    assert not list_uids(leaving, *OPERATORS) & upgraded
    assert list_uids(leaving, *EXPERIMENT) == pods
    found = elsewhere.get(NAME)
    assert condition(found, "Training")
    assert [found["status"][field] for field in ("run", "attempt")] == [1, 1]
    assert found["metadata"]["finalizers"]

    leaving.release.command("uninstall", "--wait")
    assert not list_uids(leaving, *OPERATORS)
    assert not elsewhere.get(NAME)["metadata"].get("finalizers")
    assert list_uids(leaving, *EXPERIMENT) == pods
    leaving.node.kubectl("delete", "namespace", NAMESPACE, GONE)

    leaving.release.install()
    leaving.apply(endless(suspend=True))
    leaving.until(NAME, lambda found: condition(found, "Suspended"))
    leaving.kubectl("delete", "dsexp", NAME, "--timeout=60s")


def endless(*, suspend: bool = False) -> str:
    """The quickstart, which does not end by itself."""
    document: dict[str, Any] = yaml.safe_load(
        (ROOT / "deploy" / "samples" / "quickstart.yaml").read_text()
    )
    document["metadata"]["name"] = NAME
    document["spec"] |= {"suspend": suspend}
    document["spec"]["training"] |= {"epochs": EPOCHS}
    return yaml.safe_dump(document)


def list_uids(stage: Stage, *selected: str) -> set[str]:
    """Return the uids of the selected pods."""
    listed = json.loads(stage.node.kubectl("get", "pods", *selected, "-o", "json"))["items"]
    stay = [pod["metadata"] for pod in listed if "deletionTimestamp" not in pod["metadata"]]
    return {metadata["uid"] for metadata in stay}
