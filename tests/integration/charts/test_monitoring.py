"""Real helm renders the chart's objects for Prometheus, Grafana and the network."""

from pathlib import Path

import yaml
from helm_chart import CHART, NAMESPACE, Helm, select

from dataset_operator.builders.name_servers import build_name_server_rules
from dataset_operator.settings import NetworkSettings


def test_the_service_is_optional(chart: Helm) -> None:
    values = {"metrics": {"service": {"annotations": {"a": "b"}}}}
    [service] = select(chart.template(values=values), "Service")
    assert service["metadata"]["annotations"] == {"a": "b"}
    values = {"metrics": {"service": {"enabled": False}}}
    assert not select(chart.template(values=values), "Service")


MONITORED = {
    "settings": {"network": {"prometheusNamespace": "monitoring"}},
    "metrics": {
        name: {"enabled": True, "namespace": "monitoring", "additionalLabels": {"release": "p"}}
        for name in ("serviceMonitor", "podMonitor", "prometheusRule")
    }
    | {"dashboards": {"enabled": True, "namespace": "monitoring", "annotations": {"f": "L"}}},
}


def test_monitors_find_the_operator_and_the_experiments_pods(chart: Helm) -> None:
    documents = chart.template(values=MONITORED)
    [service] = select(documents, "Service")
    [of_operator] = select(documents, "ServiceMonitor")
    [of_pods] = select(documents, "PodMonitor")
    for monitor in (of_operator, of_pods):
        assert monitor["metadata"]["namespace"] == "monitoring"
        assert monitor["metadata"]["labels"]["release"] == "p"
    selected = of_operator["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    assert of_operator["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}
    [endpoint] = of_operator["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s", "honorLabels": True}
    assert of_pods["spec"]["namespaceSelector"] == {"any": True}
    ports = [endpoint["port"] for endpoint in of_pods["spec"]["podMetricsEndpoints"]]
    assert ports == ["lastmile", "metrics"]

    narrow = chart.template(values={**MONITORED, "watchNamespaces": ["a"]})
    [of_pods] = select(narrow, "PodMonitor")
    assert of_pods["spec"]["namespaceSelector"] == {"matchNames": ["a"]}


def test_alerts_and_dashboards_are_the_files_of_the_chart(chart: Helm, tmp_path: Path) -> None:
    """Add a file of each kind to a copy of the chart, to show that every file is rendered."""
    copy = tmp_path / "lastmile"
    copy.mkdir()
    for path in CHART.rglob("*"):
        target = copy / path.relative_to(CHART)
        target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
    groups = [
        {"name": "g", "rules": [{"alert": "A", "expr": "up == 0", "labels": {"x": "{{ y }}"}}]}
    ]
    for name, text in (
        ("prometheus/my_alerts.yaml", yaml.safe_dump({"groups": groups})),
        ("grafana/lastmile-fleet.json", '{\n  "title": "{{ fleet }}"\n}\n'),
    ):
        (copy / "files" / name).parent.mkdir(exist_ok=True)
        (copy / "files" / name).write_text(text)
    documents = Helm(program=chart.program, home=tmp_path, chart=copy).template(values=MONITORED)

    [rule] = select(documents, "PrometheusRule", "lastmile-my-alerts")
    assert rule["spec"]["groups"] == groups
    assert rule["metadata"]["labels"]["release"] == "p"
    [dashboard] = select(documents, "ConfigMap", "lastmile-dashboard-fleet")
    assert dashboard["data"] == {"lastmile-fleet.json": '{\n  "title": "{{ fleet }}"\n}\n'}
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["metadata"]["annotations"] == {"f": "L"}
    assert dashboard["metadata"]["namespace"] == rule["metadata"]["namespace"] == "monitoring"


def test_the_alert_on_a_missing_operator_names_the_releases_namespace(chart: Helm) -> None:
    [rule] = select(chart.template(values=MONITORED), "PrometheusRule")
    written = yaml.safe_load((CHART / "files" / "prometheus" / "rules.yaml").read_text())
    pairs = zip(written["groups"], rule["spec"]["groups"], strict=True)
    differ = [
        (theirs["alert"], theirs["expr"])
        for before, after in pairs
        for ours, theirs in zip(before["rules"], after["rules"], strict=True)
        if ours != theirs
    ]
    here = f'absent(lastmile_operator_build_info{{namespace="{NAMESPACE}"}})'
    assert differ == [("LastmileOperatorDown", here)]


def test_prometheus_and_grafana_are_off_by_default(chart: Helm) -> None:
    documents = chart.template()
    kinds = {document["kind"] for document in documents}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert len(select(documents, "ConfigMap")) == 1


def test_no_pod_reaches_the_operator_by_default(chart: Helm) -> None:
    documents = chart.template()
    [deployment] = select(documents, "Deployment")
    [policy] = select(documents, "NetworkPolicy")
    assert policy["spec"] == {
        "podSelector": deployment["spec"]["selector"],
        "policyTypes": ["Ingress"],
        "ingress": [],
    }
    peers = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    narrow = chart.template(values={"networkPolicy": {"metricsFrom": peers}})
    [rule] = select(narrow, "NetworkPolicy")[0]["spec"]["ingress"]
    assert rule == {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": peers}
    values = {"networkPolicy": {"enabled": False}}
    assert not select(chart.template(values=values), "NetworkPolicy")


def test_the_operators_egress_can_be_restricted(chart: Helm) -> None:
    more = {"to": [{"namespaceSelector": {}}], "ports": [{"port": 9090}]}
    egress = {"enabled": True, "apiServerCidrs": ["10.0.0.1/32"], "rules": [more]}
    documents = chart.template(values={"networkPolicy": {"egress": egress}})
    [policy] = select(documents, "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    *names, api, experiments, last = policy["spec"]["egress"]
    assert names == build_name_server_rules(NetworkSettings())
    assert api["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert [port["port"] for port in api["ports"]] == [443, 6443]
    assert [port["port"] for port in experiments["ports"]] == [8265, 8080, 9464]
    assert last == more
    wide = chart.template(values={"networkPolicy": {"egress": {"enabled": True}}})
    assert "to" not in select(wide, "NetworkPolicy")[0]["spec"]["egress"][3]
    own = {"enabled": True, "nameServers": ["OpenShift", more]}
    documents = chart.template(values={"networkPolicy": {"egress": own}})
    openshift, custom, *_ = select(documents, "NetworkPolicy")[0]["spec"]["egress"]
    assert (openshift, custom) == (names[2], more)
