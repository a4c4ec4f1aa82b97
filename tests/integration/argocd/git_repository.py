"""A git repository on disk, which a test commits to."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A git repository on disk.

    Attributes:
        folder: folder of its working tree.
    """

    folder: Path

    @classmethod
    def start(cls, folder: Path, source: Path) -> Repository:
        """Return a repository whose first commit holds the files of `source`."""
        shutil.copytree(source, folder)
        repository = cls(folder=folder)
        repository._git("init", "--quiet", "--initial-branch=main")
        repository.commit()
        return repository

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    @property
    def head(self) -> str:
        """The last commit."""
        return self._git("rev-parse", "HEAD").strip()

    def write(self, path: str, *documents: Document) -> None:
        """Write manifests into a file, for the next commit."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump_all(documents))

    def edit(self, path: str, change: Callable[[Document], None]) -> str:
        """Commit a change of a manifest, and return the commit."""
        document = yaml.safe_load((self.folder / path).read_text())
        change(document)
        self.write(path, document)
        return self.commit()

    def remove(self, path: str) -> str:
        """Commit the removal of a file or folder, and return the commit."""
        self._git("rm", "-r", "--quiet", path)
        return self.commit()

    def commit(self) -> str:
        """Commit all files, and return the commit."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message=A test's")
        return self.head

    def _git(self, *arguments: str) -> str:
        own = ("-c", "user.name=test", "-c", "user.email=test@example.com")
        command = ["git", *own, "-c", "commit.gpgsign=false", *arguments]
        return subprocess.run(
            command, cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout
