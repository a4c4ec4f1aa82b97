"""A Kubernetes for the tests: one control plane for the session, a namespace for each test.

KUBECONFIG with USE_EXISTING_CLUSTER=true runs the tests on an existing cluster, which gets the CRD
of this checkout. Tests that need more than it has are skipped (docs/tools.md).
"""

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

# Test folders are no packages: this makes `reconcile_stage` and its neighbours importable.
sys.path.insert(0, str(Path(__file__).parent / "stages"))

from pipeline_runtime.config import API_VERSION
from tools.cluster.binaries import Binaries, find_control_plane
from tools.cluster.box import Box, KubectlError, find_existing
from tools.cluster.control_plane import ControlPlane
from tools.cluster.startup import Settings
from tools.crd import PLURAL
from tools.go_tools import ToolError

CRDS = Path(__file__).parents[3] / "crds"  # Lastmile's own
CRD_SECONDS = 60.0  # until the API server has accepted a new one
GONE_SECONDS = 180.0  # until a namespace and its pods are deleted, on a busy machine
CLUSTER_KINDS = (
    "clusterroles",
    "clusterrolebindings",
    "crd",
    "mutatingwebhookconfigurations",
    "nodes",
    "persistentvolumes",
    "priorityclasses",
    "validatingadmissionpolicies",
    "validatingwebhookconfigurations",
)
# The first `reconcile_stage.log_in` of a run creates these for the following ones.
KEPT = {
    "clusterrole.rbac.authorization.k8s.io/lastmile-tests-operator",
    "clusterrolebinding.rbac.authorization.k8s.io/lastmile-tests-operator",
}


@pytest.fixture(scope="session")
def parts(skip_unless_ci: Callable[[str], NoReturn]) -> Binaries:
    """Return the programs of a control plane; without them skip, or in CI fail."""
    try:
        return find_control_plane()
    except ToolError as error:
        reason = f"no Kubernetes to test against: {error} (it says why it cannot, if so)"
    skip_unless_ci(reason)


@pytest.fixture(scope="package")
def shared_box(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    """Start a control plane that all tests share, or use the cluster that the user names."""
    existing = find_existing()
    if existing is not None:
        _install_crds(existing)
        yield existing
        return
    parts = request.getfixturevalue("parts")
    settings = Settings(crds=tuple(sorted(CRDS.glob("*.yaml"))))
    started = ControlPlane.start(tmp_path_factory.mktemp("box"), settings=settings, parts=parts)
    try:
        yield started
    finally:
        started.stop(keep_logs=True)


@pytest.fixture(scope="module")
def box(shared_box: Box) -> Iterator[Box]:
    """Yield the shared control plane; fail a module that leaves objects there for the next.

    Experiments of namespaces that are on their way out lose their finalizers, since the operators
    of the tests have ended: an operator of the next module, which may watch all namespaces, must
    not find them.
    """
    if not isinstance(shared_box, ControlPlane):  # others may use the user's cluster meanwhile
        yield shared_box
        return
    before = _list_objects(shared_box)
    yield shared_box
    _release_experiments(shared_box)
    _wait_until_gone(lambda: _list_objects(shared_box) - before - KEPT)


def _list_objects(box: Box) -> set[str]:
    """Return `kind/name` of objects outside namespaces and in `default`, and of experiments."""
    active = ("namespaces", "--field-selector=status.phase=Active")
    asked = ((",".join(CLUSTER_KINDS),), active, ("all", "-n", "default"), ("dsexp", "-A"))
    return {name for what in asked for name in box.kubectl("get", *what, "-o", "name").split()}


def _release_experiments(box: Box) -> None:
    names = "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}"
    for found in box.kubectl("get", "dsexp", "-A", "-o", names).split():
        namespace, _, name = found.partition("/")
        released = ("--type=merge", '--patch={"metadata": {"finalizers": null}}')
        with contextlib.suppress(KubectlError):  # it has gone meanwhile
            box.kubectl("patch", "dsexp", name, "-n", namespace, *released)


def _wait_until_gone(find: Callable[[], set[str]]) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while left := find():
        assert time.monotonic() < deadline, f"tests left {sorted(left)} on the control plane"
        time.sleep(0.5)


def _install_crds(existing: Box) -> None:
    """Install the CRD of this checkout, replacing another version's."""
    existing.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    deadline = time.monotonic() + CRD_SECONDS
    while True:
        try:
            existing.kubectl("wait", "--for=condition=Established", "-f", str(CRDS))
            existing.kubectl("get", "--raw", f"/apis/{API_VERSION}/{PLURAL}?limit=1")
            return
        except KubectlError as error:
            # kubectl does not wait for an object without conditions, but ends. And the API server
            # serves a CRD a moment after it is established.
            words = ("status.conditions accessor error", "NotFound", "could not find")
            if not any(word in str(error) for word in words) or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


@pytest.fixture(scope="module")
def kuberay(box: Box) -> Box:
    """Return the cluster if it has KubeRay, as a control plane started here has; skip otherwise."""
    if "rayclusters.ray.io" not in _find_kinds(box):
        pytest.skip("the existing cluster has no KubeRay")
    return box


@pytest.fixture(scope="module")
def played(kuberay: Box) -> Box:
    """Return the cluster if kwok simulates its pods; skip otherwise.

    The pods of the tests name images that do not exist.
    """
    kwoks, others = (
        kuberay.kubectl("get", "nodes", f"--selector=type{sign}kwok", "-o", "name").split()
        for sign in ("=", "!=")
    )
    if "stages.kwok.x-k8s.io" not in _find_kinds(kuberay) or not kwoks or others:
        pytest.skip("the cluster does not simulate pods: it needs kwok, and no other nodes")
    return kuberay


def _find_kinds(box: Box) -> list[str]:
    return box.kubectl("api-resources", "--cached=false", "-o", "name").split()


@pytest.fixture
def namespace(box: Box) -> Iterator[str]:
    """Create a namespace, which is deleted with its objects after the test."""
    box.check()  # otherwise every later test would fail by its time limit, without a cause
    name = f"test-{secrets.token_hex(4)}"
    box.kubectl("create", "namespace", name)
    # Pods are refused until the controller manager has created it.
    account = ("serviceaccount/default", f"--namespace={name}")
    box.kubectl("wait", "--for=create", "--timeout=60s", *account)
    yield name
    box.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
