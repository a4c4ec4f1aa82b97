"""The full node is a node: real containers, DNS, Services, logs, and no way to the outside."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from probe_pods import PORT, WAIT, build_server, create, get, run_server

from tools.cluster.binaries import CONTAINERD_MODULE, KUBERNETES_MODULE
from tools.cluster.box import BoxError, KubectlError
from tools.cluster.full_node import FullNode

pytestmark = pytest.mark.slow  # tests/e2e runs pods on such a node in each change

CLIENT_PORT = 7_070
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


@pytest.fixture
def service(node: FullNode, namespace: str) -> str:
    """Run a server behind a Service; return its name in the cluster's DNS."""
    run_server(node, namespace, "web", "hello")
    node.kubectl("expose", "pod", "web", "-n", namespace, "--port=80", f"--target-port={PORT}")
    name = f"web.{namespace}.svc.cluster.local"
    wait_for(lambda: node.run([sys.executable, "-c", GET, f"http://{name}/"]), BoxError)
    return name


@contextmanager
def serving(node: FullNode, folder: Path) -> Iterator[str]:
    """Serve a folder from a process in the node's network; yield its URL."""
    address = node.network.node_address
    arguments = ("--bind", address, "--directory", folder, str(CLIENT_PORT))
    server = node.popen([sys.executable, "-m", "http.server", *arguments])
    try:
        wait_for(lambda: socket.create_connection((address, CLIENT_PORT)).close(), OSError)
        yield f"http://{address}:{CLIENT_PORT}"
    finally:
        server.kill()
        server.wait()


def wait_for(work: Callable[[], object], error: type[Exception]) -> None:
    """Do what is bound to work in a moment; the time limit of the test ends the wait."""
    while True:
        with suppress(error):
            work()
            return
        time.sleep(0.1)


def test_it_is_a_ready_node_of_the_pinned_versions(node: FullNode) -> None:
    (found,) = json.loads(node.kubectl("get", "nodes", "-o", "json"))["items"]
    info, ready = found["status"]["nodeInfo"], found["status"]["conditions"][-1]

    assert (ready["type"], ready["status"]) == ("Ready", "True")
    assert info["kubeletVersion"] == KUBERNETES_MODULE.version
    assert info["containerRuntimeVersion"] == f"containerd://{CONTAINERD_MODULE.version[1:]}"
    assert None not in node.processes().values()


def test_a_pod_runs_and_its_logs_and_programs_are_at_hand(node: FullNode, namespace: str) -> None:
    run_server(node, namespace, "web", "hello")

    assert get(node, namespace, "web", f"http://localhost:{PORT}/by-exec") == "hello"
    logs = node.kubectl("logs", "-n", namespace, "web").splitlines()
    assert logs[0] == f'serving "hello" on :{PORT}'
    assert "GET /by-exec" in logs


def test_a_pod_reaches_another_by_the_name_of_its_service(
    node: FullNode, namespace: str, service: str
) -> None:
    run_server(node, namespace, "caller", "unused")

    assert get(node, namespace, "caller", f"http://{service}/") == "hello"
    assert get(node, namespace, "caller", "http://web/") == "hello"  # by its search path


def test_a_pod_reaches_itself_by_the_name_of_its_service(
    node: FullNode, namespace: str, service: str
) -> None:
    assert get(node, namespace, "web", f"http://{service}/") == "hello"


def test_a_client_in_the_nodes_network_sees_services(node: FullNode, service: str) -> None:
    assert node.run([sys.executable, "-c", GET, f"http://{service}/"]).strip() == "hello"


def test_the_api_server_passes_requests_on_to_services(
    node: FullNode, namespace: str, service: str
) -> None:
    assert service.startswith("web.")
    path = f"/api/v1/namespaces/{namespace}/services/web:80/proxy/"
    assert node.kubectl("get", "--raw", path) == "hello\n"


def test_pods_reach_what_a_client_in_the_nodes_network_serves(
    node: FullNode, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "greeting").write_text("from the machine's disk")
    run_server(node, namespace, "caller", "unused")

    with serving(node, tmp_path) as url:
        assert get(node, namespace, "caller", f"{url}/greeting") == "from the machine's disk"


def test_nothing_outside_is_reached_and_that_is_known_at_once(
    node: FullNode, namespace: str
) -> None:
    run_server(node, namespace, "caller", "unused")

    with pytest.raises(KubectlError, match="no such host"):
        get(node, namespace, "caller", "http://example.com/")
    with pytest.raises(KubectlError, match="network is unreachable"):
        get(node, namespace, "caller", "http://8.8.8.8/")


def test_network_policies_are_enforced(node: FullNode, namespace: str) -> None:
    for name in ("web", "friend", "stranger"):
        run_server(node, namespace, name, "hello")
    address = ("-o", "jsonpath={.status.podIP}")
    url = f"http://{node.kubectl('get', 'pod', 'web', '-n', namespace, *address)}:{PORT}/"
    assert get(node, namespace, "stranger", url) == "hello"

    friends = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}
    spec = {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [friends]}
    about = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    create(node, namespace, {**about, "metadata": {"name": "friends"}, "spec": spec})

    def check_refused() -> None:
        with pytest.raises(KubectlError, match="refused"):
            get(node, namespace, "stranger", url)

    wait_for(check_refused, pytest.fail.Exception)  # it is enforced a moment later
    assert get(node, namespace, "friend", url) == "hello"


def test_pods_get_gpus_that_the_node_says_it_has_until_there_are_no_more(
    node: FullNode, namespace: str
) -> None:
    run_server(node, namespace, "trainer", "hello", gpus=3)
    create(node, namespace, build_server("late", "hello", gpus=2))

    refused = "--for=jsonpath={.status.conditions[0].reason}=Unschedulable"
    node.kubectl("wait", refused, WAIT, "-n", namespace, "pod/late")
    why = ("-o", "jsonpath={.status.conditions[0].message}")
    assert "Insufficient nvidia.com/gpu" in node.kubectl("get", "-n", namespace, "pod/late", *why)


def test_a_pod_that_is_not_restricted_is_refused(node: FullNode, namespace: str) -> None:
    pod = build_server("rooted", "hello")
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}

    with pytest.raises(KubectlError, match='violates PodSecurity "restricted:latest"'):
        create(node, namespace, pod)


def test_the_machine_reaches_the_node_and_its_own_network_is_as_it_was(node: FullNode) -> None:
    network = node.network
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout

    (added,) = (line for line in routes.splitlines() if network.interface in line)
    assert added.endswith(f"scope link src {network.machine_address} ")
    assert f"https://{network.node_address}:" in node.kubeconfig.read_text()


def test_what_is_no_image_is_refused(node: FullNode, tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_text("no archive")

    with pytest.raises(BoxError, match="OCI"):
        node.import_image(tmp_path / "image.tar")


def test_a_client_that_fails_is_told_in_its_words(node: FullNode) -> None:
    with pytest.raises(BoxError, match=r"\b3\b.*no such thing"):
        node.run(["sh", "-c", "echo no such thing >&2; exit 3"])
