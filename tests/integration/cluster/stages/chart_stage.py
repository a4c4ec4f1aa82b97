"""A release of the chart on a test cluster, installed by real helm in its own namespace."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cluster_commands import wait_until
from commands import LASTMILE, User
from helm_chart import CHART, RELEASE, Document, Helm
from reconcile_stage import NAME

from tools.cluster.box import Box, KubectlError

OPERATOR = "lastmile-operator"
HOOK = "lastmile-release-finalizers"
CRD = "datasetexperiments.experiments.lastmile.dev"
CRD_FILE = "files/crds/datasetexperiments.yaml"
# A field that an older chart's CRD lacks.
ADDED = "ttlSecondsAfterFinished"
TOKEN_SECONDS = 3600
# Options to take over a CRD that kubectl manages.
TAKE_OVER = ("--take-ownership", "--force-conflicts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release, installed or about to be."""

    box: Box
    helm: Helm
    namespace: str

    def run(self, verb: str, chart: Path = CHART, *options: str, **values: Any) -> str:
        """Run `install` or `upgrade`, which takes over a CRD that kubectl has installed."""
        where = (RELEASE, str(chart), "--namespace", self.namespace, *TAKE_OVER)
        return self.helm(verb, *where, *options, "-f", "-", stdin=yaml.safe_dump(values))

    def command(self, verb: str, *arguments: str) -> str:
        return self.helm(verb, RELEASE, *arguments, "--namespace", self.namespace)

    def get(self, kind: str, name: str) -> Document:
        text = self.box.kubectl("get", kind, name, "-n", self.namespace, "-o", "json")
        document: Document = json.loads(text)
        return document

    @property
    def settings(self) -> Document:
        """The settings that the operator's pods read."""
        text = self.get("configmap", OPERATOR)["data"]["settings.yaml"]
        return dict(yaml.safe_load(text))

    @property
    def arguments(self) -> list[str]:
        [container] = self.get("deployment", OPERATOR)["spec"]["template"]["spec"]["containers"]
        return list(container["args"])

    def user(self, account: str = OPERATOR) -> str:
        """The name under which the API server knows a service account of the release."""
        return f"system:serviceaccount:{self.namespace}:{account}"

    def may(self, account: str, *arguments: str) -> bool:
        """Ask the API server whether a service account of the release may do something."""
        try:
            self.box.kubectl("auth", "can-i", "--quiet", "--as", self.user(account), *arguments)
        except KubectlError:
            return False
        return True

    def kubeconfig(self, folder: Path, account: str = OPERATOR) -> Path:
        """Write a kubeconfig with nothing but a service account's token and namespace."""
        options = ("-n", self.namespace, f"--duration={TOKEN_SECONDS}s")
        token = self.box.kubectl("create", "token", account, *options).strip()
        document = yaml.safe_load(self.box.kubeconfig.read_text())
        for user in document["users"]:
            user["user"] = {"token": token}
        for context in document["contexts"]:
            context["context"]["namespace"] = self.namespace
        path = folder / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path


def copy_older_chart(folder: Path) -> Path:
    """Copy the chart as an older version, whose CRD lacks a field."""
    older = folder / "older" / "lastmile"
    shutil.copytree(CHART, older)
    crd = yaml.safe_load((older / CRD_FILE).read_text())
    [version] = crd["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][ADDED]
    (older / CRD_FILE).write_text(yaml.safe_dump(crd))
    about = yaml.safe_load((older / "Chart.yaml").read_text())
    (older / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "0.0.9"}))
    return older


def served_fields(box: Box) -> set[str]:
    """Return the fields of the spec in the installed CRD."""
    crd = json.loads(box.kubectl("get", "crd", CRD, "-o", "json"))
    [version] = crd["spec"]["versions"]
    return set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


@contextmanager
def other_namespace(box: Box, name: str) -> Iterator[str]:
    """Create a namespace besides the test's own, and delete it at the end."""
    box.kubectl("create", "namespace", name)
    box.kubectl("wait", "--for=create", "--timeout=60s", "serviceaccount/default", f"-n={name}")
    try:
        yield name
    finally:
        box.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@contextmanager
def uninstalling(release: Release) -> Iterator["subprocess.Popen[str]"]:
    """Run `helm uninstall` while the test plays the hook's pod."""
    command = [release.helm.program, "uninstall", RELEASE, "-n", release.namespace]
    with subprocess.Popen(
        command,
        env=release.helm.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def play_hook(release: Release, process: "subprocess.Popen[str]", folder: Path) -> str:
    """Run the command of the hook's pod under its service account; return its output."""
    pods = ("get", "pods", "-n", release.namespace, "-l", f"job-name={HOOK}", "-o", "name")
    wait_until(lambda: bool(release.box.kubectl(*pods).strip()) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    # The operator, which may still run, can no longer add the finalizers again.
    assert not release.may(OPERATOR, "patch", "datasetexperiments", "-A")
    [container] = release.get("job", HOOK)["spec"]["template"]["spec"]["containers"]
    done = subprocess.run(
        [LASTMILE, "operator", *container["args"]],
        env=User(
            box=release.box,
            namespace=release.namespace,
            kubeconfig=release.kubeconfig(folder, HOOK),
        ).environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [pod] = release.box.kubectl(*pods).split()
    patch = json.dumps({"status": {"phase": "Succeeded"}})
    how = ("--subresource=status", "--type=merge", "-p", patch)
    release.box.kubectl("patch", pod, "-n", release.namespace, *how)
    return done.stdout


def finalizers(box: Box, namespace: str) -> list[str]:
    """Return the finalizers of a stage's experiment."""
    text = box.kubectl("get", "dsexp", NAME, "-n", namespace, "-o", "json")
    held: list[str] = json.loads(text)["metadata"].get("finalizers") or []
    return held
