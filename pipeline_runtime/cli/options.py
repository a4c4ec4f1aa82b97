"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # imported when a command needs them
    from rich.console import Console

    from pipeline_runtime.config import LoadedManifest


def _complete_override(incomplete: str) -> list[str]:
    from pipeline_runtime.config import complete_override

    return complete_override(incomplete)


FilesOption = Annotated[
    list[str],
    typer.Option(
        "--filename", "-f", metavar="FILE", help="Manifest file or directory, or - (repeatable)."
    ),
]
FileOption = Annotated[str, typer.Option("--filename", "-f", metavar="FILE", help="The manifest.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field of the spec (repeatable).",
        autocompletion=_complete_override,
    ),
]
StorageRootOption = Annotated[
    str,
    typer.Option(
        "--storage-root", metavar="URI", help="Base of the manifest's URIs without a scheme."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

DEFAULT_STORAGE_ROOT = "build/"


# Width in a pipe or a file, so that lines of a wide table are not folded.
_PIPE_CELLS = 200


def make_console(*, stderr: bool = False, is_wide: bool = False) -> Console:
    """Make a console, which is plain if the output is not a terminal.

    Args:
        is_wide: True if a table may be wider than 80 cells then.
    """
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if is_wide and not console.is_terminal:
        console.width = _PIPE_CELLS
    return console


def code_paths(manifest: str) -> tuple[str, ...]:
    """Return the folders of the user's own modules: the current one, and the manifest's."""
    here = str(Path.cwd())
    beside = here if manifest == "-" else str(Path(manifest).absolute().parent)
    return (here,) if here == beside else (here, beside)


def working_dir(manifest: LoadedManifest) -> tuple[str, ...]:
    """Return the folder of `spec.code.workingDir`, if it is on this machine.

    A relative path starts at the manifest's folder.
    """
    folder = manifest.experiment.spec.code.working_dir
    if folder is None or "://" in folder:
        return ()
    return (str((manifest.folder / os.path.expanduser(folder)).resolve()),)


def load_one(
    filename: str, overrides: Sequence[str] | None = None, *, is_accepted: bool = False
) -> LoadedManifest:
    """Load a file with one manifest.

    Args:
        is_accepted: as in `load_manifests`.

    Raises:
        typer.BadParameter: the file holds several.
        ManifestError: the manifest is wrong.
    """
    from pipeline_runtime.config import load_manifests

    loaded = load_manifests(filename, overrides=overrides or [], is_accepted=is_accepted)
    if len(loaded) != 1:
        names = ", ".join(manifest.experiment.metadata.name for manifest in loaded)
        raise typer.BadParameter(f"must hold one experiment, got {len(loaded)}: {names}")
    return loaded[0]


def find_storage_root(manifest: LoadedManifest, option: str) -> str:
    """Return the base of a manifest's URIs without a scheme.

    Args:
        option: `--storage-root`, for a manifest without `spec.storage.root`. A relative path starts
            at the current folder there, and at the manifest's folder in the manifest.
    """
    from pipeline_runtime.config.texts.storage_uri import is_absolute

    root = manifest.experiment.spec.storage.root
    if root is None or is_absolute(root):
        return root or option
    return str(manifest.folder / root)
