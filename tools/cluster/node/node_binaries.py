"""Lists the programs of the full node beyond those of a control plane, and finds each.

They are the container runtime, the network plugins, the cluster's DNS, the controller that enforces
NetworkPolicies, and Kubernetes' programs for nodes, built like those of `binaries.py`; and the
Debian packages that these programs call or are linked to, which apt installs.
"""

import shutil
import subprocess
from dataclasses import replace

from tools import debian
from tools.cluster import binaries
from tools.cluster.binaries import KUBERNETES_MODULE, Binaries
from tools.go_tools import Module, Program, ToolError, build, path_of

CONTAINERD_MODULE = Module(
    name="containerd",
    upstream="github.com/containerd/containerd/v2",
    version_variables=("github.com/containerd/containerd/v2/version.Version",),
)
# Without the tag it refuses every pod: "seccomp not supported".
RUNC_MODULE = Module(
    name="runc", upstream="github.com/opencontainers/runc", tags=("seccomp",), needs_c=True
)
CNI_MODULE = Module(name="cni", upstream="github.com/containernetworking/plugins")
COREDNS_MODULE = Module(name="coredns", upstream="github.com/coredns/coredns")
KUBE_ROUTER_MODULE = Module(
    name="kube-router", upstream="github.com/cloudnativelabs/kube-router/v2"
)
CONTAINERS_MODULE = Module(name="containers", upstream="")


def _containerd(name: str) -> Program:
    package = f"{CONTAINERD_MODULE.upstream}/cmd/{name}"
    return Program(name=name, module=CONTAINERD_MODULE, package=package)


def _cni(kind: str, name: str) -> Program:
    package = f"{CNI_MODULE.upstream}/plugins/{kind}/{name}"
    return Program(name=name, module=CNI_MODULE, package=package)


def _node(name: str) -> Program:
    return Program(name=name, module=KUBERNETES_MODULE, package=f"k8s.io/kubernetes/cmd/{name}")


def _container(name: str) -> Program:
    return Program(name=name, module=CONTAINERS_MODULE, package=f"lastmile/tools/containers/{name}")


RUNC = Program(name="runc", module=RUNC_MODULE, package="github.com/opencontainers/runc")
CONTAINERD = _containerd("containerd")
SHIM = _containerd("containerd-shim-runc-v2")
CTR = _containerd("ctr")
CNI_PLUGINS = (
    _cni("main", "bridge"),
    _cni("ipam", "host-local"),
    _cni("meta", "portmap"),
)
COREDNS = Program(name="coredns", module=COREDNS_MODULE, package="lastmile/tools/coredns")
POLICIES = Program(
    name="kube-router", module=KUBE_ROUTER_MODULE, package="lastmile/tools/kube-router"
)
KUBELET = _node("kubelet")
KUBE_PROXY = _node("kube-proxy")
PAUSE = _container("pause")
PROBE = _container("probe")

# Small programs first, so that a missing compiler or network shows within seconds.
PROGRAMS = (
    PAUSE,
    PROBE,
    *CNI_PLUGINS,
    RUNC,
    CONTAINERD,
    SHIM,
    CTR,
    COREDNS,
    POLICIES,
    KUBE_PROXY,
    KUBELET,
)


def _has_seccomp() -> bool:
    """Return whether C programs can be linked to libseccomp."""
    command = ["pkg-config", "--exists", "libseccomp"]
    return (
        shutil.which("pkg-config") is not None
        and subprocess.run(command, check=False).returncode == 0
    )


PACKAGES = (
    debian.program("iptables", "iptables"),  # kube-proxy, kubelet and the bridge call it
    debian.program("ipset", "ipset"),  # kube-router calls it
    debian.program("ip", "iproute2"),
    debian.program("nsenter", "util-linux"),
)
RUNC_PACKAGES = (
    debian.program("gcc", "gcc"),
    debian.program("pkg-config", "pkg-config"),
    debian.Package(name="libseccomp-dev", is_there=_has_seccomp),
)


def find_full_node() -> Binaries:
    """Return the programs of a full node.

    Raises:
        ToolError: one is missing; `build_full_node` gets it.
    """
    missing = [program.name for program in PROGRAMS if not path_of(program).exists()]
    missing += debian.find_missing(PACKAGES)
    if missing:
        raise ToolError(f"{', '.join(missing)} missing: run `make test-tools` as root")
    parts = binaries.find_control_plane()
    programs = {program.name: path_of(program) for program in PROGRAMS}
    return replace(parts, programs={**parts.programs, **programs})


def build_full_node() -> Binaries:
    """Get the missing programs (15 minutes on a fresh machine, 10 of them for the control plane).

    Raises:
        ToolError: Go, the network, the compiler or apt failed.
    """
    binaries.build_control_plane()
    if not path_of(RUNC).exists():
        debian.install(RUNC_PACKAGES)
    debian.install(PACKAGES)
    build(PROGRAMS)
    return find_full_node()
