"""Installs Debian packages where they are missing and this is root's Debian; else says so.

`build_tools.py` gets the tests' browser by it, `cluster/node_binaries.py` what a full node calls.
Standard library only.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.go_tools import ToolError, cache_root, exclusive, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Debian package.

    Attributes:
        name: in Debian.
        is_there: whether what it brings is there, from wherever.
    """

    name: str
    is_there: Callable[[], bool]


def program(name: str, package: str) -> Package:
    """Return the package that brings a program."""
    return Package(name=package, is_there=lambda: shutil.which(name) is not None)


def find_missing(packages: Sequence[Package]) -> list[str]:
    """Return the names of the packages that are not there."""
    return [package.name for package in packages if not package.is_there()]


def install(packages: Sequence[Package]) -> None:
    """Install what is missing.

    Raises:
        ToolError: this is not root, or not Debian, or apt-get failed.
    """
    missing = find_missing(packages)
    if not missing:
        return
    command = ["apt-get", "install", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ToolError(
            f"{', '.join(missing)} missing: install by `{' '.join(command)}` or the like"
        )
    say(f"installing {', '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with exclusive(cache_root().with_name("apt")):
        for step in (["apt-get", "update", "-qq"], [*command, "-y", "-qq"]):
            done = subprocess.run(step, env=env, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                said = f"{done.stdout}{done.stderr}".strip()
                raise ToolError(f"`{' '.join(step)}` failed with code {done.returncode}:\n{said}")
    missing = find_missing(packages)
    if missing:
        raise ToolError(f"apt-get brought {', '.join(missing)}, but they do not work; see PATH")
