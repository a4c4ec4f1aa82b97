"""Settings of the source of metrics: valid ones and refused ones."""

import asyncio
from typing import Any

import aiohttp
import pytest
from kubernetes.aio.client import ApiClient, Configuration
from pydantic import ValidationError

from dataset_operator.api import TRAINERS
from dataset_operator.observed import Pod
from dataset_operator.ray.endpoints import DirectEndpoint, ProxyEndpoint, build_reach_pod
from dataset_operator.settings import parse_settings
from dataset_operator.sources.choice import build_source
from dataset_operator.sources.driver_metrics import RuntimeSource
from dataset_operator.sources.prometheus import PrometheusSource

URL = "https://prometheus.example.com/prefix/"


def parse(metrics: dict[str, Any]) -> Any:
    return parse_settings({"runtimeImage": "runtime:1", "metrics": metrics})


def test_the_settings_select_the_source() -> None:
    async def build(metrics: dict[str, Any]) -> Any:
        async with ApiClient(Configuration()) as client, aiohttp.ClientSession() as session:
            reach = build_reach_pod(client, session, in_cluster=True)
            return build_source(parse(metrics).metrics, session, reach)

    assert isinstance(asyncio.run(build({})), RuntimeSource)
    named = asyncio.run(build({"source": "Prometheus", "prometheus": {"url": URL}}))
    assert isinstance(named, PrometheusSource)
    assert named.settings.url == "https://prometheus.example.com/prefix"


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"source": "Prometheus"}, "prometheus"),
        ({"source": "dcgm"}, "'Runtime' or 'Prometheus'"),
        ({"prometheus": {}}, r"prometheus\.url"),
        ({"prometheus": {"url": "prometheus:9090"}}, r"prometheus\.url"),
        ({"prometheus": {"url": "http://host:99999"}}, r"prometheus\.url"),
        ({"prometheus": {"url": "http://host/?a=b"}}, r"prometheus\.url"),
        ({"prometheus": {"url": URL, "timeoutSeconds": 60}}, r"timeoutSeconds\n.* 10"),
        ({"prometheus": {"url": URL, "podLabel": 'pod="x"'}}, "podLabel"),
    ],
)
def test_invalid_metrics_settings_name_their_field(metrics: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        parse(metrics)


@pytest.mark.parametrize(
    ("ip", "host"), [("10.0.0.7", "10.0.0.7"), ("fd00::7", "[fd00::7]")], ids=["IPv4", "IPv6"]
)
def test_pods_are_reached_directly_or_through_the_proxy(ip: str, host: str) -> None:
    pod = Pod(name="clicks-t", uid="t", role=TRAINERS, ready=True, ip=ip)

    async def reach(*, in_cluster: bool) -> Any:
        async with ApiClient(Configuration()) as client, aiohttp.ClientSession() as session:
            return build_reach_pod(client, session, in_cluster=in_cluster)("team", pod)

    inside, outside = asyncio.run(reach(in_cluster=True)), asyncio.run(reach(in_cluster=False))
    assert isinstance(inside, DirectEndpoint)
    assert isinstance(outside, ProxyEndpoint)
    assert inside.host == host
    assert outside.path == "/api/v1/namespaces/team/pods/clicks-t"
