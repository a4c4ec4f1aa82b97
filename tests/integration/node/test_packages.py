"""A Debian package is not asked for if its program is there; otherwise the error names it."""

import os

import pytest

from tools import packages
from tools.go_tools import ToolError

SHELL = packages.program("sh", "dash")
MISSING = packages.program("no-such-program", "no-such-package")


def test_what_is_there_is_not_missing_whatever_brought_it() -> None:
    assert packages.find_missing([SHELL, MISSING]) == ["no-such-package"]


def test_a_user_other_than_root_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    packages.install([SHELL])
    with pytest.raises(ToolError, match=r"no-such-package.*apt-get install"):
        packages.install([SHELL, MISSING])
