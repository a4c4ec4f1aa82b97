"""Debian packages: installed where this is root's Debian, or one unpacked into the cache by anyone.

`build_tools.py` gets the tests' browser and Prometheus by it, `cluster/node/node_binaries.py` the
programs of a full node. apt checks packages against Debian's signed lists. Standard library only.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.go_tools import ToolError, cache_root, exclusive, say

# A package that is installed already is fetched too.
FETCH_WITH_MISSING = ("install", "--download-only", "--reinstall", "--no-install-recommends", "-y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Debian package.

    Attributes:
        name: in Debian.
        is_there: whether its content is available, from any source.
    """

    name: str
    is_there: Callable[[], bool]


def program(name: str, package: str) -> Package:
    """Return the package that brings a program."""
    return Package(name=package, is_there=lambda: shutil.which(name) is not None)


def find_missing(packages: Sequence[Package]) -> list[str]:
    """Return the names of the missing packages."""
    return [package.name for package in packages if not package.is_there()]


def install(packages: Sequence[Package]) -> None:
    """Install the missing packages.

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
    with exclusive(cache_root().with_name("apt")):
        for step in (["apt-get", "update", "-qq"], [*command, "-y", "-qq"]):
            _run(step)
    missing = find_missing(packages)
    if missing:
        raise ToolError(f"apt-get brought {', '.join(missing)}, but they do not work; see PATH")


def unpacked(package: str) -> Path:
    """Return the folder that `unpack` fills."""
    return cache_root() / f"debian-{package}-{platform.machine()}"


def unpack(package: str, *, with_missing: bool = False) -> None:
    """Fetch a package and unpack it into the cache, unless it is there.

    Nothing is installed, no service of it started, and no root needed: apt keeps lists of its own
    for it.

    Args:
        package: its name.
        with_missing: also unpack those of its dependencies that this machine lacks.

    Raises:
        ToolError: this is not Debian, or apt-get failed.
    """
    folder = unpacked(package)
    if folder.exists():
        return
    if shutil.which("apt-get") is None:
        raise ToolError(f"{package} is to be had by apt-get alone, which is not there")
    with exclusive(cache_root()), tempfile.TemporaryDirectory(dir=cache_root()) as name:
        if folder.exists():
            return
        say(f"fetching {package} from Debian")
        partial = Path(name)
        for part in ("state/lists/partial", "cache/archives/partial"):
            (partial / part).mkdir(parents=True)
        own = [f"Dir::State={partial}/state", f"Dir::Cache={partial}/cache"]
        # Root's apt would fetch as a user who may not write here.
        apt = ["apt-get", *(word for option in own for word in ("-o", option))]
        apt += ["-o", "APT::Sandbox::User=root", "-qq"]
        _run([*apt, "update"], folder=partial)
        fetch = FETCH_WITH_MISSING if with_missing else ("download",)
        _run([*apt, *fetch, package], folder=partial)
        for archive in sorted(partial.rglob("*.deb")):
            _run(["dpkg-deb", "--extract", str(archive), str(partial / "root")], folder=partial)
        (partial / "root").rename(folder)


def _run(command: Sequence[str], *, folder: Path | None = None) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = f"{done.stdout}{done.stderr}".strip()
        raise ToolError(f"`{' '.join(command)}` failed with code {done.returncode}:\n{said}")
