"""The command line of each component of a control plane; pure.

`startup.py` runs the components in its order. `node_components.py` adds those of a full node.
"""

from dataclasses import dataclass
from pathlib import Path

from tools.cluster import binaries
from tools.cluster.binaries import Binaries
from tools.cluster.box import Layout
from tools.go_tools import Program

HOST = "127.0.0.1"
SERVICE_ADDRESSES = "10.96.0.0/16"  # kubeadm's default, small enough to be quick to set up
SERVICE_ADDRESS = "10.96.0.1"  # of the API server itself: the first of the range
CLIENT_RATE = ("--kube-api-qps=500", "--kube-api-burst=1000")  # a test's hundred clusters at once
NODE_LEASE_SECONDS = 40  # kubelet's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Machine on which a box's processes run.

    Attributes:
        address: the listening address, reachable from here.
        enter: the command that starts a program there; empty for this machine.
    """

    address: str = HOST
    enter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one box."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int
    kuberay: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Readiness probe of a component: 200 to a GET.

    Attributes:
        is_tls: whether it uses TLS with the box's authority.
    """

    port: int
    path: str
    is_tls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A process of a box.

    Attributes:
        name: as upstream calls it; names its log too.
        command: the program and its arguments.
        log: the file of its output.
        probe: None if its effects show that it is ready.
        keeps: descriptors of this process that it inherits.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    probe: Probe | None
    keeps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Builds the components of one box."""

    layout: Layout
    ports: Ports
    binaries: Binaries
    place: Place = Place()

    def _build(self, program: Program, probe: Probe | None, *arguments: str) -> Component:
        return Component(
            name=program.name,
            command=(*self.place.enter, str(self.binaries[program]), *arguments),
            log=self.layout.logs / f"{program.name}.log",
            probe=probe,
        )

    def etcd(self) -> Component:
        """The store; its data need not survive a crash."""
        client = f"https://{self.place.address}:{self.ports.etcd}"
        peer = f"http://{self.place.address}:{self.ports.etcd_peer}"
        return self._build(
            binaries.ETCD,
            Probe(port=self.ports.etcd, path="/readyz", is_tls=True),
            f"--data-dir={self.layout.etcd}",
            "--name=box",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            # Only the API server of this box may read or write it, and be sure that it is its own.
            f"--cert-file={self.layout.pki / 'server.crt'}",
            f"--key-file={self.layout.pki / 'server.key'}",
            f"--trusted-ca-file={self.layout.pki / 'ca.crt'}",
            "--client-cert-auth",
            "--enable-grpc-gateway=false",  # would dial itself by the server's certificate
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=box={peer}",
        )

    def apiserver(self) -> Component:
        pki, address = self.layout.pki, self.place.address
        return self._build(
            binaries.KUBE_APISERVER,
            Probe(port=self.ports.apiserver, path="/readyz", is_tls=True),
            f"--etcd-servers=https://{address}:{self.ports.etcd}",
            f"--etcd-cafile={pki / 'ca.crt'}",
            f"--etcd-certfile={pki / 'client.crt'}",
            f"--etcd-keyfile={pki / 'client.key'}",
            f"--bind-address={address}",
            f"--advertise-address={address}",  # else it wants a route to the outside
            f"--secure-port={self.ports.apiserver}",
            f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
            "--allow-privileged",
            *self._nodes(),
            f"--client-ca-file={pki / 'ca.crt'}",
            *self._serving(),
            f"--service-account-issuer=https://{address}:{self.ports.apiserver}",
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        )

    def controller_manager(self) -> Component:
        """Collects garbage and deletes namespaces."""
        kubeconfig = self.layout.kubeconfig_of(binaries.KUBE_CONTROLLER_MANAGER.name)
        return self._build(
            binaries.KUBE_CONTROLLER_MANAGER,
            Probe(port=self.ports.controller_manager, path="/healthz", is_tls=True),
            f"--kubeconfig={kubeconfig}",
            *self._controller(self.ports.controller_manager),
            "--use-service-account-credentials",
            f"--root-ca-file={self.layout.pki / 'ca.crt'}",
            f"--service-account-private-key-file={self.layout.pki / 'service-accounts.key'}",
        )

    def scheduler(self) -> Component:
        kubeconfig = self.layout.kubeconfig_of(binaries.KUBE_SCHEDULER.name)
        return self._build(
            binaries.KUBE_SCHEDULER,
            Probe(port=self.ports.scheduler, path="/healthz", is_tls=True),
            f"--kubeconfig={kubeconfig}",
            *self._controller(self.ports.scheduler),
        )

    def kuberay(self) -> Component:
        kubeconfig = self.layout.kubeconfig_of(binaries.KUBERAY.name)
        return self._build(
            binaries.KUBERAY,
            Probe(port=self.ports.kuberay, path="/readyz", is_tls=False),
            f"--kubeconfig={kubeconfig}",
            "--enable-leader-election=false",
            "--metrics-addr=0",  # off
            f"--health-probe-bind-address={self.place.address}:{self.ports.kuberay}",
            "--qps=500",
            "--burst=1000",
        )

    def kwok(self) -> Component:
        """Simulates nodes and their pods by the Stage objects in the API server."""
        return self._build(
            binaries.KWOK,
            None,
            f"--kubeconfig={self.layout.kubeconfig_of(binaries.KWOK.name)}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--enable-crds=Stage",
            f"--node-lease-duration-seconds={NODE_LEASE_SECONDS}",
        )

    def _nodes(self) -> tuple[str, ...]:
        """Return the API server's flags about nodes, of which this plane has none."""
        return (
            "--authorization-mode=RBAC",
            # As on OpenShift: who names an owner must have a right to it.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--endpoint-reconciler-type=none",  # refuses loopback addresses; no pod dials it here
        )

    def _serving(self) -> tuple[str, str]:
        pki = self.layout.pki
        return (
            f"--tls-cert-file={pki / 'server.crt'}",
            f"--tls-private-key-file={pki / 'server.key'}",
        )

    def _controller(self, port: int) -> tuple[str, ...]:
        """Return the flags that upstream's two controllers share."""
        return (
            f"--bind-address={self.place.address}",
            f"--secure-port={port}",
            *self._serving(),
            "--authentication-skip-lookup",
            "--leader-elect=false",
            *CLIENT_RATE,
        )
