"""A kubectl command has a time limit, to which its own --timeout is added."""

from pathlib import Path

import pytest

from tools.cluster import box
from tools.cluster.box import Kubectl, KubectlError


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """Return a kubectl that takes half a second, with a limit of a tenth."""
    monkeypatch.setattr(box, "KUBECTL_TIMEOUT_SECONDS", 0.1)
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nsleep 0.5\necho done\n")
    program.chmod(0o755)
    return Kubectl(program=program, kubeconfig=tmp_path / "kubeconfig", cache=tmp_path)


def test_a_command_that_hangs_is_ended_and_named(slow: Kubectl) -> None:
    with pytest.raises(KubectlError, match=r"get pods.*\b0 s"):
        slow("get", "pods")


def test_the_timeout_of_a_command_extends_its_limit(slow: Kubectl) -> None:
    assert slow("delete", "namespace", "gone", "--timeout=60s") == "done\n"
