"""A cluster as its users see it: `Box`, its kubectl, its folder and its errors.

A box is a control plane or a full node that was started here, or an existing cluster (kind, k3d, a
real one). Using an existing one takes two variables: KUBECONFIG names the cluster, and
USE_EXISTING_CLUSTER=true (controller-runtime's convention) allows tests to work on it. A KUBECONFIG
alone may be a production cluster's, left over from other work: it is used only if it is a box's.

BoxError
├── ComponentError   a process did not become ready, with the end of its log
│   └── PortTakenError   another process took its port in the meantime: try again with other ports
├── RequestError     the API server refused a request of the start
├── KubectlError     kubectl failed, with its output
└── NotRunningError  there is no box in that folder
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tools.cluster.binaries import find_kubectl
from tools.go_tools import ToolError, say

KUBECONFIG_VARIABLE = "KUBECONFIG"
CONSENT_VARIABLE = "USE_EXISTING_CLUSTER"
MARKER = "box.json"  # in a box's folder: its record, which identifies the folder as a box's
LOG_LINES = 20  # of a failed component's log: the cause is among the last ones
KUBECTL_TIMEOUT_SECONDS = 120.0  # of a command, besides the --timeout that it may have
_OWN_TIMEOUT = re.compile(r"--timeout=(\d+)s")


class BoxError(Exception):
    """Something about a cluster in a box failed; the message says what to do."""


class ComponentError(BoxError):
    """A component did not become ready.

    Args:
        name: of the component.
        what: what it did, as the predicate of a sentence about it.
        log: its log, whose end is shown.
    """

    def __init__(self, name: str, what: str, log: Path) -> None:
        self.component = name
        tail = "\n".join(read_log(log).splitlines()[-LOG_LINES:]) or "(empty)"
        super().__init__(f"{name} {what}; the end of {log}:\n{tail}")


class PortTakenError(ComponentError):
    """A component ended because its port was taken since it was picked."""


class RequestError(BoxError):
    """The API server refused a request.

    Args:
        request: its method and path.
        status: the HTTP status.
        said: the server's answer.
    """

    def __init__(self, request: str, status: int, said: str) -> None:
        super().__init__(f"{request} was answered with {status}: {said.strip()}")


class KubectlError(BoxError):
    """kubectl ended with a code other than 0.

    Args:
        arguments: of kubectl.
        said: its standard error.
    """

    def __init__(self, arguments: tuple[str, ...], said: str) -> None:
        self.said = said
        super().__init__(f"`kubectl {' '.join(arguments)}` failed: {said.strip()}")


class NotRunningError(BoxError):
    """There is no box in that folder."""


def read_log(log: Path) -> str:
    """Return the log's text; a component that never started has none."""
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths in the folder of a box."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def etcd(self) -> Path:
        return self.folder / "etcd"

    @property
    def bin(self) -> Path:
        """Holds kubectl, for PATH."""
        return self.folder / "bin"

    def kubeconfig_of(self, component: str) -> Path:
        return self.pki / f"{component}.kubeconfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """A kubectl for one cluster, which reads none of the user's own settings and caches.

    Attributes:
        program: its path.
        kubeconfig: the cluster's.
        cache: a folder for kubectl's discovery cache.
    """

    program: Path
    kubeconfig: Path
    cache: Path

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output.

        Args:
            arguments: such as `"get", "pods", "-o", "name"`.
            stdin: its input, if an argument is `-`.

        Raises:
            KubectlError: it ended with a code other than 0, or took too long.
        """
        waits = (match[1] for text in arguments if (match := _OWN_TIMEOUT.fullmatch(text)))
        timeout_seconds = KUBECTL_TIMEOUT_SECONDS + sum(map(float, waits))
        own = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.cache), "KUBERC": "off"}
        try:
            done = subprocess.run(
                [str(self.program), *arguments],
                input=stdin or "",
                env={**os.environ, **own},
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = f"it took longer than {timeout_seconds:.0f} s"
            raise KubectlError(arguments, said) from None
        if done.returncode != 0:
            raise KubectlError(arguments, done.stderr)
        return done.stdout


class Box(Protocol):
    """A cluster to test against: `ControlPlane` or `ExistingCluster`."""

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator."""

    @property
    def kubectl(self) -> Kubectl:
        """Runs kubectl as that administrator: `box.kubectl("get", "pods")` returns its output."""

    def check(self) -> None:
        """Raise if a process of it that was started here has ended."""

    def stop(self, *, keep_logs: bool = False) -> None:
        """End it, if it was started here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingCluster:
    """A cluster that was there before and stays afterwards.

    Attributes:
        kubeconfig: the user's.
        kubectl: runs kubectl against it.
    """

    kubeconfig: Path
    kubectl: Kubectl

    def check(self) -> None:
        """Do nothing: its owner is responsible for it."""

    def stop(self, *, keep_logs: bool = False) -> None:
        """Do nothing: the cluster keeps running."""


def find_existing() -> ExistingCluster | None:
    """Return the existing cluster to use, if the user names one.

    Raises:
        BoxError: the user's variables contradict each other.
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


def is_box_kubeconfig(kubeconfig: Path) -> bool:
    """Return whether a kubeconfig belongs to a box, by the record beside it."""
    return (kubeconfig.resolve().parent / MARKER).exists()
