"""Parts of the cluster in a box and their places; `go_tools.py` builds them.

The versions are those of modules/*/go.mod. Programs in the folder that KUBEBUILDER_ASSETS names
(controller-runtime's convention) are used instead of built ones, by the names below; missing
ones are built. To build nothing, name a whole cluster instead: see `existing.py`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.go_tools import Files, Module, Program, ToolError, build, path_of, say

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"

ETCD_MODULE = Module(name="etcd", upstream="go.etcd.io/etcd/server/v3")
KUBERNETES_MODULE = Module(
    name="kubernetes",
    upstream="k8s.io/kubernetes",
    # Without, they call themselves v0.0.0 and a chart's kubeVersion is never met.
    version_variables=(
        "k8s.io/component-base/version.gitVersion",
        "k8s.io/client-go/pkg/version.gitVersion",
    ),
)
KUBERAY_MODULE = Module(name="kuberay", upstream="github.com/ray-project/kuberay/ray-operator")
KWOK_MODULE = Module(name="kwok", upstream="sigs.k8s.io/kwok")


def _kubernetes(name: str) -> Program:
    return Program(name=name, module=KUBERNETES_MODULE, package=f"k8s.io/kubernetes/cmd/{name}")


ETCD = Program(name="etcd", module=ETCD_MODULE, package=ETCD_MODULE.upstream)
KUBE_APISERVER = _kubernetes("kube-apiserver")
KUBE_CONTROLLER_MANAGER = _kubernetes("kube-controller-manager")
KUBE_SCHEDULER = _kubernetes("kube-scheduler")
KUBECTL = _kubernetes("kubectl")
KUBERAY = Program(name="kuberay", module=KUBERAY_MODULE, package=KUBERAY_MODULE.upstream)
KWOK = Program(name="kwok", module=KWOK_MODULE, package="sigs.k8s.io/kwok/cmd/kwok")
KUBERAY_CRDS = Files(name="crds", module=KUBERAY_MODULE, source="config/crd/bases")
KWOK_CRDS = Files(
    name="crds", module=KWOK_MODULE, source="kustomize/crd/bases/kwok.x-k8s.io_stages.yaml"
)
KWOK_STAGES = Files(name="stages", module=KWOK_MODULE, source="kustomize/stage")

# The small ones first: a missing compiler or network shows within seconds.
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


def find_kubectl() -> Path:
    """Return the kubectl that fits the cluster in a box."""
    return _find(KUBECTL)


def find_control_plane() -> Binaries:
    """Return the parts of a control plane.

    Raises:
        ToolError: something is not built yet; `build_control_plane` does it.
    """
    for files in CONTROL_PLANE_FILES:
        if not path_of(files).exists():
            what = f"{files.module.name}'s {files.name}"
            raise ToolError(f"{what} are not there: run `make test-tools`")
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
