"""Gets the programs that the integration tests talk to; called by `make test-tools`.

versitygw, an S3 server over a folder, and the control plane of the cluster in a box are compiled
from pinned Go modules by `go_tools.py`. Chromium comes from PATH or, for root on Debian, from
apt-get. Standard library only.

The tests run `build_tools.py --print-path NAME` to find each.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tools.cluster import binaries
from tools.go_tools import Module, Program, ToolError, build, cache_root, exclusive, path_of, say

VERSITYGW = Program(
    name="versitygw",
    module=Module(name="versitygw", upstream="github.com/versity/versitygw"),
    package="github.com/versity/versitygw/cmd/versitygw",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def build_versitygw() -> None:
    """Compile versitygw unless the cache holds it."""
    build([VERSITYGW])


def find_versitygw() -> Path:
    """Return the built versitygw."""
    path = path_of(VERSITYGW)
    if not path.exists():
        raise ToolError("the tests' S3 server, versitygw, is not built: run `make test-tools`")
    return path


def find_browser() -> Path:
    """Return a Chromium on PATH."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path:
            return Path(path)
    raise ToolError(
        f"the report's tests need a browser, found none of {', '.join(BROWSERS)} on PATH: install "
        "Chromium (Debian: apt-get install chromium), or set LASTMILE_SKIP_BROWSER=1 to skip them"
    )


def install_browser() -> None:
    """See to it that there is a Chromium, unless it is not wanted."""
    if os.environ.get("LASTMILE_SKIP_BROWSER") == "1":
        return
    try:
        find_browser()
    except ToolError:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
        _apt_get_chromium()


def _apt_get_chromium() -> None:
    say("installing chromium")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with exclusive(cache_root()):
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        subprocess.run(install, check=True, env=env)
    find_browser()


FINDERS: dict[str, Callable[[], Path]] = {
    "versitygw": find_versitygw,
    "chromium": find_browser,
    "kubectl": binaries.find_kubectl,
}


def get_tools() -> None:
    """Get every tool; one that cannot be had is told, and fails the tests that need it."""
    for get in (build_versitygw, install_browser, binaries.build_control_plane):
        try:
            get()
        except (ToolError, subprocess.CalledProcessError, OSError) as error:
            print(f"test-tools: {error}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="Get the programs that the tests talk to.")
    parser.add_argument("--print-path", metavar="NAME", choices=sorted(FINDERS))
    name = parser.parse_args().print_path
    if name is None:
        get_tools()
        return
    try:
        print(FINDERS[name]())
    except ToolError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
