"""Reaches the ports of a cluster's pods; no other module does.

in the cluster    by the pod's address, also the head's: tenants may write to its Service
from outside      through the API server's proxy to the Service or pod, with the client's own
                  credentials (certificate, token, plugin), which need `get`, `create` and `update`
                  on `services/proxy`, and `get` on `pods/proxy`
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any, Literal, Protocol

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException
from pydantic import BaseModel, ValidationError

from dataset_operator.errors import RayUnreachable
from dataset_operator.names import Owner
from dataset_operator.observed import Pod
from dataset_operator.ray.jobs import HttpRayJobs, RayJobs
from dataset_operator.ray.transport import (
    Answer,
    Endpoint,
    Request,
    check_answer,
    failure_of,
    read_answer,
)
from dataset_operator.settings import OperatorSettings


class Connect(Protocol):
    """Makes a client for the Ray of an experiment's cluster, without sending a request."""

    def __call__(
        self, owner: Owner, token: str, service: str | None = None, address: str = ""
    ) -> RayJobs:
        """Return the client.

        Args:
            token: of the cluster's Ray.
            service: the head's Service as the RayCluster's status names it, for requests from
                outside; None: the name that KubeRay will give it.
            address: of the head's pod, for requests in the cluster; "" while it has none.
        """


class ReachPod(Protocol):
    """Makes an endpoint for the ports of a pod, without sending a request."""

    def __call__(self, namespace: str, pod: Pod) -> Endpoint:
        """Return the endpoint of a pod."""


def build_connect(
    api_client: ApiClient,
    session: aiohttp.ClientSession,
    settings: OperatorSettings,
    *,
    in_cluster: bool,
) -> Connect:
    """Build the `Connect` of a process.

    Args:
        api_client: the API server's client, which requests from outside go through.
        session: for requests in the cluster.
        in_cluster: whether this process runs in a pod of the cluster.
    """

    def connect(owner: Owner, token: str, service: str | None = None, address: str = "") -> RayJobs:
        endpoint: Endpoint
        if in_cluster:
            endpoint = build_pod_endpoint(session, address)
        else:
            name = service or owner.head_service
            path = f"/api/v1/namespaces/{owner.namespace}/services/{name}"
            endpoint = ProxyEndpoint(client=api_client, path=path)
        return HttpRayJobs(endpoint=endpoint, token=token, storage_root=settings.storage_root)

    return connect


def build_reach_pod(
    api_client: ApiClient, session: aiohttp.ClientSession, *, in_cluster: bool
) -> ReachPod:
    """Build the `ReachPod` of a process; see `build_connect`."""

    def reach(namespace: str, pod: Pod) -> Endpoint:
        if in_cluster:
            return build_pod_endpoint(session, pod.ip)
        path = f"/api/v1/namespaces/{namespace}/pods/{pod.name}"
        return ProxyEndpoint(client=api_client, path=path)

    return reach


def build_pod_endpoint(session: aiohttp.ClientSession, address: str) -> Endpoint:
    """Return the endpoint at a pod's address, or a `NoEndpoint` if it cannot be a pod's."""
    if not address:
        return NoEndpoint(why="the pod has no address yet")
    try:
        ip = ip_address(address)
    except ValueError:
        return NoEndpoint(why=f"the pod's address must be an IP address, got {address[:64]!r}")
    plain = (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip
    if plain.is_loopback or plain.is_link_local or plain.is_multicast or plain.is_unspecified:
        return NoEndpoint(why=f"the pod's address must be in a pod network, got {ip}")
    return DirectEndpoint(session=session, host=f"[{ip}]" if ip.version == 6 else str(ip))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEndpoint:
    """An endpoint that refuses every request, for the reason `why`."""

    why: str

    async def send(self, request: Request) -> Answer:
        """See Endpoint."""
        raise RayUnreachable(f"{request}: {self.why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectEndpoint:
    """An endpoint that sends requests directly to a host."""

    session: aiohttp.ClientSession
    host: str

    async def send(self, request: Request) -> Answer:
        """See Endpoint."""
        return await send(self.session, f"http://{self.host}:{request.port}", request)


async def send(session: aiohttp.ClientSession, url: str, request: Request) -> Answer:
    """Send a request to a server; `url` ends before the path. Raises RayUnreachable."""
    raw = isinstance(request.body, bytes)
    body: dict[str, Any] = {"data" if raw else "json": request.body}
    try:
        response = await session.request(
            request.method,
            url + request.path,
            headers=request.headers(),
            timeout=request.timeout,
            allow_redirects=False,
            **body,
        )
        answer = await read_answer(request, response)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise failure_of(request, error) from error
    return check_answer(request, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyEndpoint:
    """An endpoint that sends requests through the API server.

    Attributes:
        path: of the Service or pod in the API server's API.
    """

    client: ApiClient
    path: str

    async def send(self, request: Request) -> Answer:
        """See Endpoint."""
        path = f"{self.path}:{request.port}/proxy{request.path}"
        try:
            method, url, headers, *_ = await self.client.param_serialize(
                request.method, path, header_params=request.headers(), auth_settings=["BearerToken"]
            )
            reply = await self.client.call_api(
                method,
                url,
                headers,
                request.body,
                _request_timeout=request.timeout,
            )
            answer = await read_answer(request, reply.response)
        except (TimeoutError, ApiException, aiohttp.ClientError, OSError) as error:
            raise failure_of(request, error) from error
        _check_is_heads(request, answer)
        return check_answer(request, answer)


class _Status(BaseModel):
    """The body of the API server's own refusals."""

    kind: Literal["Status"]
    apiVersion: Literal["v1"]  # noqa: N815 - Kubernetes' own name
    message: str = ""


def _check_is_heads(request: Request, answer: Answer) -> None:
    """Raise RayUnreachable for the API server's own error: its 404 does not mean "no such job"."""
    if answer.status < 400:
        return
    try:
        status = _Status.model_validate_json(answer.content)
    except ValidationError:
        return
    raise RayUnreachable(f"{request}: {status.message}")
