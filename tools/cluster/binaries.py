"""Programs of a cluster in a box, and their places; `tools/go_tools.py` builds them.

Each is compiled from a pinned module in tools/modules. Programs in the folder that
KUBEBUILDER_ASSETS names (controller-runtime's convention) are used instead of those of a control
plane. A full node needs more: a container runtime, network plugins, DNS, the controller that
enforces NetworkPolicies, and the Debian packages that these call or link to.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tools import packages
from tools.go_tools import Files, Module, Program, ToolError, build, path_of, say

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"


def _main(name: str, module: Module, folder: str) -> Program:
    """Return the program whose `main` is in a folder of its name."""
    return Program(name=name, module=module, package=f"{folder}/{name}")


ETCD_MODULE = Module(name="etcd", upstream="go.etcd.io/etcd/server/v3")
KUBERNETES_MODULE = Module(
    name="kubernetes",
    upstream="k8s.io/kubernetes",
    # Without these, the programs report v0.0.0, and no chart's kubeVersion is met.
    version_variables=(
        "k8s.io/component-base/version.gitVersion",
        "k8s.io/client-go/pkg/version.gitVersion",
    ),
)
KUBERAY_MODULE = Module(name="kuberay", upstream="github.com/ray-project/kuberay/ray-operator")
KWOK_MODULE = Module(name="kwok", upstream="sigs.k8s.io/kwok")

ETCD = Program(name="etcd", module=ETCD_MODULE, package=ETCD_MODULE.upstream)
KUBE_APISERVER = _main("kube-apiserver", KUBERNETES_MODULE, "k8s.io/kubernetes/cmd")
KUBE_CONTROLLER_MANAGER = _main(
    "kube-controller-manager", KUBERNETES_MODULE, "k8s.io/kubernetes/cmd"
)
KUBE_SCHEDULER = _main("kube-scheduler", KUBERNETES_MODULE, "k8s.io/kubernetes/cmd")
KUBECTL = _main("kubectl", KUBERNETES_MODULE, "k8s.io/kubernetes/cmd")
KUBERAY = Program(name="kuberay", module=KUBERAY_MODULE, package=KUBERAY_MODULE.upstream)
KWOK = _main("kwok", KWOK_MODULE, "sigs.k8s.io/kwok/cmd")
KUBERAY_CRDS = Files(name="crds", module=KUBERAY_MODULE, source="config/crd/bases")
KWOK_CRDS = Files(
    name="crds", module=KWOK_MODULE, source="kustomize/crd/bases/kwok.x-k8s.io_stages.yaml"
)
KWOK_STAGES = Files(name="stages", module=KWOK_MODULE, source="kustomize/stage")

# Small programs first, so that a missing compiler or network shows within seconds.
CONTROL_PLANE_PROGRAMS = (
    ETCD,
    KWOK,
    KUBERAY,
    KUBE_APISERVER,
    KUBE_CONTROLLER_MANAGER,
    KUBE_SCHEDULER,
    KUBECTL,
)
CONTROL_PLANE_FILES = (KUBERAY_CRDS, KWOK_CRDS, KWOK_STAGES)

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

RUNC = Program(name="runc", module=RUNC_MODULE, package=RUNC_MODULE.upstream)
CONTAINERD, SHIM, CTR = (
    _main(name, CONTAINERD_MODULE, f"{CONTAINERD_MODULE.upstream}/cmd")
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)
CNI_PLUGINS = tuple(
    _main(name, CNI_MODULE, f"{CNI_MODULE.upstream}/plugins/{kind}")
    for kind, name in (("main", "bridge"), ("ipam", "host-local"), ("meta", "portmap"))
)
COREDNS = _main("coredns", COREDNS_MODULE, "lastmile/tools")
POLICIES = _main("kube-router", KUBE_ROUTER_MODULE, "lastmile/tools")
KUBELET = _main("kubelet", KUBERNETES_MODULE, "k8s.io/kubernetes/cmd")
KUBE_PROXY = _main("kube-proxy", KUBERNETES_MODULE, "k8s.io/kubernetes/cmd")
PAUSE = _main("pause", CONTAINERS_MODULE, "lastmile/tools/containers")
PROBE = _main("probe", CONTAINERS_MODULE, "lastmile/tools/containers")

NODE_PROGRAMS = (
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


NODE_PACKAGES = (
    packages.program("iptables", "iptables"),  # kube-proxy, kubelet and the bridge call it
    packages.program("ipset", "ipset"),  # kube-router calls it
    packages.program("ip", "iproute2"),
    packages.program("nsenter", "util-linux"),
)
RUNC_PACKAGES = (
    packages.program("gcc", "gcc"),
    packages.program("pkg-config", "pkg-config"),
    packages.Package(name="libseccomp-dev", is_there=_has_seccomp),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Paths of all parts of a box.

    Attributes:
        programs: each program's path by its name.
        kuberay_crds: folder of KubeRay's CustomResourceDefinitions.
        kwok_crds: folder of kwok's.
        kwok_stages: kwok's `kustomize/stage`: how nodes and pods behave.
    """

    programs: Mapping[str, Path]
    kuberay_crds: Path
    kwok_crds: Path
    kwok_stages: Path

    def __getitem__(self, program: Program) -> Path:
        return self.programs[program.name]


def find_kubectl() -> Path:
    """Return the kubectl that fits the cluster in a box."""
    return _find(KUBECTL)


def find_control_plane() -> Binaries:
    """Return the parts of a control plane.

    Raises:
        ToolError: a part is not built yet; `build_control_plane` builds it.
    """
    for files in CONTROL_PLANE_FILES:
        if not path_of(files).exists():
            raise ToolError(
                f"{files.module.name}'s {files.name} are missing: run `make test-tools`"
            )
    return Binaries(
        programs={program.name: _find(program) for program in CONTROL_PLANE_PROGRAMS},
        kuberay_crds=path_of(KUBERAY_CRDS),
        kwok_crds=path_of(KWOK_CRDS),
        kwok_stages=path_of(KWOK_STAGES),
    )


def build_control_plane() -> Binaries:
    """Build the missing parts (ten minutes on a fresh machine), and return all parts.

    Raises:
        ToolError: Go, the network or the compiler failed.
    """
    brought = [program for program in CONTROL_PLANE_PROGRAMS if _asset(program)]
    if brought:
        names = ", ".join(program.name for program in brought)
        say(f"using {names} of {ASSETS_VARIABLE}={os.environ[ASSETS_VARIABLE]}")
    build([p for p in CONTROL_PLANE_PROGRAMS if p not in brought] + [*CONTROL_PLANE_FILES])
    return find_control_plane()


def find_full_node() -> Binaries:
    """Return the parts of a full node.

    Raises:
        ToolError: a part is missing; `build_full_node` gets it.
    """
    missing = [program.name for program in NODE_PROGRAMS if not path_of(program).exists()]
    missing += packages.find_missing(NODE_PACKAGES)
    if missing:
        raise ToolError(f"{', '.join(missing)} missing: run `make test-tools` as root")
    parts = find_control_plane()
    programs = {program.name: path_of(program) for program in NODE_PROGRAMS}
    return replace(parts, programs={**parts.programs, **programs})


def build_full_node() -> Binaries:
    """Get the missing parts (15 minutes on a fresh machine, 10 of them for the control plane).

    Raises:
        ToolError: Go, the network, the compiler or apt failed.
    """
    build_control_plane()
    if not path_of(RUNC).exists():
        packages.install(RUNC_PACKAGES)
    packages.install(NODE_PACKAGES)
    build(NODE_PROGRAMS)
    return find_full_node()


def _asset(program: Program) -> Path | None:
    """Return the user's own program, if any."""
    folder = os.environ.get(ASSETS_VARIABLE)
    path = Path(folder, program.name).absolute() if folder else None
    return path if path is not None and os.access(path, os.X_OK) else None


def _find(program: Program) -> Path:
    path = _asset(program) or path_of(program)
    if not path.exists():
        raise ToolError(f"{program.name} is not built: run `make test-tools`")
    return path
