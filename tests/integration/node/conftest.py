"""A full node for the tests: real pods, one node for a module, a restricted namespace each.

It needs root. KUBECONFIG of one that runs already (`make cluster-up NODE=full`) puts the tests on
that.
"""

import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

# Tests are no package: this makes `probe_pods` importable for the modules beside it.
sys.path.insert(0, str(Path(__file__).parent))

from probe_pods import IMAGE

from tools.cluster import binaries
from tools.cluster.binaries import Binaries, find_full_node
from tools.cluster.box import BoxError, find_existing
from tools.cluster.full_node import FullNode, NodeSettings, require_root
from tools.cluster.node_images import build_scratch_image
from tools.go_tools import ToolError


@pytest.fixture(scope="session")
def node_parts(skip_unless_ci: Callable[[str], NoReturn]) -> Binaries:
    """Return the programs of a full node; without root or them skip, or in CI fail."""
    try:
        require_root()
        return find_full_node()
    except BoxError as error:
        reason = str(error)
    except ToolError as error:
        reason = f"{error} (it says why it cannot, if so)"
    skip_unless_ci(f"no real pods are tested: {reason}")


@pytest.fixture(scope="session")
def probe_image(node_parts: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the image that the pods of these tests run."""
    archive = tmp_path_factory.mktemp("images") / "probe.tar"
    build_scratch_image(archive, IMAGE, node_parts[binaries.PROBE])
    return archive


@pytest.fixture(scope="module")
def node(node_parts: Binaries, probe_image: Path) -> Iterator[FullNode]:
    """Start a full node that a module's tests share, or use the one that the user has started.

    Its images are its own: those of other runs are had by one node at a time.
    """
    existing = find_existing()
    if existing is not None:
        folder = existing.kubeconfig.parent
        if not FullNode.is_in(folder):
            pytest.skip("on an existing cluster, whose machine is not this one")
        running = FullNode.attach(folder)
        running.import_image(probe_image)
        yield running
        return
    # Not in pytest's folder, whose path may be too long for sockets.
    with tempfile.TemporaryDirectory(prefix="lastmile-node-") as folder:
        settings = NodeSettings(store=Path(folder, "images"))
        images = [probe_image]
        with FullNode.start(
            Path(folder, "box"), parts=node_parts, settings=settings, images=images
        ) as started:
            yield started


@pytest.fixture
def namespace(node: FullNode) -> Iterator[str]:
    """Make a namespace that takes restricted pods alone, and goes away after the test."""
    node.check()  # or every later test would fail by its time limit, without a cause
    name = f"test-{secrets.token_hex(4)}"
    node.kubectl("create", "namespace", name)
    node.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    account = ("serviceaccount/default", f"--namespace={name}")
    node.kubectl("wait", "--for=create", "--timeout=60s", *account)
    yield name
    node.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
