"""Uses an existing cluster (kind, k3d, a real one) if the user requests it.

This takes two variables: KUBECONFIG says which cluster, USE_EXISTING_CLUSTER=true (controller-
runtime's convention) that tests may work on it. A KUBECONFIG alone may well be a production
cluster's, left over from other work: it is used only if it is that of a box of ours.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.binaries import find_kubectl
from tools.cluster.components import Layout
from tools.cluster.errors import BoxError
from tools.cluster.kubectl import Kubectl
from tools.cluster.machine.registry import is_box_kubeconfig
from tools.go_tools import ToolError, say

KUBECONFIG_VARIABLE = "KUBECONFIG"
CONSENT_VARIABLE = "USE_EXISTING_CLUSTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingCluster:
    """A cluster that was there before and stays afterwards.

    Attributes:
        kubeconfig: as the user gave it.
        kubectl: runs kubectl against it.
    """

    kubeconfig: Path
    kubectl: Kubectl

    def check(self) -> None:
        """Do nothing: its owner is responsible for it."""

    def stop(self, *, keep_logs: bool = False) -> None:
        """Do nothing: the cluster keeps running."""


def find_existing() -> ExistingCluster | None:
    """Return the cluster that the user wants used, None if there is none.

    Raises:
        BoxError: the user's variables do not go together.
        ToolError: there is no kubectl for it.
    """
    kubeconfig = _wanted_kubeconfig()
    if kubeconfig is None:
        return None
    cache = Path(tempfile.gettempdir(), f"lastmile-kubectl-{os.getuid()}")
    kubectl = Kubectl(program=_find_kubectl(kubeconfig), kubeconfig=kubeconfig, cache=cache)
    return ExistingCluster(kubeconfig=kubeconfig, kubectl=kubectl)


def _wanted_kubeconfig() -> Path | None:
    value = os.environ.get(KUBECONFIG_VARIABLE, "")
    has_consent = os.environ.get(CONSENT_VARIABLE, "").lower() in {"1", "true"}
    if not value and not has_consent:
        return None
    path = Path(value or Path.home() / ".kube" / "config").absolute()
    if has_consent:
        if not path.is_file():
            raise BoxError(
                f"{CONSENT_VARIABLE} needs {KUBECONFIG_VARIABLE}: one file, got {value!r}"
            )
        return path
    if path.is_file() and is_box_kubeconfig(path):
        return path
    say(f"not using {KUBECONFIG_VARIABLE}={value}: {CONSENT_VARIABLE}=true would")
    return None


def _find_kubectl(kubeconfig: Path) -> Path:
    """Return the box's own kubectl, else the user's, which fits the user's cluster, else ours."""
    on_path = shutil.which("kubectl")
    beside = Layout(folder=kubeconfig.parent).bin / "kubectl"
    if is_box_kubeconfig(kubeconfig) and beside.exists():
        return beside
    if on_path:
        return Path(on_path)
    try:
        return find_kubectl()
    except ToolError as error:
        raise ToolError(f"no kubectl on PATH, and {error}") from None
