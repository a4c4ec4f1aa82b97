"""Brings one control plane up in an empty folder: keys, processes in order, CRDs, nodes.

`control_plane.py` calls it, again with other ports where one was taken in the meantime.
"""

import http.client
import json
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tools.cluster import binaries, certificates
from tools.cluster.api import Server
from tools.cluster.binaries import Binaries
from tools.cluster.certificates import ADMIN, Authority, Identity
from tools.cluster.components import HOST, SERVICE_ADDRESS, Builder, Component, Layout, Ports, Probe
from tools.cluster.errors import (
    BoxError,
    ComponentError,
    PortTakenError,
    RequestError,
    read_log,
)
from tools.cluster.kubectl import Kubectl
from tools.cluster.processes import is_listening, spawn

READY_TIMEOUT_SECONDS = 120.0  # 3 s on an idle machine; a busy one takes its time
POLL_SECONDS = 0.05
YAML = "application/yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KWOK_STAGES = "/apis/kwok.x-k8s.io/v1alpha1/stages"
# Of kwok's stages: nodes are Ready at once and stay so, pods run at once and go when deleted.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
PLENTY = {
    "cpu": "1000",
    "memory": "4Ti",
    "ephemeral-storage": "4Ti",
    "pods": "1000",
    "nvidia.com/gpu": "64",
}
T = TypeVar("T")
PORT_TAKEN = "address already in use"  # what Go says, whatever the component
IDENTITIES = {
    binaries.KUBE_CONTROLLER_MANAGER.name: Identity(user="system:kube-controller-manager"),
    binaries.KUBE_SCHEDULER.name: Identity(user="system:kube-scheduler"),
    binaries.KUBERAY.name: Identity(user="kuberay", groups=("system:masters",)),
    binaries.KWOK.name: Identity(user="kwok", groups=("system:masters",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a control plane is like.

    Attributes:
        num_nodes: kwok's nodes, box-node-0 and on.
        node_resources: what each offers; plenty by default, so that nothing waits for room.
        crds: files of CRDs to create; what is owned by a kind that came later than the controllers
            is collected as garbage only half a minute later.
    """

    num_nodes: int = 3
    node_resources: Mapping[str, str] = field(default_factory=lambda: PLENTY)
    crds: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """One attempt to bring a control plane up.

    Attributes:
        box_id: of the box, which its processes carry.
        layout: of its folder.
        binaries: what it is made of.
        settings: what it is to be like.
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
            PortTakenError: a component lost its port; another attempt may well succeed.
            ComponentError: a component does not become ready.
        """
        builder = Builder(layout=self.layout, ports=ports, binaries=self.binaries)
        self._write_keys(f"https://{HOST}:{ports.apiserver}")
        running = Running(self, build_tls(self.layout))
        contents = Contents(self, running.server(ports.apiserver))
        running.start(builder.etcd())
        running.wait()
        running.start(builder.apiserver())
        running.wait()
        running.start(builder.scheduler())
        running.during(contents.create_crds)
        running.wait_for("the CRDs to be served", contents.are_crds_served)
        # Not before: its garbage collector looks for new kinds only every 30 seconds.
        running.start(builder.controller_manager())
        running.during(contents.create_stages)
        running.start(builder.kuberay(), builder.kwok())
        running.during(contents.create_nodes)
        running.wait()
        running.wait_for("kwok's nodes to be Ready", contents.are_nodes_ready)
        # Pods are refused in a namespace until the controller manager has made its account.
        running.wait_for("the first service account", contents.has_service_account)

    def _write_keys(self, server: str) -> None:
        authority = Authority()
        admin = authority.issue_client(ADMIN)
        serving = authority.issue_server((HOST, SERVICE_ADDRESS))
        private, public = certificates.build_service_account_keys()
        contents = {
            "ca.crt": authority.certificate,
            "server.crt": serving.certificate,
            "server.key": serving.key,
            "client.crt": admin.certificate,
            "client.key": admin.key,
            "service-accounts.key": private,
            "service-accounts.pub": public,
        }
        clients = {self.layout.kubeconfig: admin}
        for name, identity in IDENTITIES.items():
            clients[self.layout.kubeconfig_of(name)] = authority.issue_client(identity)
        for name, content in contents.items():
            certificates.write_secret(self.layout.pki / name, content)
        for path, client in clients.items():
            kubeconfig = certificates.build_kubeconfig(server, authority.certificate, client)
            certificates.write_secret(path, kubeconfig.encode())


class Contents:
    """What a box's API server is given before anyone uses it."""

    def __init__(self, startup: Startup, server: Server) -> None:
        self._parts = startup.binaries
        self._settings = startup.settings
        self._server = server
        self._served: list[tuple[str, str]] = []  # path of the API, plural name of the kind

    def create_crds(self) -> None:
        """Create KubeRay's and kwok's CRDs, and what the settings name."""
        folders = (self._parts.kuberay_crds, self._parts.kwok_crds)
        files = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
        for path in (*files, *self._settings.crds):
            spec = self._server.create(CRDS, path.read_bytes(), YAML)["spec"]
            versions = [version["name"] for version in spec["versions"] if version["served"]]
            apis = (f"/apis/{spec['group']}/{version}" for version in versions)
            self._served += [(api, spec["names"]["plural"]) for api in apis]

    def are_crds_served(self) -> bool:
        """Tell whether each kind is both discovered and served, which are two things."""
        for api, plural in self._served:
            found = (self._server.get(api) or {}).get("resources", [])
            if plural not in {resource["name"] for resource in found}:
                return False
            if self._server.get(f"{api}/{plural}") is None:
                return False
        return True

    def create_stages(self) -> None:
        """Create what kwok does to nodes and pods."""
        for folder in (self._parts.kwok_stages / name for name in STAGES):
            for path in sorted(folder.glob("*.yaml")):
                if path.name != "kustomization.yaml":
                    self._server.create(KWOK_STAGES, path.read_bytes(), YAML)

    def create_nodes(self) -> None:
        """Create the nodes that kwok plays."""
        for index in range(self._settings.num_nodes):
            node = build_node(index, self._settings)
            self._server.create("/api/v1/nodes", json.dumps(node).encode())

    def are_nodes_ready(self) -> bool:
        """Tell whether every node has the condition Ready."""
        listed = self._server.get("/api/v1/nodes") or {}
        ready = [
            condition
            for node in listed.get("items", [])
            for condition in node.get("status", {}).get("conditions", [])
            if (condition["type"], condition["status"]) == ("Ready", "True")
        ]
        return len(ready) == self._settings.num_nodes

    def has_service_account(self) -> bool:
        """Tell whether the controller manager has come to the default namespace."""
        return self._server.get("/api/v1/namespaces/default/serviceaccounts/default") is not None


class Running:
    """The processes of one attempt, watched while they become ready."""

    def __init__(self, startup: Startup, tls: ssl.SSLContext) -> None:
        self._startup = startup
        self._tls = tls
        self._processes: dict[str, tuple[Component, subprocess.Popen[bytes]]] = {}
        self._waiting: list[Component] = []

    def server(self, port: int, *, is_tls: bool = True) -> Server:
        """Return the box's server on a port."""
        return Server(host=HOST, port=port, tls=self._tls if is_tls else None)

    def start(self, *components: Component) -> None:
        """Start components; `wait` waits for them."""
        startup = self._startup
        for component in components:
            process = spawn(
                component,
                startup.box_id,
                startup.layout.folder,
                detached=startup.is_detached,
            )
            self._processes[component.name] = (component, process)
            self._waiting.append(component)

    def wait(self) -> None:
        """Return once all that was started is ready."""
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
        """Return once something is true that the components bring about."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not self.during(is_true):
            self.check()
            if time.monotonic() > deadline:
                logs = self._startup.layout.logs
                raise BoxError(f"waited {READY_TIMEOUT_SECONDS:.0f} s for {what}; see {logs}")
            time.sleep(POLL_SECONDS)

    def during(self, work: Callable[[], T]) -> T:
        """Do work that needs the processes; tell of the one that ended if it fails."""
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
        is_ours = is_listening(self._startup.box_id, probe.port)
        return is_ours and self.server(probe.port, is_tls=probe.is_tls).is_ready(probe.path)


def build_tls(layout: Layout) -> ssl.SSLContext:
    """Return what this process trusts and shows to a box's servers."""
    tls = ssl.create_default_context(cafile=layout.pki / "ca.crt")
    tls.load_cert_chain(layout.pki / "client.crt", layout.pki / "client.key")
    return tls


def build_kubectl(layout: Layout, parts: Binaries) -> Kubectl:
    """Return the kubectl of the box in `layout`."""
    cache = layout.folder / "kubectl-cache"
    return Kubectl(program=parts[binaries.KUBECTL], kubeconfig=layout.kubeconfig, cache=cache)


def build_node(index: int, settings: Settings) -> dict[str, object]:
    """Return a node that kwok plays."""
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
