"""The tests use a cluster, or programs, that the user brings along."""

from pathlib import Path

import pytest

from tools.cluster import binaries, certificates, registry
from tools.cluster.binaries import Binaries
from tools.cluster.box import BoxError, find_existing
from tools.cluster.registry import MARKER


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "USE_EXISTING_CLUSTER", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a cluster that need not exist, and put a kubectl on PATH."""
    authority = certificates.Authority()
    client = authority.issue_client(certificates.ADMIN)
    path = tmp_path / "their" / "kubeconfig"
    path.parent.mkdir()
    path.write_text(
        certificates.build_kubeconfig("https://127.0.0.1:1", authority.certificate, client)
    )
    make_program(tmp_path / "path" / "kubectl")
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    return path


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\necho "$KUBECONFIG $*"\n')
    path.chmod(0o755)
    return path


def test_without_a_word_from_the_user_no_cluster_is_taken() -> None:
    assert find_existing() is None


def test_a_kubeconfig_alone_is_not_taken(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    assert find_existing() is None
    assert "USE_EXISTING_CLUSTER=true would" in capsys.readouterr().err


def test_a_kubeconfig_with_consent_is_taken(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")

    found = find_existing()

    assert found is not None
    assert found.kubectl("get", "pods") == f"{kubeconfig} get pods\n"


def test_consent_to_a_kubeconfig_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")

    with pytest.raises(BoxError, match=r"USE_EXISTING_CLUSTER.*KUBECONFIG"):
        find_existing()


def test_the_kubeconfig_of_a_box_is_taken_without_consent(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = registry.Record(id="0", folder=str(kubeconfig.parent))
    (kubeconfig.parent / MARKER).write_text(record.to_json())
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    found = find_existing()

    assert found is not None
    assert found.kubeconfig == kubeconfig


def test_an_existing_cluster_is_not_stopped(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "1")
    found = find_existing()
    assert found is not None

    found.stop()

    assert kubeconfig.exists()


def test_programs_that_the_user_brings_are_used_in_place_of_built_ones(
    tmp_path: Path, parts: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What controller-runtime's setup-envtest lays there; it has no controller manager.
    brought = {n: make_program(tmp_path / n) for n in ("etcd", "kube-apiserver", "kubectl")}
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    found = binaries.find_control_plane()

    assert {name: found.programs[name] for name in brought} == brought
    assert found[binaries.KWOK] == parts[binaries.KWOK]
