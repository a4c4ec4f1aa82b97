"""Write requirements.lock from pyproject.toml (`make lock`), or print the part that a group needs.

The lock pins all Python packages with the hashes of their files, and names no index. A comment
below each pin names the packages and groups of pyproject.toml that need it, so that a part is
derived without an index: `lock.py --part runtime`. Images derive theirs while they are built, and
`go_tools.py` that of the Go compiler, so this file needs only the standard library.

Torch's hashes are those of the usual index; a CPU-only build of the same version has other files
and is installed by its version alone. Torch's GPU libraries are not in the lock: torch itself pins
them exactly, and a CPU-only build has none.
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
_PIN = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<pin>.*?)\n +# via (?P<parents>.*)", re.DOTALL)


def read_groups() -> dict[str, list[str]]:
    """Return the requirements of each extra, those of the project included, and of other groups."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    extras = project["optional-dependencies"].items()
    groups = {name: [*project["dependencies"], *requirements] for name, requirements in extras}
    groups |= pyproject["dependency-groups"]
    groups["build"] = pyproject["build-system"]["requires"]
    return groups


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


def select(lock: str, root: str) -> str:
    """Return the entries of a lock that a root needs.

    Args:
        lock: the text of requirements.lock.
        root: a group of dependencies, without torch and packages that only torch needs; or `torch`.
    """
    entries = {name: (pin, {*parents.split(", ")}) for name, pin, parents in split(lock)}
    needed = {"torch"} if root == "torch" else {f"-r {root}.in"}
    if root != "torch":
        del entries["torch"]
    while more := {name for name, (_, parents) in entries.items() if parents & needed} - needed:
        needed |= more
    if not needed & entries.keys():
        raise SystemExit(f"{root}: must be torch or a group of the lock, but no pin names it")
    return "".join(f"{name}=={entries[name][0]}\n" for name in sorted(needed & entries.keys()))


def split(lock: str) -> list[tuple[str, str, str]]:
    """Return the name, the version with hashes, and the parents of each pin of a lock."""
    found = (_PIN.fullmatch(entry) for entry in re.split(r"\n(?=\S)", lock.strip()))
    return [(pin["name"], pin["pin"], pin["parents"]) for pin in found if pin]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write requirements.lock from pyproject.toml.")
    parser.add_argument("--upgrade", action="store_true", help="forget the present pins")
    parser.add_argument("--part", metavar="GROUP", help="print the part that GROUP needs instead")
    options = parser.parse_args()
    known = LOCK.read_text() if LOCK.exists() else ""
    if options.part:
        print(select(known, options.part), end="")
        return
    LOCK.write_text(compile_lock(known, upgrade=options.upgrade))
    # The bill of materials lists the pins, so it changes with the lock.
    subprocess.run([sys.executable, "-m", "tools.sbom"], cwd=ROOT, check=True)
    print(f"pinned {LOCK.read_text().count('# via')} packages")


if __name__ == "__main__":
    main()
