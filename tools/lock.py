"""Write requirements.lock from pyproject.toml; called by `make lock`.

The lock pins all dependencies with the hashes of their files, and names no index. A comment below
each pin says what needs it: `lock_part` derives from it the dependencies of an image, when it is
built. Torch's hashes are those of the usual index; a CPU-only build of the same version has other
files and is installed without. Torch's GPU libraries are not in the lock: torch itself pins them
exactly, and a CPU-only build has none. Run it before `make setup`; it needs uv and the index.
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
OLDEST_PYTHON = "3.11"  # [project] requires-python
GPU_LIBRARIES = re.compile(r"(nvidia|cuda)-|triton==")


def read_groups() -> dict[str, list[str]]:
    """Return the requirements of each extra, those of the project included, and of the build."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    extras = project["optional-dependencies"].items()
    groups = {name: [*project["dependencies"], *requirements] for name, requirements in extras}
    return groups | {"build": pyproject["build-system"]["requires"]}


def compile_lock(known: str, *, upgrade: bool) -> str:
    """Resolve all groups for every machine and Python at once, and return the lock.

    Args:
        known: the text of an older lock; its versions are kept if they still fit.
        upgrade: whether to forget `known`.
    """
    with tempfile.TemporaryDirectory() as folder:
        groups = read_groups()
        for name, requirements in groups.items():
            Path(folder, f"{name}.in").write_text("\n".join(requirements) + "\n")
        output = Path(folder, LOCK.name)
        output.write_text(known)  # uv prefers the versions that its output file names
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version", OLDEST_PYTHON, "--no-emit-index-url", "--no-header"]
        command += ["--fork-strategy", "fewest"]  # one version for every Python
        command += ["--generate-hashes", "--annotation-style", "line"] + ["--upgrade"] * upgrade
        command += ["--output-file", LOCK.name, *(f"{name}.in" for name in groups)]
        subprocess.run(command, check=True, cwd=folder)
        entries = re.split(r"\n(?=\S)", output.read_text().strip())
    return "\n".join(entry for entry in entries if not GPU_LIBRARIES.match(entry)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the lock file from pyproject.toml.")
    parser.add_argument("--upgrade", action="store_true", help="forget the present pins")
    known = LOCK.read_text() if LOCK.exists() else ""
    LOCK.write_text(compile_lock(known, upgrade=parser.parse_args().upgrade))
    # The bill of materials lists the pins, so it changes with the lock.
    subprocess.run([sys.executable, "-m", "tools.sbom"], cwd=ROOT, check=True)
    print(f"pinned {LOCK.read_text().count('# via')} packages")


if __name__ == "__main__":
    main()
