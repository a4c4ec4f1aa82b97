"""Commands import what they need, and no more: imports are most of the time of a short command."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

QUICKSTART = Path(__file__).parents[4] / "deploy" / "samples" / "quickstart.yaml"
ARROW = {"numpy", "pyarrow"}
HEAVY = {"fsspec", "jinja2", "matplotlib", "numba", "pandas", "ray", "torch"}
MODELS = {"pipeline_runtime.config", "pydantic", "rich", "yaml"}
MANIFEST = """
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {name: plan}
spec:
  dataset: {parquet: {uri: t/}}
  pipeline:
  - filter: {where: "x > 1"}
"""
PROGRAM = """
import sys
from pipeline_runtime.cli import main
sys.argv = ["lastmile", *sys.argv[2:]]
wanted = set(sys.orig_argv[3].split())
try:
    main()
finally:
    print("imported:", *sorted(wanted & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        pytest.param(["--help"], MODELS | ARROW | HEAVY, id="help"),
        pytest.param(
            ["validate", "--no-tables", "-f", str(QUICKSTART)],
            {"rich"} | ARROW | HEAVY,
            id="validate without tables",
        ),
        pytest.param(["run", "--help"], ARROW | HEAVY, id="help of run"),
    ],
)
def test_a_command_imports_no_more_than_it_needs(arguments: list[str], unneeded: set[str]) -> None:
    check_imports(arguments, unneeded)


@pytest.mark.parametrize("command", ["explain", "validate"])
def test_a_plan_needs_arrow_alone(tmp_path: Path, command: str) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "t" / "a.parquet")
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    place = ["-f", str(tmp_path / "manifest.yaml"), "--storage-root", str(tmp_path)]
    check_imports([command, *place], HEAVY)


def check_imports(arguments: list[str], unneeded: set[str]) -> None:
    """Run a command, and check that it imports none of these modules."""
    command = [sys.executable, "-c", PROGRAM, " ".join(sorted(unneeded)), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].split() == ["imported:"]
