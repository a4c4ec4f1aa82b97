"""A kubectl may take its own time and what it was told to wait, and no longer."""

from pathlib import Path

import pytest

from tools.cluster import kubectl
from tools.cluster.errors import KubectlError
from tools.cluster.kubectl import Kubectl


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """One that answers after half a second, where a command may take a tenth."""
    monkeypatch.setattr(kubectl, "TIMEOUT_SECONDS", 0.1)
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nsleep 0.5\necho done\n")
    program.chmod(0o755)
    return Kubectl(program=program, kubeconfig=tmp_path / "kubeconfig", cache=tmp_path)


def test_a_command_that_hangs_is_ended_and_named(slow: Kubectl) -> None:
    with pytest.raises(KubectlError, match=r"get pods.*\b0 s"):
        slow("get", "pods")


def test_a_command_that_waits_may_wait_as_long_as_it_was_told(slow: Kubectl) -> None:
    assert slow("delete", "namespace", "gone", "--timeout=60s") == "done\n"
