"""Refuses a run whose folders, or those of other experiments, collide with its tables.

`session` checks this before anything is planned or claimed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pyarrow import fs as pafs

from pipeline_runtime.config import DatasetExperiment, ExperimentSpec
from pipeline_runtime.errors import FolderTaken, ManifestError, Problem
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.sources import Location, open_location


def check_apart(experiment: DatasetExperiment, options: RunOptions) -> None:
    """Check that runs, artifacts, the output table and the source have folders of their own.

    Raises:
        ManifestError: two places of the manifest collide, or one with the folder of the runs.
        FolderTaken: `--output` is the folder of other runs.
    """
    runs = open_location(str(options.output))
    stored = open_location(experiment.spec.artifacts.uri, options.storage_root)
    mine = stored.join(experiment.metadata.name)
    if options.folder_per_run and _path(runs) == _path(stored):
        message = (
            f"must not be {experiment.metadata.name!r}, because {runs.uri} holds the artifacts of "
            "all experiments. Rename the experiment, or name a folder for its report by --output"
        )
        raise ManifestError([Problem(path="metadata.name", message=message)])
    if not options.folder_per_run and _path(runs) in (_path(stored), _path(mine)):
        raise FolderTaken(
            f"{runs.uri}: must not be the folder of all artifacts, but is. Name another folder by "
            "--output"
        )
    if problems := list(_find_problems(experiment, options, runs, mine)):
        raise ManifestError(problems)


def _find_problems(
    experiment: DatasetExperiment, options: RunOptions, runs: Location, mine: Location
) -> Iterator[Problem]:
    spec, root = experiment.spec, options.storage_root
    sources = list(_open_sources(spec, root))
    for path, uri, place in sources:
        if _holds(place, runs):
            message = f"must not hold the folder of the runs ({runs.uri}), but is {uri!r}"
            advice = "their files would be rows. Rename the experiment, or use --output"
            yield Problem(path=path, message=f"{message}: {advice}")
        elif _holds(place, mine):
            message = f"must not hold the artifacts of the runs ({mine.uri}), but is {uri!r}"
            advice = "their files would be rows. Set spec.artifacts.uri to another folder"
            yield Problem(path=path, message=f"{message}: {advice}")
    if spec.output is None or spec.output.parquet is None:
        return
    target = spec.output.parquet
    table = open_location(target.uri, root, target.s3)
    others = {f"the folder of the runs ({runs.uri})": runs, f"the artifacts ({mine.uri})": mine}
    read = {f"the source {uri!r} ({path})": place for path, uri, place in sources}
    for what, place in (others | read).items():
        if _holds(table, place):
            why = f"{target.uri!r} holds it: the table would take its place"
        elif what in read and _holds(place, table):
            why = f"{target.uri!r} lies in it: the table would be read as a part of it"
        else:
            continue
        message = f"must be apart from {what}, but {why}. Name another folder"
        yield Problem(path="spec.output.parquet.uri", message=message)
        return  # one reason is enough


def _open_sources(spec: ExperimentSpec, root: str) -> Iterator[tuple[str, str, Location]]:
    """Yield the field, the URI and the place of each Parquet table that the spec reads."""
    tables = [("spec.dataset", spec.dataset.parquet)]
    for index, step in enumerate(spec.pipeline):
        for config in step.given():
            if side_table := config.find_side_table():
                tables.append((f"spec.pipeline[{index}].{config.kind()}", side_table.parquet))
    for path, table in tables:
        for uri in table.locations if table else ():
            yield f"{path}.parquet.uri", uri, open_location(uri, root, table.s3 if table else None)


def _holds(outer: Location, inner: Location) -> bool:
    """Return whether a folder is another one, or above it."""
    is_below = f"{_path(inner)}/".startswith(f"{_path(outer).rstrip('/')}/")
    return is_below and bool(outer.filesystem == inner.filesystem)


def _path(place: Location) -> str:
    is_local = isinstance(place.filesystem, pafs.LocalFileSystem)
    return os.path.realpath(place.path) if is_local else place.path.rstrip("/")
