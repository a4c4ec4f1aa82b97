"""Print the part of requirements.lock that some dependencies need: `lock_part.py LOCK runtime`.

The comment below each pin names the packages and the groups of pyproject.toml that need it, so no
index is asked. Images run this file while they are built: standard library only.
"""

import re
import sys
from pathlib import Path

_PIN = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<pin>.*?)\n +# via (?P<parents>.*)", re.DOTALL)


def select(lock: str, root: str) -> str:
    """Return the entries of a lock that a root needs.

    Args:
        lock: the text of requirements.lock.
        root: a group of dependencies, without torch and what only torch needs; or `torch`.
    """
    entries = {name: (pin, {*parents.split(", ")}) for name, pin, parents in split(lock)}
    needed = {"torch"} if root == "torch" else {f"-r {root}.in"}
    if root != "torch":
        del entries["torch"]
    while more := {name for name, (_, parents) in entries.items() if parents & needed} - needed:
        needed |= more
    if not needed & entries.keys():
        raise SystemExit(
            f"{root}: must be a group of the lock or torch, but nothing is needed by it"
        )
    return "".join(f"{name}=={entries[name][0]}\n" for name in sorted(needed & entries.keys()))


def split(lock: str) -> list[tuple[str, str, str]]:
    """Return the name, the version with hashes, and the parents of each pin of a lock."""
    found = (_PIN.fullmatch(entry) for entry in re.split(r"\n(?=\S)", lock.strip()))
    return [(pin["name"], pin["pin"], pin["parents"]) for pin in found if pin]


if __name__ == "__main__":
    print(select(Path(sys.argv[1]).read_text(), sys.argv[2]), end="")
