"""The stand-in where the API server's proxy reaches it: at an address that a head's pod may have.

Simulated pods have no network, so a head's pod is given this machine's own address, where the
stand-in listens. The API server proxies to nothing but addresses of pods, and to no loopback one.
"""

import base64
import json
import socket

import pytest
from reconcile_stage import Stage

from dataset_operator.api import TOKEN_KEY
from dataset_operator.testing import StandInRay
from tools.cluster.box import Box


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: nobody has it
        except OSError:
            pytest.skip("this machine has no address but loopback, to which no API server proxies")
        address: str = probe.getsockname()[0]
        return address


def give_address(box: Box, namespace: str, pod: str, ray: StandInRay) -> None:
    """Say that a pod is where the stand-in listens."""
    status = {"status": {"podIP": ray.host, "podIPs": [{"ip": ray.host}]}}
    patch = ("--subresource=status", "--type=merge", "--patch", json.dumps(status))
    box.kubectl("patch", pod, "-n", namespace, *patch)


def target_ports(ray: StandInRay) -> list[dict[str, int]]:
    """Return a head's Service ports, each with the stand-in's port as its target."""
    return [
        {"port": port, "targetPort": int(url.rpartition(":")[2])} for port, url in ray.urls.items()
    ]


async def take_heads_place(stage: Stage) -> None:
    """Have the pod and the Service that KubeRay made lead to the stand-in, which knows the token.

    KubeRay leaves a Service alone once it has made it.
    """
    box, here, owner = stage.box, stage.namespace, await stage.owner()
    patch = json.dumps({"spec": {"ports": target_ports(stage.ray)}})
    box.kubectl("patch", "service", owner.head_service, "-n", here, "--patch", patch)
    head = f"ray.io/cluster={owner.ray_cluster},ray.io/node-type=head"
    pod = box.kubectl("get", "pods", "-n", here, "-l", head, "-o", "name").strip()
    give_address(box, here, pod, stage.ray)
    secret = await stage.reconciler.kube.get("Secret", here, owner.token_secret)
    assert secret is not None
    stage.ray.token = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
