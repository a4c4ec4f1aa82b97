"""The wheel and the sdist: what they hold, and that the wheel works far from this repository."""

import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tools.lock import select

ROOT = Path(__file__).parents[2]
UV = (sys.executable, "-m", "uv")
LOCK = (ROOT / "requirements.lock").read_text()
OWN = f"3.{sys.version_info.minor}"
# Paths in the repository that are links, and read as the files that they point to.
LINKED = ("crds", "deploy/grafana", "deploy/prometheus")
# What makes an interpreter find other packages than those of its own folder.
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
MANIFEST = """
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {name: outside}
spec:
  dataset: {parquet: {uri: data/impressions/}, where: "day = '2026-01-03'"}
  training: {labelColumn: clicked, columns: [dense_00, dense_01, clicked], batchSize: 512}
"""


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command, and return its output; fail with all of its words."""
    ended = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the sdist, as `make dist` does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [path] = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the sdist as pip does."""
    [path] = dist.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    [root] = folder.iterdir()
    return root


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, with those that links point to."""
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_twine_accepts_wheel_and_sdist(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=dist)


def test_files_are_named_after_the_distribution(dist: Path) -> None:
    names = {re.sub(r"-0\.\d+\.\d+.*", "", path.name) for path in dist.iterdir()}
    assert names == {"lastmile_experiments"}


@pytest.mark.parametrize("path", LINKED)
def test_sdist_holds_the_targets_of_links(unpacked: Path, path: str) -> None:
    wanted = read_tree(ROOT / path)
    assert wanted
    assert read_tree(unpacked / path) == wanted


def test_sdist_builds_the_same_wheel(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    hatchling = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
    run(*hatchling, "--directory", tmp_path, cwd=unpacked)
    [again] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        sizes = [{f.filename: f.CRC for f in archive.infolist()} for archive in (one, other)]
    assert sizes[0] == sizes[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The wheel in an environment of its own, and a folder to work in."""

    environment: Path
    folder: Path

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment, without the variables of this one."""
        env = {name: text for name, text in os.environ.items() if name not in PYTHON_VARIABLES}
        return run(self.environment / "bin" / program, *arguments, cwd=self.folder, env=env)


def install(wheel: Path, folder: Path, python: str, *requirements: str) -> Installed:
    """Make an environment with the wheel, and with requirements from the index."""
    environment, work = folder / "venv", folder / "work"
    work.mkdir()
    run(*UV, "venv", "--no-python-downloads", "--python", python, environment, cwd=work)
    pip = (*UV, "pip", "install", "--python", environment / "bin" / "python", "--no-deps")
    for number, text in enumerate(requirements):
        (folder / f"{number}.lock").write_text(text)
        run(*pip, "--require-hashes", "-r", folder / f"{number}.lock", cwd=work)
    if (index := os.environ.get("TORCH_INDEX_URL")) and requirements:
        [torch] = re.findall(r"^torch==\S+", LOCK, re.MULTILINE)
        run(*pip, "--default-index", index, torch, cwd=work)
    run(*pip, "--no-index", wheel, cwd=work)
    return Installed(environment=environment, folder=work)


def find_python(version: str) -> str | None:
    """Return an interpreter of a version: on PATH, or one of pyenv's."""
    installed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for candidate in (shutil.which(f"python{version}"), *map(str, sorted(installed))):
        if candidate is None:
            continue
        asked = subprocess.run(
            [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() == version:
            return candidate
    return None


def check_commands(installed: Installed) -> None:
    """Use the commands for clusters, and plan a manifest for a table."""
    (installed.folder / "outside.yaml").write_text(MANIFEST)
    where = "import pipeline_runtime as p, dataset_operator as o; print(p.__file__, o.__file__)"
    for path in installed.run("python", "-c", where).split():
        assert Path(path).is_relative_to(installed.environment)
    project = yaml.safe_load((ROOT / "charts/lastmile/Chart.yaml").read_text())
    assert installed.run("lastmile", "--version") == f"lastmile {project['appVersion']}\n"
    assert "--watch" in installed.run("kubectl-lastmile", "submit", "--help")
    assert "--dev" in installed.run("lastmile", "operator", "--help")
    installed.run("lastmile", "sample-data", "--rows", "10000", "--output", "build/data")
    assert "outside: valid" in installed.run("lastmile", "validate", "-f", "outside.yaml")
    assert "2026-01-03" in installed.run("lastmile", "explain", "-f", "outside.yaml")


def check_training(installed: Installed) -> None:
    """Train a model, and look at the report."""
    output = ("--output", "report")
    installed.run("lastmile", "run", "-f", "outside.yaml", *output, "--metrics-port", "0")
    assert "Complete" in installed.run("lastmile", "report", "report")


@pytest.mark.slow
def test_wheel_trains_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Use the packages of this environment, but not its editable install of the repository."""
    installed = install(wheel, tmp_path, sys.executable)
    [packages] = (installed.environment / "lib").glob("python3.*/site-packages")
    # Files such as _lastmile.pth have no effect in a folder that a .pth file adds.
    (packages / "beside.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    check_commands(installed)
    check_training(installed)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the first time, half a gigabyte comes from the index
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_wheel_works_on_each_python(wheel: Path, tmp_path: Path, version: str) -> None:
    """Install the pins of the lock, without torch unless TORCH_INDEX_URL names a small one."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} with venv on PATH or among pyenv's: install one to test")
    installed = install(wheel, tmp_path, python, select(LOCK, "operator"), select(LOCK, "runtime"))
    check_commands(installed)
    if os.environ.get("TORCH_INDEX_URL"):
        check_training(installed)


def test_bare_wheel_names_the_missing_extra(wheel: Path, tmp_path: Path) -> None:
    """Give it the packages of this environment, but Arrow and the editable install."""
    installed = install(wheel, tmp_path, sys.executable)
    [packages] = (installed.environment / "lib").glob("python3.*/site-packages")
    for path in Path(site.getsitepackages()[0]).iterdir():
        link = packages / path.name
        if path.suffix != ".pth" and not path.name.startswith("pyarrow") and not link.exists():
            link.symlink_to(path)
    (installed.folder / "outside.yaml").write_text(MANIFEST)
    program = installed.environment / "bin" / "lastmile"
    explained = subprocess.run(
        [program, "explain", "-f", "outside.yaml"],
        cwd=installed.folder,
        env={name: text for name, text in os.environ.items() if name not in PYTHON_VARIABLES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert explained.returncode == 1
    assert re.search(r"pip install '\S+lastmile_experiments-\S+\.whl\[runtime\]'", explained.stderr)
