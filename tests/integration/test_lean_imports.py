"""A run starts without the imports that only its report needs."""

import subprocess
import sys

import pytest

_SESSION = """
import sys
import pipeline_runtime.run.session
print(sorted({"matplotlib", "jinja2"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_run_begins_without_what_only_its_report_needs() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _SESSION], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
