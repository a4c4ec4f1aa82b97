"""A field of the status touches a model, a rule and a command; the CRD and the reference follow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("pipeline_runtime", "operator", "tools", "charts", "crds", "docs")
MODEL = "pipeline_runtime/config/experiment_status.py"
RULE = "operator/dataset_operator/plan/kept_rows.py"
COMMAND = "operator/dataset_operator/cli/describe.py"
GENERATED = {"charts/lastmile/files/crds/datasetexperiments.yaml", "docs/manifest.md"}

FIELD = '''    naps: Count | None = None
    """Naps that the run has taken."""

    def find('''
# Each stands at the end of its file, and adds to a function that is there.
NEW_RULE = """

_report = report_materialized


def report_materialized(situation: Situation) -> Verdict:
    return (_report(situation) or Verdict()) + Verdict(fields={"naps": 3})
"""
NEW_LINE = """

_build = build_summary


def build_summary(document: Document, status: ExperimentStatus) -> Iterator[tuple[str, str]]:
    yield from _build(document, status)
    if status.naps is not None:
        yield "Naps", str(status.naps)
"""
SCRIPT = """
import json
from world import running
from dataset_operator.cli.describe import build_summary
from dataset_operator.shapes import parse_status
world = running()
world.settle()
status = parse_status(world.status)
hostile = parse_status({**world.status, "naps": "many"})
print(json.dumps({
    "written": world.status["naps"],
    "described": dict(build_summary(world.document, status))["Naps"],
    "hostile": [hostile.naps, hostile.run],
}))
"""


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, after), encoding="utf-8")


def run(tree: Path, *words: str) -> str:
    stories = ROOT / "tests" / "unit" / "dataset_operator" / "stories"
    path = [tree, tree / "operator", stories, ROOT / "tests" / "support"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, check=True, stdout=subprocess.PIPE
    ).stdout.decode()


def find_changes(tree: Path) -> set[str]:
    """Return the files of the tree that differ from those of the repository, without links."""
    files = (path for name in COPIED for path in (tree / name).rglob("*"))
    kept = (path for path in files if path.is_file() and not path.is_symlink())
    names = {str(path.relative_to(tree)) for path in kept if "__pycache__" not in path.parts}
    return {name for name in names if (tree / name).read_bytes() != (ROOT / name).read_bytes()}


def test_a_status_field_needs_a_model_a_rule_and_a_command(tmp_path: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    edit(tmp_path / MODEL, "    def find(", FIELD)
    for name, text in ((RULE, NEW_RULE), (COMMAND, NEW_LINE)):
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(text)
    run(tmp_path, "-m", "tools.crd")
    run(tmp_path, "-m", "tools.steps")

    assert find_changes(tmp_path) == {MODEL, RULE, COMMAND} | GENERATED
    for name in GENERATED:
        text = (tmp_path / name).read_text(encoding="utf-8").lower()
        assert "naps that the run has taken" in text
    assert json.loads(run(tmp_path, "-c", SCRIPT)) == {
        "written": 3,
        "described": "3",
        "hostile": [None, 1],
    }
