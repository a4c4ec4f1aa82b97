"""The command `lastmile profile`: find the bottleneck, and the data workers that a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline_runtime.cli.failures import placing
from pipeline_runtime.cli.options import (
    DEFAULT_STORAGE_ROOT,
    FileOption,
    JsonOption,
    SetOption,
    StorageRootOption,
    code_paths,
    find_storage_root,
    load_one,
    make_console,
    working_dir,
)
from pipeline_runtime.importing import importing

DEFAULT_SECONDS = 12.0
# Rows of 64 batches of the default size, if every row is kept.
DEFAULT_ROWS = 262_144


def profile(
    filename: FileOption,
    overrides: SetOption = None,
    storage_root: StorageRootOption = DEFAULT_STORAGE_ROOT,
    seconds: Annotated[
        float, typer.Option(min=1, max=3600, help="Approximate duration of the measurement.")
    ] = DEFAULT_SECONDS,
    rows: Annotated[
        int, typer.Option(min=1, help="Most rows to measure; whole row groups are read.")
    ] = DEFAULT_ROWS,
    output: Annotated[
        Path | None, typer.Option(help="Folder for profile.json and profile.html.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the model, the storage and every step on a sample, here and without Ray.

    Prints the bottleneck, how many data workers feed the trainers, and what to change. No
    checkpoint is written.
    """
    manifest = load_one(filename, overrides)
    with importing():
        from pipeline_runtime.profiling.page import write_profile
        from pipeline_runtime.profiling.session import ProfileOptions, profile_experiment
        from pipeline_runtime.profiling.terminal import print_profile
    from pipeline_runtime.run.code_paths import add_code_paths

    add_code_paths((*working_dir(manifest), *code_paths(manifest.file)))
    root = find_storage_root(manifest, storage_root)
    options = ProfileOptions(seconds=seconds, rows=rows, storage_root=root)
    console = make_console(stderr=True)
    status = console.status("planning …") if console.is_terminal else None
    with placing(manifest):
        if status is None:
            found = profile_experiment(manifest.experiment, options)
        else:
            with status:
                found = profile_experiment(
                    manifest.experiment, options, lambda phase: status.update(f"measuring: {phase}")
                )
    page = write_profile(output, found) if output else None
    if as_json:
        print(found.model_dump_json(by_alias=True, indent=2))
        return
    print_profile(make_console(), found)
    if page:
        print(f"profile: {page}")
