"""The pods of the full node's tests; they satisfy the pod security level `restricted`."""

import json
from typing import Any

from tools.cluster.full_node import FullNode

IMAGE = "lastmile.invalid/probe:1"
PORT = 8080
WAIT = "--timeout=120s"  # each is there within seconds on an idle machine
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def build_server(name: str, text: str, gpus: int = 0) -> dict[str, Any]:
    """Return a pod that answers every request with `text`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "probe",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "args": ["serve", f":{PORT}", text],
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": PORT}},
                    "securityContext": RESTRICTED,
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
                }
            ],
        },
    }


def create(node: FullNode, namespace: str, *manifests: dict[str, Any]) -> None:
    """Create objects in the namespace."""
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    node.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(listed))


def run_server(node: FullNode, namespace: str, name: str, text: str, gpus: int = 0) -> None:
    """Return once a server is Ready."""
    create(node, namespace, build_server(name, text, gpus))
    node.kubectl("wait", "--for=condition=Ready", WAIT, "-n", namespace, f"pod/{name}")


def get(node: FullNode, namespace: str, pod: str, url: str) -> str:
    """Return what `url` answers to a pod."""
    return node.kubectl("exec", "-n", namespace, pod, "--", "/probe", "get", url).strip()
