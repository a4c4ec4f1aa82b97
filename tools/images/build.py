"""Builds an image from its Dockerfile, once for each set of inputs.

Buildah keeps the layers, so that only those after a change are built. `inputs.py` names an image by
all its inputs, so that an existing image is never built again. `layout.py` writes archives.
"""

import re
import subprocess
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from typing import IO

from tools.go_tools import exclusive, say
from tools.images.base_image import base_reference, build_base
from tools.images.buildah import buildah, images_root, require_programs
from tools.images.cleanup import remove_older, remove_remains
from tools.images.inputs import ROOT, Recipe, snapshot
from tools.images.layout import Layout
from tools.images.surroundings import secrets, torch_source

NAMES = ("operator", "runtime")
_REGISTRY = "docker.io/library/"  # what kubelet completes a name without a registry by


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
    """Build the image of this checkout's sources, unless that is done.

    Args:
        name: a folder in images/: `operator` or `runtime`.

    Raises:
        ToolError: no root, a program that cannot be had, or a step of the Dockerfile failed.
    """
    with snapshot(name) as recipe:
        return build_recipe(recipe)


def build_recipe(recipe: Recipe) -> Image:
    """Build the image of a recipe whose files stay as they are, unless that is done."""
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
