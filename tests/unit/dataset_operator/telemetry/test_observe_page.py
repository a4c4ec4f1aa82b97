"""All that docs/operating/observe.md shows exists: the monitors' ports and labels, the pictures."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataset_operator.api import (
    EXPERIMENT_LABEL,
    HEAD,
    RAY_METRICS_PORT,
    ROLE_LABEL,
    RUNTIME_METRICS_PORT,
)

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "operating" / "observe.md").read_text()
OPERATOR = ROOT / "deploy" / "operator" / "operator.yaml"


def read_monitors() -> list[dict[str, Any]]:
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return list(yaml.safe_load_all(block))


def name_label(label: str) -> str:
    """As Prometheus finds a pod's label."""
    return "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)


def read_operator(kind: str) -> dict[str, Any]:
    """Return the only object of a kind in the plain manifest."""
    documents = yaml.safe_load_all(OPERATOR.read_text())
    [found] = [document for document in documents if document["kind"] == kind]
    return dict(found["spec"])


def test_the_plain_manifest_lets_nobody_read_the_metrics() -> None:
    policy = read_operator("NetworkPolicy")
    assert policy["podSelector"] == read_operator("Deployment")["selector"]
    assert (policy["policyTypes"], policy["ingress"]) == (["Ingress"], [])


def test_the_operators_monitor_finds_it() -> None:
    operator, _ = read_monitors()
    pods = read_operator("Deployment")["template"]
    assert operator["spec"]["selector"]["matchLabels"] == pods["metadata"]["labels"]
    ports = {port["name"] for port in pods["spec"]["containers"][0]["ports"]}
    [endpoint] = operator["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports
    assert endpoint["honorLabels"] is True  # or `namespace` would be the operator's own


def test_the_monitor_of_experiments_gives_the_labels_that_dashboards_ask_for() -> None:
    _, pods = read_monitors()
    [selected] = pods["spec"]["selector"]["matchExpressions"]
    assert selected == {"key": EXPERIMENT_LABEL, "operator": "Exists"}
    driver, ray = pods["spec"]["podMetricsEndpoints"]
    named = {"sourceLabels": [name_label(EXPERIMENT_LABEL)], "targetLabel": "experiment"}
    assert named in driver["relabelings"]
    assert named in ray["relabelings"]
    role = {"sourceLabels": [name_label(ROLE_LABEL)], "targetLabel": "role"}
    assert role in ray["relabelings"]
    heads = {"sourceLabels": [name_label(ROLE_LABEL)], "regex": HEAD, "action": "keep"}
    assert heads in driver["relabelings"]
    # As test_builders.py finds them on the pods.
    assert (driver["port"], ray["port"]) == ("lastmile", "metrics")
    assert str(RUNTIME_METRICS_PORT) in PAGE
    assert str(RAY_METRICS_PORT) in PAGE


@pytest.mark.parametrize("name", ["lastmile-fleet.png", "lastmile-experiment.png"])
def test_the_pictures_are_there(name: str) -> None:
    assert f"](pictures/{name})" in PAGE
    assert (ROOT / "docs" / "operating" / "pictures" / name).read_bytes().startswith(b"\x89PNG")
