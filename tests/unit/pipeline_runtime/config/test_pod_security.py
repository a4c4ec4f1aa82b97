"""Access to the host that a pod may not have; tests/integration checks upstream's own examples."""

from typing import Any

import pytest

from pipeline_runtime.config.pods.pod_security import check_pod_security

HOST = {"host": "10.0.0.1", "port": 80}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a probe over HTTP": ({"livenessProbe": {"httpGet": HOST}}, "livenessProbe.httpGet.host"),
    "a probe over TCP": ({"readinessProbe": {"tcpSocket": HOST}}, "readinessProbe.tcpSocket.host"),
    "a probe at the start": ({"startupProbe": {"httpGet": HOST}}, "startupProbe.httpGet.host"),
    "a hook after the start": (
        {"lifecycle": {"postStart": {"httpGet": HOST}}},
        "lifecycle.postStart.httpGet.host",
    ),
    "a hook before the end": (
        {"lifecycle": {"preStop": {"tcpSocket": HOST}}},
        "lifecycle.preStop.tcpSocket.host",
    ),
    "a profile that is not known": (
        {"securityContext": {"seccompProfile": {"type": "unconfined"}}},
        "securityContext.seccompProfile.type",
    ),
    "a profile of another type": (
        {"securityContext": {"appArmorProfile": {"type": ["Unconfined"]}}},
        "securityContext.appArmorProfile.type",
    ),
}
LISTS = ("containers", "initContainers", "ephemeralContainers")


@pytest.mark.parametrize("field", LISTS)
@pytest.mark.parametrize(("container", "path"), BROKEN.values(), ids=BROKEN)
def test_access_to_the_host_is_refused(container: dict[str, Any], path: str, field: str) -> None:
    found = [at for at, _ in check_pod_security("pod", {"spec": {field: [container]}})]
    assert found == [f"pod.spec.{field}[0].{path}"]


@pytest.mark.parametrize(
    "container",
    [
        {"livenessProbe": {"httpGet": {"host": "", "port": 80}}},
        {"readinessProbe": {"tcpSocket": {"port": 80}}},
        {"startupProbe": {"grpc": {"port": 80}}},
        {"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}},
        {"livenessProbe": {"httpGet": {"host": None, "port": 80}}},
        {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a"}}},
    ],
    ids=str,
)
def test_settings_within_the_pod_are_allowed(container: dict[str, Any]) -> None:
    assert not list(check_pod_security("pod", {"spec": {"containers": [container]}}))


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        ("runtime/default", True),
        ("localhost/mine", True),
        ("", True),
        ("unconfined", False),
        ("x", False),
    ],
)
def test_an_apparmor_annotation_must_name_a_known_profile(value: str, is_allowed: bool) -> None:
    name = "container.apparmor.security.beta.kubernetes.io/ray"
    found = list(check_pod_security("pod", {"metadata": {"annotations": {name: value}}}))
    assert bool(found) is not is_allowed
