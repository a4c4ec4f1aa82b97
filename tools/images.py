"""Container images of Lastmile, built from images/*/Dockerfile without a registry or an engine.

`make images` builds them; tests call `build_image("runtime")`, which returns an image's name and
writes an archive that containerd imports. The files are in ~/.cache/lastmile/images, which all
checkouts share. `buildah.py` keeps the layers, so that only those after a change are built. An
image is named by all its inputs, so that none is built twice. The COPY lines of the Dockerfile are
the list of its files, so that no second list can differ.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.buildah import (
    Layout,
    base_reference,
    build_base,
    buildah,
    images_root,
    require_programs,
    secrets,
    temporary_folder,
    torch_source,
)
from tools.go_tools import ToolError, exclusive, say

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("operator", "runtime")
_REGISTRY = "docker.io/library/"  # the registry that kubelet adds to a name without one
KEY_LENGTH = 12  # hex digits: enough to tell the images of one project apart
_COPY = re.compile(r"^COPY (?!--from)(?P<sources>.+) \S+$", re.MULTILINE)
_NO_SOURCE = "__pycache__"  # .dockerignore excludes it too
NUM_KEPT = 2  # images of a kind, of 6 GB each: today's, and that of another branch
_OLD_SECONDS = 24 * 3600.0  # longer than any of our commands
_CACHE_MOUNTS = "buildah-cache"  # pip's, which stays
# Part of the names that buildah gives to a build's containers; those of tests have other names.
_OF_A_BUILD = "working-container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A Dockerfile of this project.

    Attributes:
        name: its folder in images/.
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
    """Yield an image's recipe on a copy of its files, so that no edit enters during a build."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that is built.

    Attributes:
        reference: its name, for a pod's spec and `imagePullPolicy: IfNotPresent` or `Never`.
    """

    reference: str

    @property
    def digest(self) -> str:
        """Return the digest of its manifest."""
        return _layout().digest(_REGISTRY + self.reference)

    @property
    def size_bytes(self) -> int:
        """Return the size of an archive of it."""
        return _layout().size_bytes(_REGISTRY + self.reference)

    def write_archive(self, stream: IO[bytes], known: Collection[str] = ()) -> None:
        """Write it as an OCI archive, not compressed; without layers whose digests are known."""
        _layout().write_archive(_REGISTRY + self.reference, stream, known)


def build_image(name: str) -> Image:
    """Build the image of this checkout's sources, unless it exists.

    Args:
        name: a folder in images/: `operator` or `runtime`.

    Raises:
        ToolError: this user is not root, a program is missing, or a step of the Dockerfile failed.
    """
    with snapshot(name) as recipe:
        return build_recipe(recipe)


def build_recipe(recipe: Recipe) -> Image:
    """Build the image of a recipe whose files do not change, unless it exists."""
    require_programs()
    key = recipe.key(base_reference(), torch_source() if recipe.is_with_torch else "")
    kind = f"lastmile-{recipe.name}"
    image = Image(reference=f"{kind}:{key}")
    with exclusive(images_root()):
        layout = _layout()
        if _REGISTRY + image.reference not in layout.names():
            remove_remains(layout)
            base = build_base()
            say(f"building {image.reference} (the first time takes minutes)")
            _build(recipe, f"localhost/{image.reference}", base)
            layout.add(f"localhost/{image.reference}", _REGISTRY + image.reference)
            remove_older(kind, image.reference, layout)
    return image


def _layout() -> Layout:
    return Layout(folder=images_root() / "layout")


def _build(recipe: Recipe, stored: str, base: str) -> None:
    arguments = {"BASE": base, **_labels(recipe)}
    if recipe.is_with_torch:
        arguments["TORCH_SOURCE"] = torch_source()
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    with secrets() as mounted:
        command = ["bud", "--layers", "--pull-never", f"--file={recipe.path}", *options, *mounted]
        # The stage that builds the wheel is in no image; without a name it would be cleaned up.
        tools = f"localhost/lastmile-{recipe.name}-tools:latest"
        buildah(*command, "--target=tools", f"--tag={tools}", recipe.root)
        buildah(*command, f"--tag={stored}", recipe.root)


def _labels(recipe: Recipe) -> dict[str, str]:
    """Return the build arguments that only end up in labels."""
    project = tomllib.loads((recipe.root / "pyproject.toml").read_text())["project"]
    revision = _git("rev-parse", "HEAD") or "unknown"
    if _git("status", "--porcelain"):
        revision += "-dirty"
    origin = re.fullmatch(r"https://(?:[^@/]*@)?(\S+)", _git("remote", "get-url", "origin"))
    source = f"https://{origin[1]}" if origin else "unknown"
    return {"VERSION": project["version"], "REVISION": revision, "SOURCE": source}


def _git(*arguments: str) -> str:
    """Return git's answer about this checkout; empty without git or an answer."""
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def remove_older(kind: str, present: str, layout: Layout) -> None:
    """Keep NUM_KEPT images of a kind, and their layers.

    Args:
        kind: the start of the images' names, after the registry.
        present: the name of the image to keep in any case.
    """
    names = [name for name in layout.names() if name.rpartition("/")[2].startswith(f"{kind}:")]
    older = [name for name in names[:-NUM_KEPT] if name.rpartition("/")[2] != present]
    for name in older:
        reference = name.rpartition("/")[2]
        say(f"removing the older {reference}")
        layout.remove(name)
        buildah("rmi", "--force", f"localhost/{reference}")
    if older:
        buildah("rmi", "--prune")


def remove_remains(layout: Layout) -> None:
    """Remove the remains of failed and killed builds."""
    for container in buildah("containers", "--format", "{{.ContainerName}}").split():
        if _OF_A_BUILD in container:
            buildah("rm", container)
    for file in layout.folder.glob("oci-put-blob*"):
        file.unlink()
    for path in temporary_folder().iterdir():
        if path.name != _CACHE_MOUNTS and time.time() - path.stat().st_mtime > _OLD_SECONDS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.images", description="Build the images.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{' or '.join(NAMES)}; both")
    parser.add_argument(
        "--archives", type=Path, metavar="FOLDER", help="write each there as an OCI archive"
    )
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.names} - {*NAMES}):
        parser.error(f"NAME: must be {' or '.join(NAMES)}, got {unknown[0]!r}")
    try:
        for name in arguments.names or NAMES:
            image = build_image(name)
            print(f"{image.reference}  {image.size_bytes / 1e6:,.0f} MB")
            if arguments.archives:
                _write(image, arguments.archives / f"lastmile-{name}.tar")
    except ToolError as error:
        print(f"images: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _write(image: Image, archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(".partial")  # never a half-written archive
    with partial.open("wb") as stream:
        image.write_archive(stream)
    partial.rename(archive)
    print(archive)


if __name__ == "__main__":
    main()
