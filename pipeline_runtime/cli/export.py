"""`lastmile export`: writes the model of a run to a file that other programs load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline_runtime.cli.options import DEFAULT_STORAGE_ROOT
from pipeline_runtime.importing import importing


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Folder or URI of the run, or NAME or NAME/RUN below the root."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")],
    format: Annotated[
        Literal["torch", "onnx"],
        typer.Option(help="torch.export, of any model; or ONNX, of the built-in model."),
    ] = "torch",
    checkpoint: Annotated[
        Literal["last", "best"],
        typer.Option(help="The last checkpoint, or the best by training.checkpoint.keepBest."),
    ] = "last",
    root: Annotated[
        str, typer.Option(metavar="URI", help="Folder or URI in which names of runs are found.")
    ] = DEFAULT_STORAGE_ROOT,
) -> None:
    """Write the trained model of a run to a file.

    The function of training.model is imported from the current folder or from what is installed.
    """
    import sys

    sys.path.insert(0, str(Path.cwd()))  # as `lastmile run` finds the user's modules
    with importing():
        from pipeline_runtime.models.exporting import export_model

    exported = export_model(run, output, format=format, checkpoint=checkpoint, root=root)
    print(f"{exported.path}: takes {', '.join(exported.inputs)}; returns logits")
