"""Addresses of requests to a head, from inside and outside the cluster; nothing is sent."""

import asyncio
from typing import Any

import aiohttp
import pytest
from kubernetes.aio.client import ApiClient, Configuration

from dataset_operator.errors import RayUnreachable
from dataset_operator.kube.head_pods import find_head_address
from dataset_operator.kube.observe import observe
from dataset_operator.names import Owner
from dataset_operator.observed import Observed
from dataset_operator.ray.endpoints import (
    DirectEndpoint,
    ProxyEndpoint,
    build_connect,
    build_pod_endpoint,
)
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.ray.transport import Request
from dataset_operator.sealing import Seal
from dataset_operator.settings import parse_settings

OWNER = Owner(name="n" * 40, namespace="team", uid="0f3c6c1e-1111")
SETTINGS = parse_settings({"runtimeImage": "runtime:1", "storageRoot": "s3://bucket/"})


def connect(service: str | None, *, in_cluster: bool, address: str = "10.0.0.7") -> HttpRayJobs:
    async def resolve() -> HttpRayJobs:
        async with ApiClient(Configuration()) as client, aiohttp.ClientSession() as session:
            resolver = build_connect(client, session, SETTINGS, in_cluster=in_cluster)
            jobs = resolver(OWNER, "token", service, address)
        assert isinstance(jobs, HttpRayJobs)
        return jobs

    return asyncio.run(resolve())


@pytest.mark.parametrize(
    ("service", "name"),
    [(None, f"{OWNER.ray_cluster}-head-svc"), ("its-own-svc", "its-own-svc")],
    ids=["KubeRay's own name", "the name in the RayCluster's status"],
)
def test_heads_are_reached_directly_or_through_the_proxy(service: str | None, name: str) -> None:
    inside = connect(service, in_cluster=True).endpoint
    outside = connect(service, in_cluster=False).endpoint
    assert isinstance(inside, DirectEndpoint)
    assert isinstance(outside, ProxyEndpoint)
    assert inside.host == "10.0.0.7"
    assert outside.path == f"/api/v1/namespaces/team/services/{name}"


ADDRESSES = {
    "10.0.0.7": "10.0.0.7",
    "fd00::7": "[fd00::7]",
    "240.0.0.9": "240.0.0.9",  # some clouds use such addresses for pods
    "": None,
    "127.0.0.1": None,
    "::1": None,
    "::ffff:127.0.0.1": None,
    "169.254.169.254": None,
    "::ffff:169.254.169.254": None,
    "fe80::1": None,
    "224.0.0.1": None,
    "0.0.0.0": None,
    "::": None,
    "evil.example": None,
    "10.0.0.7:80": None,
    "10.0.0.7@evil.example": None,
}


@pytest.mark.parametrize(("address", "host"), ADDRESSES.items(), ids=repr)
def test_only_pod_addresses_are_contacted(address: str, host: str | None) -> None:
    async def story() -> None:
        async with aiohttp.ClientSession() as session:
            endpoint = build_pod_endpoint(session, address)
            if host is not None:
                assert isinstance(endpoint, DirectEndpoint)
                assert endpoint.host == host
                return
            with pytest.raises(RayUnreachable):
                await endpoint.send(Request(method="GET", port=8265, path="/", token="t"))

    asyncio.run(story())


CLUSTER = {"metadata": {"name": OWNER.ray_cluster, "uid": "cluster-2"}}


def pod(ip: str, created: str = "2026-01-01T00:00:00Z", **changes: Any) -> dict[str, Any]:
    """Build a head of the cluster with `changes` of its metadata, spec and status."""
    metadata = {
        "name": "head",
        "uid": f"pod-{ip}",
        "labels": {"experiments.lastmile.dev/role": "head"},
        "ownerReferences": [{"kind": "RayCluster", "uid": "cluster-2"}],
        "creationTimestamp": created,
    }
    status = {"podIP": ip, "phase": "Running"}
    return {
        "metadata": metadata | changes.get("metadata", {}),
        "spec": changes.get("spec", {}),
        "status": status | changes.get("status", {}),
    }


def owned(**reference: str) -> dict[str, Any]:
    return {
        "metadata": {"ownerReferences": [{"kind": "RayCluster", "uid": "cluster-2"} | reference]}
    }


NO_HEADS: dict[str, dict[str, Any]] = {
    "of an earlier cluster": owned(uid="cluster-1"),
    "of another kind of owner": owned(kind="Job"),
    "of nobody": {"metadata": {"ownerReferences": []}},
    "a worker": {"metadata": {"labels": {"experiments.lastmile.dev/role": "trainers"}}},
    "without labels": {"metadata": {"labels": None}},
    "on the node's network": {"spec": {"hostNetwork": True}},
    "ending": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    "over": {"status": {"phase": "Failed"}},
    "without an address": {"status": {"podIP": None}},
}


@pytest.mark.parametrize("changes", NO_HEADS.values(), ids=NO_HEADS)
def test_the_head_is_a_pod_owned_by_the_cluster(changes: dict[str, Any]) -> None:
    other = pod("10.0.0.9", "2026-01-02T00:00:00Z", **changes)
    assert find_head_address(CLUSTER, [other]) == ""
    assert find_head_address(CLUSTER, [pod("10.0.0.7"), other]) == "10.0.0.7"


def test_the_newer_of_two_heads_is_used() -> None:
    pods = [pod("10.0.0.8", "2026-01-02T00:00:00Z"), pod("10.0.0.7")]
    assert find_head_address(CLUSTER, pods) == "10.0.0.8"


class Server:
    """An API server with a cluster whose status and Service a tenant wrote."""

    def __init__(self, owner_uid: str) -> None:
        self.owner_uid = owner_uid
        self.requests: list[str] = []

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.requests.append(kind)
        owners = [{"uid": self.owner_uid}]
        metadata = {"name": name, "uid": "cluster-2", "resourceVersion": "1"}
        metadata |= {"ownerReferences": owners}
        if kind == "RayCluster":
            status = {"head": {"serviceName": "evil", "podIP": "10.6.6.6", "serviceIP": "10.6.6.6"}}
            return {"kind": kind, "metadata": metadata, "spec": {}, "status": status}
        if kind == "Secret":
            return {"kind": kind, "metadata": metadata, "data": {"auth_token": "dDBrZW4="}}
        return None

    async def list_objects(self, kind: str, *_: Any, **__: Any) -> list[dict[str, Any]]:
        self.requests.append(kind)
        return [pod("10.0.0.7")]


class Refusing:
    """A Ray that never answers."""

    async def get(self, submission_id: str) -> None:
        raise RayUnreachable("no answer")


def look(server: Server) -> list[str]:
    """Observe once; return the addresses that were contacted."""
    asked: list[str] = []

    def connect(owner: Owner, token: str, service: str | None = None, address: str = "") -> Any:
        asked.append(address)
        return Refusing()

    metadata = {"name": "clicks", "namespace": "team", "uid": "uid-1", "generation": 1}
    document = {"kind": "DatasetExperiment", "metadata": metadata, "spec": {}, "status": {}}
    kube: Any = server
    source: Any = None
    known = Observed(document=document, settings=SETTINGS)
    asyncio.run(observe(kube, connect, source, known, Seal.generate()))
    return asked


def test_a_service_of_a_tenant_is_not_contacted() -> None:
    server = Server("uid-1")
    assert look(server) == ["10.0.0.7"]
    assert server.requests.count("Pod") == 1


def test_a_foreign_cluster_gets_no_token() -> None:
    assert look(Server("another")) == []


def test_the_longest_head_service_name_is_valid() -> None:
    assert len(OWNER.head_service) <= 63  # the bound of a DNS label


def test_the_storage_root_of_the_settings_is_submitted() -> None:
    assert connect(None, in_cluster=True).storage_root == "s3://bucket/"
