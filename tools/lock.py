"""Write the requirements*.lock files from pyproject.toml; called by `make lock`.

Two of them make up .venv, because they are installed from different places. requirements.lock has a
hash for every file, and its packages come from the usual index. requirements-torch.lock pins torch
and the packages that only torch needs, without hashes, since a CPU-only build of the same version
has other files. Torch's GPU libraries are in neither: torch itself pins them exactly, and a
CPU-only build has none.

The others are the parts of requirements.lock that the Dockerfiles in images/ install: for the
runtime (besides torch), for the operator, which needs neither torch nor ray, and for building the
wheel. Run it before `make setup`; it needs uv and the package index.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
TORCH_LOCK = ROOT / "requirements-torch.lock"
RUNTIME_LOCK = ROOT / "requirements-runtime.lock"
OPERATOR_LOCK = ROOT / "requirements-operator.lock"
BUILD_LOCK = ROOT / "requirements-build.lock"
OLDEST_PYTHON = "3.11"  # [project] requires-python
GPU_LIBRARIES = re.compile(r"(nvidia|cuda)-|triton$")
PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==[^ \\]+", re.MULTILINE)


def requirement_name(requirement: str) -> str:
    """Return the distribution's name: `ray[data]>=2.60` is `ray`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    if match is None:
        raise SystemExit(f"pyproject.toml: a requirement starts with a name, got {requirement!r}")
    return match[0].lower()


def read_requirements(*extras: str) -> list[str]:
    """Return the distribution's requirements with those extras; all of them if none is named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    chosen = (optional[extra] for extra in extras or optional)
    return sorted({*project["dependencies"], *(r for extra in chosen for r in extra)})


def read_build_requirements() -> list[str]:
    """Return the requirements for building the distribution's wheel."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requires: list[str] = pyproject["build-system"]["requires"]
    return sorted(requires)


def without_torch(requirements: list[str]) -> list[str]:
    """Return the requirements that come from the usual index."""
    return [r for r in requirements if requirement_name(r) != "torch"]


def compile_lock(requirements: list[str], known_pins: str, *, hashes: bool, upgrade: bool) -> str:
    """Resolve `requirements` for every machine and Python at once.

    Args:
        requirements: as in pyproject.toml. Without torch among them, neither torch nor what only
            torch needs is pinned, even if another package needs torch.
        known_pins: the text of an older lock; its versions are kept if they still fit.
        hashes: whether each pin lists the hashes of its files.
        upgrade: whether to forget `known_pins`.

    Returns:
        The lock's text, without comments, header or index.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "requirements.in"), Path(folder, "requirements.lock")
        source.write_text("\n".join(requirements) + "\n")
        output.write_text(known_pins)  # uv prefers the versions that its output file names
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version", OLDEST_PYTHON, "--no-emit-index-url", "--no-annotate"]
        command += ["--no-header", "--fork-strategy", "fewest"]  # one version for every Python
        command += ["--output-file", str(output), str(source)]
        command += ["--generate-hashes"] * hashes + ["--upgrade"] * upgrade
        if "torch" not in map(requirement_name, requirements):
            excluded = Path(folder, "excludes.txt")
            excluded.write_text("torch\n")
            command += ["--excludes", str(excluded)]
        subprocess.run(command, check=True, cwd=ROOT)
        return output.read_text()


def pinned_names(lock: str) -> set[str]:
    """Return the names that a lock pins."""
    return {match["name"] for match in PIN.finditer(lock)}


def torch_only(everything: str, plain: str) -> str:
    """Return the lines of `everything` for torch and the pure-Python packages only torch needs."""
    lines = []
    for line in everything.splitlines():
        match = PIN.match(line)
        name = match["name"] if match else ""
        if name and name not in pinned_names(plain) and not GPU_LIBRARIES.match(name):
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the two lock files from pyproject.toml.")
    parser.add_argument("--upgrade", action="store_true", help="forget the present pins")
    upgrade = parser.parse_args().upgrade
    requirements = read_requirements()
    known = "".join(path.read_text() for path in (LOCK, TORCH_LOCK) if path.exists())
    everything = compile_lock(requirements, known, hashes=False, upgrade=upgrade)
    plain = compile_lock(without_torch(requirements), everything, hashes=True, upgrade=False)
    LOCK.write_text(plain)
    TORCH_LOCK.write_text(torch_only(everything, plain))
    parts = {
        RUNTIME_LOCK: without_torch(read_requirements("runtime")),
        OPERATOR_LOCK: read_requirements("operator"),
        BUILD_LOCK: read_build_requirements(),
    }
    for path, wanted in parts.items():
        path.write_text(compile_lock(wanted, plain, hashes=True, upgrade=False))
    # The bill of materials lists the pins, so it changes with the locks.
    subprocess.run([sys.executable, "-m", "tools.sbom"], cwd=ROOT, check=True)
    print(f"pinned {len(pinned_names(plain))} packages with hashes, and without:")
    print(TORCH_LOCK.read_text(), end="")


if __name__ == "__main__":
    main()
