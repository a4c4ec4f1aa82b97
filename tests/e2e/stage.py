"""A namespace of real pods, its store, and the operator as a process: what the tests act on."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow.fs as pafs
import yaml
from release import OPERATOR_NAMESPACE, Release

from dataset_operator.api import EXPERIMENT_LABEL, ROLE_LABEL, Role
from tools.cluster.box import KubectlError
from tools.cluster.full_node import FullNode

NAMESPACE = "ranking"
BUCKET = "bucket"  # the README's
S3_PORT = 7070
VOLUME = "team"
MOUNT = "/mnt/team"  # of the volume, in every pod
ROOT = Path(__file__).parents[2]
LASTMILE = Path(sys.executable).with_name("lastmile")
# What two cores can carry at once: a head, a trainer and two data workers.
ROLES = {
    "head": {
        "requests": {"cpu": "200m", "memory": "2Gi"},
        "limits": {"memory": "3Gi"},
    },
    "trainers": {
        "requests": {"cpu": "300m", "memory": "2Gi"},
        "limits": {"memory": "4Gi"},
    },
    "dataWorkers": {
        "requests": {"cpu": "300m", "memory": "1536Mi"},
        "limits": {"cpu": "1", "memory": "2560Mi"},
    },
}
OPERATOR_LOG = ("logs", "-n", OPERATOR_NAMESPACE, "deployment/lastmile-operator", "--tail=50")
POLL_SECONDS = 1.0
# The container's first process goes first, by the kernel's choice, and all others with it: it is
# marked, Ray's workers are no longer, and of those that eat none is large.
_EAT = """
import contextlib
import os
import time
from pathlib import Path
mine = Path("/proc/self/oom_score_adj").read_text()
for other in Path("/proc").glob("[0-9]*/oom_score_adj"):
    with contextlib.suppress(OSError): # it is gone
        other.write_text("1000" if other.parent.name == "1" else mine)
for _ in range(32):
    if os.fork() == 0:
        break
eaten = b"x" * (128 << 20)
time.sleep(600)
"""
# A run takes two minutes on an idle machine; this one may build something else meanwhile.
DEADLINE_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An S3 server that this machine and the pods reach, and a folder that is a volume of theirs.

    Attributes:
        environment: what a client needs to talk to the server.
        volume: the folder, on this machine.
    """

    environment: dict[str, str]
    filesystem: pafs.S3FileSystem
    volume: Path

    def read(self, path: str) -> bytes:
        with self.filesystem.open_input_stream(f"{BUCKET}/{path}") as stream:
            content: bytes = stream.read()
        return content

    def files(self, path: str) -> list[str]:
        found = self.filesystem.get_file_info(pafs.FileSelector(f"{BUCKET}/{path}", recursive=True))
        return sorted(f.path.removeprefix(f"{BUCKET}/") for f in found if f.is_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Stage of a test: the operator runs in a pod of its own, as the chart installs it."""

    node: FullNode
    store: Store
    release: Release
    namespace: str = NAMESPACE

    def within(self, namespace: str) -> Self:
        """The same in another namespace."""
        return replace(self, namespace=namespace)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.node.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "dsexp", name, "-o", "json"))
        return found

    def apply(self, manifest: str) -> None:
        """Apply a manifest by what a user types, and wait until the operator has looked at it."""
        self.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=manifest)

    def until(self, name: str, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Wait until an experiment is so; fail with what it says if it has failed or never is."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            found = self.get(name)
            if holds(found):
                return found
            is_failed = condition(found, "Failed") is not None
            if is_failed or time.monotonic() > deadline:
                raise AssertionError(self.tell(found))
            time.sleep(POLL_SECONDS)

    def run_pod(self, name: str, image: str, command: list[str]) -> str:
        """Run a command in a pod under the `restricted` level, and return its output."""
        container = {
            "name": name,
            "image": image,
            "command": command,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        try:
            ended = "--for=jsonpath={.status.phase}=Succeeded"
            self.kubectl("wait", ended, f"pod/{name}", "--timeout=300s")
            return self.kubectl("logs", name)
        except KubectlError as error:
            raise AssertionError(self.kubectl("describe", "pod", name)) from error
        finally:
            self.kubectl("delete", "pod", name, "--wait=false")

    def find_pod(self, name: str, role: Role) -> str:
        """The name of a pod of an experiment."""
        labels = f"{EXPERIMENT_LABEL}={name},{ROLE_LABEL}={role}"
        pod, *_ = self.kubectl("get", "pods", "-l", labels, "-o", "name").split()
        return pod.removeprefix("pod/")

    def lose(self, name: str, role: Role) -> None:
        """Take a pod of an experiment away at once, as if its node had gone."""
        self.kubectl("delete", "pod", self.find_pod(name, role), "--force", "--grace-period=0")

    def starve(self, pod: str) -> None:
        """Use up the memory that a pod's Ray container may have: the kernel kills its processes."""
        with contextlib.suppress(KubectlError):  # it is killed with the container
            self.kubectl("exec", pod, "-c", "ray", "--", "python", "-c", _EAT)

    @contextlib.contextmanager
    def watched_ends(self, pod: str) -> Iterator[Path]:
        """A file of why containers of a pod end, by Kubernetes' word for it, as it is told."""
        kubectl = self.node.kubectl
        path = kubectl.cache.with_name(f"{pod}.ends")
        ends = ("-o", r'jsonpath={..terminated.reason}{"\n"}')
        command = (str(kubectl.program), "-n", self.namespace, "get", "pod", pod, "--watch", *ends)
        env = {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)}
        with path.open("wb") as told, subprocess.Popen(command, stdout=told, env=env) as process:
            try:
                yield path
            finally:
                process.terminate()

    def warnings(self, name: str, reason: str) -> list[str]:
        """Return the messages of an experiment's warning events with this reason."""
        about = f"involvedObject.name={name},type=Warning,reason={reason}"
        events = json.loads(self.kubectl("get", "events", "--field-selector", about, "-o", "json"))
        return [event["message"] for event in events["items"]]

    def tell(self, document: dict[str, Any]) -> str:
        """Everything that helps to see why."""
        pods = self.kubectl("get", "pods", "-o", "wide")
        status = yaml.safe_dump(document.get("status"))
        try:
            log = self.node.kubectl(*OPERATOR_LOG)
        except KubectlError as error:  # the release is gone, say; the rest is told all the same
            log = str(error)
        return f"{status}\n{pods}\n{log[-4000:]}"


def condition(document: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """A condition that is true."""
    conditions = document.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind and c["status"] == "True"), None)


def kill_operator(stage: Stage) -> None:
    labels = "app.kubernetes.io/name=lastmile-operator"
    away = ("delete", "pod", "-l", labels, "--force", "--grace-period=0")
    stage.node.kubectl("-n", OPERATOR_NAMESPACE, *away)
