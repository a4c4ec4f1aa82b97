"""The start of a control plane in an empty folder: keys, processes in order, CRDs, nodes.

`control_plane.py` starts one, again with other ports if one was taken in the meantime.
`full_node.py` starts the same control plane, but nodes of its own.

The few requests are plain HTTP: each kubectl would cost a process, a discovery and a parse of
KubeRay's megabytes of CRDs, which together take longer than the rest of a start.
"""

import http.client
import json
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from tools.cluster import binaries
from tools.cluster.binaries import Binaries
from tools.cluster.box import (
    BoxError,
    ComponentError,
    Kubectl,
    Layout,
    PortTakenError,
    RequestError,
    read_log,
)
from tools.cluster.certificates import Identity, write_keys
from tools.cluster.components import Builder, Component, Place, Ports, Probe
from tools.cluster.registry import is_listening, spawn

YAML = "application/yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODES = "/api/v1/nodes"
KWOK_STAGES = "/apis/kwok.x-k8s.io/v1alpha1/stages"
# The API server's answers while it sets up the storage of a kind.
LATER = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
# Also how the API server answers if its store is slow; the object may have been created.
UNFINISHED = LATER | {HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.GATEWAY_TIMEOUT}
RETRY_SECONDS = 0.2
REQUEST_TIMEOUT_SECONDS = 120.0  # a large CRD takes seconds on a busy machine
READY_TIMEOUT_SECONDS = 120.0  # 3 s on an idle machine, much longer on a busy one
POLL_SECONDS = 0.05
PORT_TAKEN = "address already in use"  # Go's message, in every component
T = TypeVar("T")

# kwok's stages: nodes are Ready at once and stay so, pods run at once and end when deleted.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
PLENTY = {
    "cpu": "1000",
    "memory": "4Ti",
    "ephemeral-storage": "4Ti",
    "pods": "1000",
    "nvidia.com/gpu": "64",
}
CONTROL_PLANE_IDENTITIES = {
    binaries.KUBE_CONTROLLER_MANAGER.name: Identity(user="system:kube-controller-manager"),
    binaries.KUBE_SCHEDULER.name: Identity(user="system:kube-scheduler"),
    binaries.KUBERAY.name: Identity(user="kuberay", groups=("system:masters",)),
}
KWOK_IDENTITY = Identity(user="kwok", groups=("system:masters",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of a box.

    Attributes:
        host: its address.
        port: its port.
        tls: the authority of the server and the certificate of the client; None for plain HTTP.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None

    def is_ready(self, path: str) -> bool:
        """Return whether the server answers with 200 on `path`."""
        try:
            return self._send("GET", path, None, "")[0] == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        """Return an object of the API, or None if it does not exist yet."""
        status, body = self._send("GET", path, None, "")
        if status == HTTPStatus.NOT_FOUND or status in LATER:
            return None
        return _parse("GET", path, status, body)

    def create(
        self, path: str, body: bytes, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """Create an object in the collection at `path` and return it.

        Raises:
            RequestError: the server refuses it, or does not create it in time.
        """
        deadline = time.monotonic() + REQUEST_TIMEOUT_SECONDS
        status, said = self._send("POST", path, body, content_type)
        is_repeated = False
        while status in UNFINISHED and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)
            status, said = self._send("POST", path, body, content_type)
            is_repeated = True
        if status == HTTPStatus.CONFLICT and is_repeated:
            path = f"{path}/{json.loads(said)['details']['name']}"
            return _parse("GET", path, *self._send("GET", path, None, ""))
        return _parse("POST", path, status, said)

    def patch(self, path: str, changes: Mapping[str, object]) -> None:
        """Change fields of an object, or of a subresource.

        Raises:
            RequestError: the server refuses it.
        """
        body = json.dumps(changes).encode()
        status, said = self._send("PATCH", path, body, "application/merge-patch+json")
        _parse("PATCH", path, status, said)

    def _send(
        self, method: str, path: str, body: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        connection = self._connect()
        try:
            headers = {"Content-Type": content_type} if content_type else {}
            connection.request(method, path, body, {"Accept": "application/json", **headers})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=REQUEST_TIMEOUT_SECONDS, context=self.tls
        )


def _parse(method: str, path: str, status: int, body: bytes) -> dict[str, Any]:
    if status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
        raise RequestError(f"{method} {path}", status, body.decode(errors="replace"))
    parsed: dict[str, Any] = json.loads(body)
    return parsed


class Contents:
    """Objects that an API server gets before anyone uses it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._served: list[tuple[str, str]] = []  # path of the API, plural name of the kind

    def create_crds(self, paths: Sequence[Path]) -> None:
        """Create the CRDs in these files; those in a folder in the order of their names."""
        folders = [sorted(path.glob("*.yaml")) if path.is_dir() else [path] for path in paths]
        for path in (path for folder in folders for path in folder):
            spec = self.server.create(CRDS, path.read_bytes(), YAML)["spec"]
            versions = [version["name"] for version in spec["versions"] if version["served"]]
            apis = (f"/apis/{spec['group']}/{version}" for version in versions)
            self._served += [(api, spec["names"]["plural"]) for api in apis]

    def are_crds_served(self) -> bool:
        """Return whether each kind is discovered and served; either may come first."""
        for api, plural in self._served:
            found = (self.server.get(api) or {}).get("resources", [])
            if plural not in {resource["name"] for resource in found}:
                return False
            if self.server.get(f"{api}/{plural}") is None:
                return False
        return True

    def create_all(self, path: str, files: Sequence[Path]) -> None:
        """Create the object in each file in the collection at `path`."""
        for file in files:
            self.server.create(path, file.read_bytes(), YAML)

    def create_nodes(self, nodes: Sequence[Mapping[str, object]]) -> None:
        """Create simulated nodes; a kubelet creates its own node."""
        for node in nodes:
            self.server.create(NODES, json.dumps(node).encode())

    def count_ready_nodes(self) -> int:
        """Return how many nodes have the condition Ready."""
        listed = self.server.get(NODES) or {}
        ready = [
            condition
            for node in listed.get("items", [])
            for condition in node.get("status", {}).get("conditions", [])
            if (condition["type"], condition["status"]) == ("Ready", "True")
        ]
        return len(ready)

    def has_service_account(self) -> bool:
        """Return whether the controller manager has created the default namespace's account."""
        return self.server.get("/api/v1/namespaces/default/serviceaccounts/default") is not None


class Running:
    """The processes of one attempt, watched while they become ready."""

    def __init__(self, box_id: str, layout: Layout, address: str, *, detached: bool) -> None:
        self._box_id = box_id
        self._layout = layout
        self._address = address
        self._is_detached = detached
        self._tls = build_tls(layout)
        self._processes: dict[str, tuple[Component, subprocess.Popen[bytes]]] = {}
        self._waiting: list[Component] = []

    def server(self, port: int, *, is_tls: bool = True) -> Server:
        """Return the box's server on a port."""
        return Server(host=self._address, port=port, tls=self._tls if is_tls else None)

    def start(self, *components: Component) -> None:
        """Start components; `wait` waits for them."""
        for component in components:
            folder = self._layout.folder
            process = spawn(component, self._box_id, folder, detached=self._is_detached)
            self._processes[component.name] = (component, process)
            self._waiting.append(component)

    def wait(self) -> None:
        """Return once all started components are ready."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while self._waiting:
            self.check()
            self._waiting = [c for c in self._waiting if c.probe and not self._is_ready(c.probe)]
            if self._waiting and time.monotonic() > deadline:
                late = self._waiting[0]
                what = f"was not ready after {READY_TIMEOUT_SECONDS:.0f} s"
                raise ComponentError(late.name, what, late.log)
            time.sleep(POLL_SECONDS if self._waiting else 0)
        self.check()

    def wait_for(self, what: str, is_true: Callable[[], bool]) -> None:
        """Return once a condition holds, which the components bring about."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not self.during(is_true):
            self.check()
            if time.monotonic() > deadline:
                logs = self._layout.logs
                raise BoxError(f"waited {READY_TIMEOUT_SECONDS:.0f} s for {what}; see {logs}")
            time.sleep(POLL_SECONDS)

    def during(self, work: Callable[[], T]) -> T:
        """Do work that needs the processes; if it fails, raise for a process that has ended."""
        try:
            return work()
        except (RequestError, OSError, http.client.HTTPException):
            self.check()
            raise

    def check(self) -> None:
        """Raise if a process has ended."""
        for component, process in self._processes.values():
            code = process.poll()
            if code is not None:
                is_port_taken = PORT_TAKEN in read_log(component.log)
                error = PortTakenError if is_port_taken else ComponentError
                raise error(component.name, f"ended with code {code}", component.log)

    def _is_ready(self, probe: Probe) -> bool:
        is_ours = is_listening(self._box_id, probe.port)
        return is_ours and self.server(probe.port, is_tls=probe.is_tls).is_ready(probe.path)


def build_tls(layout: Layout) -> ssl.SSLContext:
    """Return the TLS context of an administrator for the servers of a box."""
    tls = ssl.create_default_context(cafile=layout.pki / "ca.crt")
    tls.load_cert_chain(layout.pki / "client.crt", layout.pki / "client.key")
    return tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a control plane.

    Attributes:
        num_nodes: the number of kwok's nodes, named box-node-0 and so on.
        node_resources: the resources of each; plenty by default, so that no pod waits for some.
        crds: files of CRDs to create. The garbage collector notices kinds that are created after
            its start only within half a minute.
    """

    num_nodes: int = 3
    node_resources: Mapping[str, str] = field(default_factory=lambda: PLENTY)
    crds: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """One attempt to bring a control plane up.

    Attributes:
        box_id: the id of the box, which its processes carry.
        layout: the map of its folder.
        binaries: its programs.
        settings: its settings.
        is_detached: whether the processes outlive this one.
    """

    box_id: str
    layout: Layout
    binaries: Binaries
    settings: Settings
    is_detached: bool

    def run(self, ports: Ports) -> None:
        """Return once everything is ready.

        Args:
            ports: to listen on.

        Raises:
            PortTakenError: a component lost its port; another attempt may succeed.
            ComponentError: a component does not become ready.
        """
        place, parts, settings = Place(), self.binaries, self.settings
        builder = Builder(layout=self.layout, ports=ports, binaries=parts, place=place)
        identities = {**CONTROL_PLANE_IDENTITIES, binaries.KWOK.name: KWOK_IDENTITY}
        write_keys(self.layout, place.address, ports.apiserver, identities)
        running = Running(self.box_id, self.layout, place.address, detached=self.is_detached)
        contents = Contents(running.server(ports.apiserver))
        crds = (parts.kuberay_crds, parts.kwok_crds, *settings.crds)
        start_control_plane(builder, running, contents, crds)
        running.during(lambda: contents.create_all(KWOK_STAGES, _find_stages(parts)))
        running.start(builder.kwok())
        nodes = [build_node(index, settings) for index in range(settings.num_nodes)]
        running.during(lambda: contents.create_nodes(nodes))
        running.wait()
        running.wait_for(
            "kwok's nodes to be Ready", lambda: contents.count_ready_nodes() == settings.num_nodes
        )
        # Pods are refused in a namespace until the controller manager has created its account.
        running.wait_for("the first service account", contents.has_service_account)


def start_control_plane(
    builder: Builder, running: Running, contents: Contents, crds: Sequence[Path]
) -> None:
    """Start the components of every box; the last ones may not be ready yet.

    Args:
        builder: builds its components.
        running: its processes.
        contents: creates objects in its API server.
        crds: files of CRDs, or folders of such files.
    """
    running.start(builder.etcd())
    running.wait()
    running.start(builder.apiserver())
    running.wait()
    running.start(builder.scheduler())
    running.during(lambda: contents.create_crds(crds))
    running.wait_for("the CRDs to be served", contents.are_crds_served)
    # Not earlier: its garbage collector looks for new kinds only every 30 seconds.
    running.start(builder.controller_manager(), builder.kuberay())


def _find_stages(parts: Binaries) -> list[Path]:
    """Return the files that define how kwok simulates nodes and pods."""
    found = (path for name in STAGES for path in sorted((parts.kwok_stages / name).glob("*.yaml")))
    return [path for path in found if path.name != "kustomization.yaml"]


def build_kubectl(layout: Layout, program: Path) -> Kubectl:
    """Return the kubectl of the box in `layout`."""
    cache = layout.folder / "kubectl-cache"
    return Kubectl(program=program, kubeconfig=layout.kubeconfig, cache=cache)


def build_node(index: int, settings: Settings) -> dict[str, object]:
    """Return a node that kwok simulates."""
    name = f"box-node-{index}"
    resources = dict(settings.node_resources)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
            },
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


def write_bin(layout: Layout, kubectl: Path) -> None:
    """Put kubectl where PATH can find it."""
    layout.bin.mkdir(exist_ok=True)
    link = layout.bin / "kubectl"
    link.unlink(missing_ok=True)
    link.symlink_to(kubectl)
