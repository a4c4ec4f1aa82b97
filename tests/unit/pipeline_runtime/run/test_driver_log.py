"""The file of standard output, whose copies are kept with a run."""

import sys
import tempfile
from pathlib import Path

import pytest

from pipeline_runtime.run.driver_log import find_log


def test_the_log_is_the_file_of_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "driver.log").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert find_log() == tmp_path / "driver.log"


def test_a_file_without_a_name_is_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryFile("w") as file:  # as of a program that reads the output later
        monkeypatch.setattr(sys, "stdout", file)
        assert find_log() is None
