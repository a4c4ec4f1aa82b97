"""The monitors and rules are valid by the Prometheus operator's own CRDs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helm_chart import CHART, Document, Helm

from tools.build_tools import MONITORING_CRDS, find_built
from tools.cluster.box import Box, KubectlError

ROOT = CHART.parents[1]
GROUP = "monitoring.coreos.com"
KINDS = {"ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors"}
KINDS |= {"PrometheusRule": "prometheusrules"}
MONITORED = CHART / "examples" / "monitored.yaml"
PAGE = ROOT / "docs" / "operating" / "observe.md"
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"


@pytest.fixture(scope="module")
def watched(box: Box) -> Iterator[Box]:
    """The cluster with these CRDs, which it has for this module alone."""
    folder = find_built(MONITORING_CRDS)
    paths = [str(folder / f"{GROUP}_{plural}.yaml") for plural in KINDS.values()]
    files = [word for path in paths for word in ("-f", path)]
    names = [f"crd/{plural}.{GROUP}" for plural in KINDS.values()]
    box.kubectl("apply", "--server-side", *files)
    box.kubectl("wait", "--for=create", *names)
    box.kubectl("wait", "--for=condition=Established", *names)
    yield box
    box.kubectl("delete", *names)


def apply(box: Box, namespace: str, documents: list[Document]) -> str:
    """As the API server would take them, each of them in that namespace."""
    items = [{**d, "metadata": {**d["metadata"], "namespace": namespace}} for d in documents]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    how = ("--server-side", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    return box.kubectl("apply", *how, stdin=listed)


def test_the_charts_monitors_and_rules_are_what_the_operator_of_prometheus_takes(
    watched: Box, namespace: str, helm: str, tmp_path: Path
) -> None:
    values = yaml.safe_load(MONITORED.read_text())
    rendered = Helm(program=helm, home=tmp_path).template(values=values)
    found = [d for d in rendered if d["apiVersion"].startswith(f"{GROUP}/")]
    assert {document["kind"] for document in found} == set(KINDS)
    assert len(apply(watched, namespace, found).split()) == len(found)

    spoilt = json.loads(json.dumps(found).replace("podMetricsEndpoints", "endpoints"))
    with pytest.raises(KubectlError, match=r'PodMonitor.spec.: unknown field "endpoints"'):
        apply(watched, namespace, spoilt)


@pytest.mark.slow
def test_so_are_the_examples_of_the_page(watched: Box, namespace: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monitors = [d for block in blocks for d in yaml.safe_load_all(block) if "kind" in d]
    assert [document["kind"] for document in monitors] == ["PodMonitor", "PodMonitor"]
    rule: Document = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "lastmile"},
        "spec": yaml.safe_load(RULES.read_text()),
    }
    assert len(apply(watched, namespace, [*monitors, rule]).split()) == 3
