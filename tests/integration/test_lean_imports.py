"""A run is planned without the imports that only its training or its report needs."""

import subprocess
import sys

import pytest

_SESSION = """
import sys
import pipeline_runtime.run.session
print(sorted({"jinja2", "matplotlib", "numba", "ray", "torch"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_run_is_planned_without_what_comes_later() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _SESSION], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
