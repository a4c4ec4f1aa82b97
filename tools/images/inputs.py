"""Inputs of an image, and the hash of them that names it; `build.py` builds it.

The COPY lines of the Dockerfile are the list of its files, so that no second list can differ.
"""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEY_LENGTH = 12  # hex digits: enough to tell the images of one project apart
_COPY = re.compile(r"^COPY (?!--from)(?P<sources>.+) \S+$", re.MULTILINE)
_NO_SOURCE = "__pycache__"  # .dockerignore leaves it out too


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A Dockerfile of this project.

    Attributes:
        name: the folder in images/ that it lies in.
        root: of the checkout, which is the build context.
    """

    name: str
    root: Path = ROOT

    @property
    def path(self) -> Path:
        return self.root / "images" / self.name / "Dockerfile"

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def is_with_torch(self) -> bool:
        """Return whether TORCH_INDEX_URL affects the content of the image."""
        return "ARG TORCH_SOURCE" in self.text

    def sources(self) -> list[str]:
        """Return the files and folders that are copied into it, relative to the repository."""
        lines = _COPY.finditer(self.text)
        return sorted({source for line in lines for source in line["sources"].split()})

    def key(self, *surroundings: str) -> str:
        """Return the hash of all inputs of the image's content.

        Args:
            surroundings: inputs outside of the Dockerfile and its files, such as the base.
        """
        digest = hashlib.sha256("\0".join([self.text, *surroundings]).encode())
        for path in self._files():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(self.root)} {content}\n".encode())
        return digest.hexdigest()[:KEY_LENGTH]

    def _files(self) -> Iterator[Path]:
        for source in self.sources():
            path = self.root / source
            found = [path] if path.is_file() else sorted(path.rglob("*"))
            yield from (p for p in found if p.is_file() and _NO_SOURCE not in p.parts)


@contextmanager
def snapshot(name: str) -> Iterator[Recipe]:
    """Yield an image's recipe on a copy of its files: an edit during a build must not enter it."""
    original = Recipe(name=name)
    with tempfile.TemporaryDirectory() as folder:
        for source in (".dockerignore", f"images/{name}/Dockerfile", *original.sources()):
            path, copy = ROOT / source, Path(folder, source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, copy, ignore=shutil.ignore_patterns(_NO_SOURCE))
            else:
                shutil.copy2(path, copy)
        yield Recipe(name=name, root=Path(folder))
