"""Commands import what they need, and no more: imports are most of the time of a short command."""

import subprocess
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[4] / "deploy" / "samples" / "quickstart.yaml"
ARROW = {"numpy", "pyarrow"}
HEAVY = {"fsspec", "jinja2", "matplotlib", "numba", "pandas", "ray", "torch"}
MODELS = {"pipeline_runtime.config", "pydantic", "rich", "yaml"}
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
        pytest.param(["validate", "-f", str(QUICKSTART)], {"rich"} | ARROW | HEAVY, id="validate"),
        pytest.param(["run", "--help"], ARROW | HEAVY, id="help of run"),
    ],
)
def test_a_command_imports_no_more_than_it_needs(arguments: list[str], unneeded: set[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, " ".join(sorted(unneeded)), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].split() == ["imported:"]
