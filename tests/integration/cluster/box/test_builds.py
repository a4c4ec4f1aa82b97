"""Programs are built once a machine from the pins, and what cannot be built says what to do."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_commands import ROOT, run_cluster
from facts import assert_told

from tools import go_tools
from tools.build_tools import HELM, VERSITYGW
from tools.cluster import binaries
from tools.go_tools import Module, ToolError, path_of

UPSTREAM = "example.com/upstream"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Pin one upstream, in a folder of modules of its own."""
    folder = tmp_path / "modules" / "ours"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(f"module ours\n\ngo 1.25.0\n\nrequire {UPSTREAM} v1.2.3\n")
    (folder / "go.sum").write_text("")
    monkeypatch.setattr(go_tools, "MODULES", folder.parent)
    go_tools.find_go.cache_clear()  # it depends on what all the modules need
    yield folder
    go_tools.find_go.cache_clear()


def run_up(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `make cluster-up`'s command with an empty cache of programs."""
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "KUBEBUILDER_ASSETS": ""}
    return run_cluster("up", folder / "box", **own, **variables)


def test_every_program_of_one_upstream_has_the_pinned_version(modules: Path) -> None:
    assert Module(name="ours", upstream=UPSTREAM).version == "v1.2.3"


def test_an_upstream_that_is_not_pinned_is_refused(modules: Path) -> None:
    with pytest.raises(ToolError, match=r"example\.com/other"):
        _ = Module(name="ours", upstream="example.com/other").version


@pytest.mark.parametrize("name", ["go.mod", "go.sum"])
def test_a_changed_pin_is_another_build(modules: Path, name: str) -> None:
    program = go_tools.Program(
        name="ours", module=Module(name="ours", upstream=UPSTREAM), package=UPSTREAM
    )
    before = path_of(program)
    with (modules / name).open("a") as pins:
        pins.write("// changed\n")

    assert path_of(program) != before


def test_programs_lie_outside_the_checkout() -> None:
    for item in (VERSITYGW, HELM, *binaries.CONTROL_PLANE_PROGRAMS, *binaries.CONTROL_PLANE_FILES):
        assert not path_of(item).is_relative_to(ROOT), item.name


def test_without_network_the_build_says_what_it_needs(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("no Go on PATH")
    done = run_up(tmp_path, GOPROXY="off", GOMODCACHE=str(tmp_path / "modules"))

    assert done.returncode == 1
    assert_told(done.stderr, f"… etcd {binaries.ETCD_MODULE.version} … GOPROXY")
    assert not (tmp_path / "box").exists()


@pytest.mark.slow
def test_without_go_and_without_packages_it_says_what_to_do(tmp_path: Path) -> None:
    done = run_up(tmp_path, PATH=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))

    assert done.returncode == 1
    oldest = ".".join(str(part) for part in go_tools.required_go())
    assert_told(done.stderr, f"… Go … {oldest} … PATH … pip")
