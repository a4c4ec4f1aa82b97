"""Where requests to a head go, in the cluster and from outside; nothing is sent."""

import asyncio

import aiohttp
import pytest
from kubernetes.aio.client import ApiClient, Configuration

from dataset_operator.names import Owner
from dataset_operator.ray.endpoints import ProxyEndpoint, ServiceEndpoint, build_connect
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.settings import parse_settings

OWNER = Owner(name="n" * 40, namespace="team", uid="0f3c6c1e-1111")
SETTINGS = parse_settings({"runtimeImage": "runtime:1", "storageRoot": "s3://bucket/"})


def connect(service: str | None, *, in_cluster: bool) -> HttpRayJobs:
    async def resolve() -> HttpRayJobs:
        async with ApiClient(Configuration()) as client, aiohttp.ClientSession() as session:
            resolver = build_connect(client, session, SETTINGS, in_cluster=in_cluster)
            jobs = resolver(OWNER, "token", service)
        assert isinstance(jobs, HttpRayJobs)
        return jobs

    return asyncio.run(resolve())


@pytest.mark.parametrize(
    ("service", "name"),
    [(None, f"{OWNER.ray_cluster}-head-svc"), ("its-own-svc", "its-own-svc")],
    ids=["KubeRay's own name", "the name in the RayCluster's status"],
)
def test_the_heads_service_is_asked_directly_or_through_the_proxy(
    service: str | None, name: str
) -> None:
    inside = connect(service, in_cluster=True).endpoint
    outside = connect(service, in_cluster=False).endpoint
    assert isinstance(inside, ServiceEndpoint)
    assert isinstance(outside, ProxyEndpoint)
    assert inside.host == f"{name}.team.svc"
    assert outside.path == f"/api/v1/namespaces/team/services/{name}"


def test_the_longest_name_is_a_services_name() -> None:
    assert len(OWNER.head_service) <= 63  # of a DNS label


def test_the_operators_storage_root_goes_along() -> None:
    assert connect(None, in_cluster=True).storage_root == "s3://bucket/"
