"""A worktree of another commit, for benchmarks that compare with it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out into a worktree of its own, and remove that at the end."""
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder).resolve() / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), commit], check=True)
        try:
            yield worktree
        finally:
            subprocess.run([*git, "remove", "--force", str(worktree)], check=True)
