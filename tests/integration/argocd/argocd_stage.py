"""The real Argo CD on a control plane: it syncs a git repository on disk, as the samples say.

Its programs run beside the box's own, belong to it and end with it. `deploy/argocd` is applied as
it is, but for the address of the repository, which is the reader's to edit too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from git_repository import Repository
from loopback import free_ports

from tools.build_tools import ARGOCD, ARGOCD_CRDS, find_built, find_redis
from tools.cluster.components import HOST, Component, Probe
from tools.cluster.control_plane import ControlPlane
from tools.cluster.startup import Running

DEPLOY = Path(__file__).parents[3] / "deploy"
SAMPLES = DEPLOY / "argocd"
SAMPLE_REPOSITORY = "https://git.example.com/ml/experiments.git"
NAMESPACE = "argocd"
Document = dict[str, Any]

# What Argo CD's own installation brings, as far as its controllers need it. The password of a
# server that does not run here is never read, but has to be there.
INSTALLED = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "argocd-cm",
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/part-of": "argocd"},
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "argocd-secret",
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/part-of": "argocd"},
        },
        "stringData": {"server.secretkey": "none"},
    },
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgoCD:
    """An Argo CD that runs."""

    box: ControlPlane

    @classmethod
    def start(cls, box: ControlPlane) -> ArgoCD:
        """Install what its controllers need, and start them.

        Raises:
            ToolError: the programs are not there.
            ComponentError: one of them does not become ready.
        """
        apply = ("apply", "--server-side", "-f")
        for path in sorted(find_built(ARGOCD_CRDS).glob("*-crd.yaml")):
            box.kubectl(*apply, str(path))
        items = {"apiVersion": "v1", "kind": "List", "items": INSTALLED}
        box.kubectl(*apply, "-", stdin=json.dumps(items))
        started = cls(box=box)
        started._patch_config()
        started._start_programs()
        return started

    def _patch_config(self) -> None:
        """The command of the sample's head."""
        file = f"--patch-file={SAMPLES / 'argocd-cm.yaml'}"
        self.box.kubectl("patch", "configmap", "argocd-cm", "-n", NAMESPACE, "--type=merge", file)

    def _start_programs(self) -> None:
        running = Running(self.box.record.id, self.box.layout, HOST, detached=False)
        redis, repo, repo_metrics, *more = free_ports(7)
        running.start(self._redis(redis), self._repo_server(repo, repo_metrics, redis))
        running.start(self._controller(repo, redis, more[0]), self._set_controller(repo, more[1:]))
        running.wait()

    def _program(self, name: str, found: Path) -> Path:
        """Both Argo CD and Debian's Redis are what they are called by."""
        link = self.box.layout.bin / name
        link.symlink_to(found)
        return link

    def _component(
        self, name: str, found: Path, probe: Probe | None, env: dict[str, str], *arguments: str
    ) -> Component:
        folder = self.box.layout.folder / name
        folder.mkdir()
        own = {"TMPDIR": str(folder), "KUBECONFIG": str(self.box.kubeconfig), **env}
        variables = (f"{key}={value}" for key, value in own.items())
        return Component(
            name=name,
            command=("env", *variables, str(self._program(name, found)), *arguments),
            log=self.box.layout.logs / f"{name}.log",
            probe=probe,
        )

    def _redis(self, port: int) -> Component:
        program = find_redis()
        libraries = ":".join(str(path) for path in program.parents[1].glob("lib/*-linux-gnu"))
        options = ("--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no")
        options += ("--set-proc-title", "no")  # it is found by the environment that would lie there
        env = {"LD_LIBRARY_PATH": libraries}
        return self._component("redis-server", program, None, env, *options)

    def _repo_server(self, port: int, metrics_port: int, redis_port: int) -> Component:
        name = "argocd-repo-server"
        socket = self.box.layout.folder / "ask"
        return self._component(
            name,
            find_built(ARGOCD),
            Probe(port=metrics_port, path="/healthz", is_tls=False),
            {"ARGOCD_GPG_ENABLED": "false", "ARGOCD_ASK_PASS_SOCK": str(socket)},
            f"--address={HOST}",
            f"--port={port}",
            f"--metrics-address={HOST}",
            f"--metrics-port={metrics_port}",
            f"--redis={HOST}:{redis_port}",
            "--disable-tls",
        )

    def _controller(self, repo_port: int, redis_port: int, metrics_port: int) -> Component:
        return self._component(
            "argocd-application-controller",
            find_built(ARGOCD),
            None,  # that an Application is synced shows that it is ready
            {"ARGOCD_FAKE_IN_CLUSTER": "true"},  # the cluster is that of KUBECONFIG
            f"--namespace={NAMESPACE}",
            f"--kubeconfig={self.box.kubeconfig}",
            f"--repo-server={HOST}:{repo_port}",
            "--repo-server-plaintext",
            f"--redis={HOST}:{redis_port}",
            f"--metrics-port={metrics_port}",
            "--persist-resource-health",  # in the Application too, not for the web page alone
        )

    def _set_controller(self, repo_port: int, ports: list[int]) -> Component:
        metrics_port, probe_port, webhook_port = ports
        return self._component(
            "argocd-applicationset-controller",
            find_built(ARGOCD),
            None,
            {"ARGOCD_FAKE_IN_CLUSTER": "true"},
            f"--namespace={NAMESPACE}",
            f"--argocd-repo-server={HOST}:{repo_port}",
            "--repo-server-plaintext",
            f"--metrics-addr={HOST}:{metrics_port}",
            f"--probe-addr={HOST}:{probe_port}",
            f"--webhook-addr={HOST}:{webhook_port}",
        )

    # --- what a reader of the samples does ------------------------------------------------------

    def apply_sample(self, name: str, repository: Repository) -> Document:
        """Apply a sample, with the one edit that it asks for."""
        text = (SAMPLES / name).read_text().replace(SAMPLE_REPOSITORY, repository.url)
        self.box.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=text)
        document: Document = yaml.safe_load(text)
        return document

    def application(self, name: str) -> Document:
        found = self.box.kubectl("get", "application", name, "-n", NAMESPACE, "-o", "json")
        document: Document = json.loads(found)
        return document


def health_of(application: Document) -> dict[tuple[str, str], tuple[str, str]]:
    """Health and message of each resource, by its kind and name."""
    resources = application.get("status", {}).get("resources", [])
    return {
        (item["kind"], item["name"]): (
            item.get("health", {}).get("status", ""),
            item.get("health", {}).get("message", ""),
        )
        for item in resources
    }


def synced_to(application: Document) -> str:
    """The commit that it is in step with; "" while it is not."""
    sync = application.get("status", {}).get("sync", {})
    return sync.get("revision", "") if sync.get("status") == "Synced" else ""


def out_of_sync(application: Document) -> list[str]:
    """Names of the resources that differ from what Git has."""
    resources = application.get("status", {}).get("resources", [])
    return [item["name"] for item in resources if item.get("status") != "Synced"]
