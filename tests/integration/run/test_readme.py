"""The README's commands and code run in their order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from warm_lastmile import Lastmile

from pipeline_runtime.report import load_summary

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPT = Path(sys.executable).with_name("lastmile")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[list[str]]:
    lines = (line for line in block.splitlines() if line.startswith("$ "))
    return [shlex.split(line[2:], comments=True) for line in lines]


ACTIVATION = blocks("console")[1]
MAKE, _, LASTMILE = map(commands, blocks("console")[:3])  # tests/e2e runs those for a cluster


def test_make_has_the_targets() -> None:
    assert [command[0] for command in MAKE] == ["make"] * 4
    for command in MAKE:
        subprocess.run([*command, "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the working directory of a user: the sample data and the manifest."""
    folder = tmp_path_factory.mktemp("readme")
    sample = ("sample-data", "--rows", "50000", "--output", str(folder / "build" / "data"))
    subprocess.run([SCRIPT, *sample], check=True, capture_output=True)
    [manifest] = blocks("yaml")
    (folder / "my-experiment.yaml").write_text(manifest)
    return folder


def test_a_fresh_shell_finds_the_commands(tmp_path: Path) -> None:
    """Run the block word for word, in a shell that has the PATH of a new login alone."""
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    lines = ACTIVATION.splitlines()
    script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    ended = subprocess.run(
        ["bash", "--noprofile", "--norc", "-ec", script],
        cwd=tmp_path,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == [line for line in lines if not line.startswith("$ ")]


@pytest.mark.slow
def test_the_commands_run_the_manifest(folder: Path) -> None:
    lastmile = Lastmile(folder)
    try:
        for command in LASTMILE:
            assert command[0] == "lastmile"
            ended = lastmile.run(*command[1:])
            assert ended.code == 0, (command, ended)
    finally:
        lastmile.close()
    latest = folder / "build" / "my-experiment" / "latest"
    summary = load_summary(latest)
    manifest = yaml.safe_load((latest / "manifest.yaml").read_text())
    assert manifest["spec"]["pipeline"][2]["downsample"]["keepPercent"] == 10
    assert summary.training.samples > 0
    assert summary.steps[0].rows_out < 50_000  # `where` pruned


def test_the_python_makes_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = blocks("python")
    monkeypatch.chdir(folder)
    variables: dict[str, Any] = {}
    exec(code, variables)
    assert set(variables["batch"]) == set(variables["columns"])  # of the last batch
    assert variables["pipeline"].head(5).num_rows == 5
