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
ENTRYPOINT = "from pipeline_runtime.training.ranking import train_loop as train_loop\n"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line[2:], comments=True) for line in block.splitlines()]


MAKE, LASTMILE = map(commands, blocks("console")[:2])  # tests/e2e runs those for a cluster


def test_make_has_the_targets() -> None:
    assert [command[:1] for command in MAKE] == [["make"], ["make"]]
    for command in MAKE:
        subprocess.run([*command, "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the working directory of a user: the sample data, a manifest and an entrypoint."""
    folder = tmp_path_factory.mktemp("readme")
    sample = ("sample-data", "--rows", "50000", "--output", str(folder / "build" / "data"))
    subprocess.run([SCRIPT, *sample], check=True, capture_output=True)
    [manifest] = blocks("yaml")
    (folder / "my-experiment.yaml").write_text(manifest)
    (folder / "my_team").mkdir()
    (folder / "my_team" / "ranking.py").write_text(ENTRYPOINT)
    return folder


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
