"""A node with real pods, a store that they reach, and the operator; root only, and slow.

What is missing is said: not root, programs or images that are not built. In CI it is a failure.
The node goes with the last test of this folder: what is run next needs the memory.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.fs as pafs
import pytest

# A package for the sake of its fixtures' scope; its modules import `stage` as others do theirs.
sys.path.insert(0, str(Path(__file__).parent))

from helm_chart import Helm
from ordered import run_here
from release import IMAGES, OPERATOR_NAMESPACE, Release
from stage import BUCKET, LASTMILE, NAMESPACE, ROLES, S3_PORT, VOLUME, Stage, Store

from tools.build_tools import HELM, VERSITYGW, find_built
from tools.buildah import missing_for_images
from tools.cluster.binaries import find_full_node
from tools.cluster.box import BoxError
from tools.cluster.full_node import FullNode, NodeSettings, require_root
from tools.go_tools import ToolError
from tools.images import Image, build_image

OF_THE_CLUSTER = ("Namespace", "PersistentVolume")
NO_PODS = "no end-to-end test in real pods"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
SAMPLE_ROWS = 60_000


@pytest.fixture(scope="package")
def runtime_image(skip_unless_ci: Callable[[str], NoReturn]) -> Image:
    """The image that the pods run, of this checkout."""
    if reason := missing_for_images():
        skip_unless_ci(f"{NO_PODS}: {reason}")
    return build_image("runtime")


@pytest.fixture(scope="package")
def node(runtime_image: Image, skip_unless_ci: Callable[[str], NoReturn]) -> Iterator[FullNode]:
    """A node that runs real pods, with the image on it; its CRDs are KubeRay's."""
    try:
        require_root()
        parts = find_full_node()
    except (BoxError, ToolError) as error:
        skip_unless_ci(f"{NO_PODS}: {error}")
    settings = NodeSettings(resources={"nvidia.com/gpu": "1"})
    folder = Path(f"/tmp/lastmile-e2e-{secrets.token_hex(4)}")  # sockets need a short path
    started = FullNode.start(folder, parts=parts, settings=settings)
    try:
        started.import_streamed(runtime_image)
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="package")
def store(node: FullNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An S3 server in the node's network and a shared folder, both with the sample data."""
    folder = tmp_path_factory.mktemp("store")
    for name in ("buckets", "volume"):
        (folder / name).mkdir()
    access_key, secret_key = f"test-{secrets.token_hex(6)}", secrets.token_hex(20)
    address = f"{node.network.node_address}:{S3_PORT}"
    environment = {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with (folder / "versitygw.log").open("wb") as log:
        server = node.popen(
            [find_built(VERSITYGW), "--port", address, "posix", folder / "buckets"],
            env={**os.environ, "ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key},
            stdout=log,
            stderr=log,
        )
    filesystem = pafs.S3FileSystem(
        access_key=access_key,
        secret_key=secret_key,
        endpoint_override=address,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    _until_answers(filesystem)
    data = folder / "volume" / "data"
    command = [LASTMILE, "sample-data", "--rows", str(SAMPLE_ROWS), "--output", data]
    subprocess.run(command, check=True, capture_output=True)
    pafs.copy_files(str(data), f"{BUCKET}/team/data", destination_filesystem=filesystem)
    subprocess.run(["chmod", "-R", "a+rwX", folder], check=True)
    yield Store(environment=environment, filesystem=filesystem, volume=folder / "volume")
    server.terminate()
    server.wait(STOP_SECONDS)


def _until_answers(filesystem: pafs.S3FileSystem) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            filesystem.create_dir(BUCKET)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.fixture(scope="package")
def undisturbed(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of the ordered run where nothing disturbs it: on this machine, no Kubernetes."""
    return run_here(store.volume, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="package")
def stage(
    node: FullNode, store: Store, runtime_image: Image, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    """Namespaces under the `restricted` pod security level, and the operator by its chart."""
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    for namespace in (NAMESPACE, OPERATOR_NAMESPACE):
        _create(node, "Namespace", namespace, labels=enforced)
    _create(node, "Secret", "storage", stringData=store.environment)
    _create_volume(node, store.volume)
    images = {"runtime": runtime_image, "operator": build_image("operator")}
    for name, image in images.items():
        node.import_streamed(image)
        node.name_image(image, IMAGES[name])
    home = tmp_path_factory.mktemp("helm")
    release = Release(
        helm=Helm(program=str(find_built(HELM)), home=home, kubeconfig=node.kubeconfig),
        values=narrow(node.network.node_address),
    )
    release.install()
    return Stage(node=node, store=store, release=release)


def narrow(address: str) -> dict[str, Any]:
    """Values for a small node, and no way out but to what is needed.

    Args:
        address: the node's, on which the API server, the name server and the store listen.
    """
    to = [{"ipBlock": {"cidr": f"{address}/32"}}]
    store = {"to": to, "ports": [{"port": S3_PORT, "protocol": "TCP"}]}
    names = {"to": to, "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    egress = {"enabled": True, "apiServerCidrs": [f"{address}/32"], "nameServers": [names]}
    return {
        "settings": {
            "resources": ROLES,
            "dataWorkerReplicas": 2,
            "network": {"egress": [store], "nameServers": [names]},
        },
        "networkPolicy": {"egress": egress},
    }


def _create(node: FullNode, kind: str, name: str, *, labels: object = None, **more: object) -> None:
    metadata = {"name": name, "labels": labels or {}}
    metadata |= {} if kind in OF_THE_CLUSTER else {"namespace": NAMESPACE}
    document = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}
    node.kubectl("create", "-f", "-", stdin=json.dumps(document))


def _create_volume(node: FullNode, folder: Path) -> None:
    """A volume that is a folder of the node, as an administrator would make one of NFS."""
    size = {"storage": "1Gi"}
    modes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    place = {"capacity": size, "hostPath": {"path": str(folder)}, **modes}
    _create(node, "PersistentVolume", VOLUME, spec=place)
    claim = {"resources": {"requests": size}, "volumeName": VOLUME, **modes}
    _create(node, "PersistentVolumeClaim", VOLUME, spec=claim)
