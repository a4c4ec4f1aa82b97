"""Options that several commands share."""

from __future__ import annotations

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
        "--storage-root", metavar="URI", help="Where URIs of the manifest without a scheme start."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

DEFAULT_STORAGE_ROOT = "build/"


def make_console(*, stderr: bool = False) -> Console:
    """Make a console that is plain where the output is not a terminal."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def code_paths(manifest: str) -> tuple[str, ...]:
    """Folders that the user's own modules are found in: here, and beside the manifest."""
    here = str(Path.cwd())
    beside = here if manifest == "-" else str(Path(manifest).absolute().parent)
    return (here,) if here == beside else (here, beside)


def working_dir(manifest: LoadedManifest) -> tuple[str, ...]:
    """The folder of `spec.code.workingDir`, relative to the manifest, if it is on this machine."""
    folder = manifest.experiment.spec.code.working_dir
    if folder is None or "://" in folder:
        return ()
    base = Path.cwd() if manifest.file == "-" else Path(manifest.file).absolute().parent
    return (str((base / folder).resolve()),)
