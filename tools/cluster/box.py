"""A cluster as tests see it: a control plane of their own or an existing one."""

from pathlib import Path
from typing import Protocol

from tools.cluster.kubectl import Kubectl


class Box(Protocol):
    """A cluster to test against: `ControlPlane` or `ExistingCluster`."""

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator."""

    @property
    def kubectl(self) -> Kubectl:
        """Runs kubectl as that administrator: `box.kubectl("get", "pods")` returns its output."""

    def check(self) -> None:
        """Raise if a part of it that was started here has ended."""

    def stop(self, *, keep_logs: bool = False) -> None:
        """End it, if it was started here."""
