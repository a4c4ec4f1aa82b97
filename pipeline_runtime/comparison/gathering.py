"""Reads the runs to compare, and finds their repeats with other seeds.

The user names one run of each variant. Its repeats are the complete runs beside it, in the same
folder, whose configuration differs in `training.seed` alone; of several with the same seed, the
newest counts. `runs.locate` and `runs.listing` run before this, `comparing` after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from pipeline_runtime.config import RuleSet, parse_stored, read_documents, run_config
from pipeline_runtime.errors import LastmileError, ManifestError
from pipeline_runtime.report.files.evaluation_rows import (
    EVALUATION_FILE,
    EvaluationRows,
    decode_rows,
)
from pipeline_runtime.report.files.metrics_history import HISTORY_FILE, HISTORY_SCHEMA
from pipeline_runtime.report.files.summary import Summary
from pipeline_runtime.runs.listing import MANIFEST_FILE, ListedRun, list_siblings, read_run
from pipeline_runtime.runs.locate import DEFAULT_ROOT, RunPlace, locate_run
from pipeline_runtime.sources.filesystem import Location
from pipeline_runtime.sources.stores import asking, find_info, read_file

_PURPOSE = "compare runs"
_MAX_MANIFEST_BYTES = 1 << 20
# A million rows of 32 bytes, and room for what a later release may add.
_MAX_EVALUATION_BYTES = 256 << 20
_COMPLETE = "Complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredRun:
    """A run to compare; `evaluation` is None if it kept no evaluation rows."""

    listed: ListedRun
    summary: Summary
    evaluation: EvaluationRows | None

    @property
    def seed(self) -> int | None:
        """Its `training.seed`."""
        return self.summary.seeds.training

    def read_history(self) -> pa.Table:
        """Return the metrics history; no rows if there is none. Raises StoreError."""
        place = _find_file(self.listed.folders, HISTORY_FILE)
        if place is None:
            return HISTORY_SCHEMA.empty_table()
        with asking(place.uri, _PURPOSE), place.filesystem.open_input_file(place.path) as file:
            return pq.read_table(file, columns=HISTORY_SCHEMA.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The run that the user named, and its repeats.

    Attributes:
        runs: all of them, by seed.
        config: the run configuration without the seed; None if the manifest cannot be read.
    """

    label: str
    named: GatheredRun
    runs: tuple[GatheredRun, ...]
    config: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The variants, and what the user should know about the choice of runs."""

    variants: tuple[Variant, ...]
    warnings: tuple[str, ...]


def gather(names: Sequence[str], root: str = DEFAULT_ROOT, *, only_named: bool = False) -> Gathered:
    """Read the variants of which the user named a run each.

    Args:
        names: see `locate_run`.
        only_named: leave out the repeats.

    Raises:
        SourceError: there is no such run; StoreError if a store does not answer.
        LastmileError: a run has no summary, or a damaged one, or two names mean the same run.
    """
    named = [_read_named(name, root) for name in names]
    for index, run in enumerate(named):
        same = [other for other in named[:index] if _is_same(other, run)]
        if same:
            raise LastmileError(
                f"{names[index]}: must name another run than before, but both are "
                f"{run.experiment}/{run.name}; `lastmile runs` lists the runs"
            )
    groups = [(run.experiment, run.seed_group) for run in named]
    warnings = []
    if not only_named and len(set(groups)) < len(groups):
        only_named = True
        warnings.append(
            "Two of the named runs differ in their seed alone, so each is compared without its "
            "repeats."
        )
    variants = []
    for index, run in enumerate(named):
        repeats = [run] if only_named else _find_repeats(run)
        variants.append(_build_variant(_name_variant(index), run, repeats))
    return Gathered(variants=tuple(variants), warnings=(*warnings, *_list_doubts(variants)))


def _name_variant(index: int) -> str:
    """Return A to Z, then A1 to Z1, and so on."""
    letter, turn = chr(ord("A") + index % 26), index // 26
    return f"{letter}{turn}" if turn else letter


def _read_named(name: str, root: str) -> ListedRun:
    place = locate_run(name, root)
    run = _read_place(place)
    if run.summary is None:
        raise LastmileError(
            run.problem
            or f"{place.folder.uri}: must be a run that has ended, but has no summary.json. Wait "
            "for its end, or continue it with --resume"
        )
    return run


def _read_place(place: RunPlace) -> ListedRun:
    run = read_run(place.folder)
    if place.artifacts.path == place.folder.path:
        return run
    return replace(run, name=place.name, folders=(place.folder, place.artifacts))


def _is_same(one: ListedRun, other: ListedRun) -> bool:
    shared = {folder.uri for folder in one.folders} & {folder.uri for folder in other.folders}
    return bool(shared) or one.is_copy(other)


def _find_repeats(named: ListedRun) -> list[ListedRun]:
    """Return a run and its repeats, one a seed."""
    if named.seed_group is None or named.summary is None:
        return [named]
    beside = [run for folder in named.folders for run in list_siblings(folder)]
    repeats = [
        run
        for run in beside
        if run.phase == _COMPLETE
        and (run.experiment, run.seed_group) == (named.experiment, named.seed_group)
    ]
    by_seed = {
        run.summary.seeds.training: run
        for run in sorted(repeats, key=lambda run: run.name)
        if run.summary
    }
    by_seed[named.summary.seeds.training] = named
    return list(by_seed.values())


def _build_variant(label: str, named: ListedRun, repeats: Sequence[ListedRun]) -> Variant:
    runs = {run.name: _read_run(run) for run in repeats}
    ordered = sorted(runs.values(), key=lambda run: (run.seed is None, run.seed or 0))
    return Variant(
        label=label,
        named=runs[named.name],
        runs=tuple(ordered),
        config=_read_config(named.folders),
    )


def _read_run(run: ListedRun) -> GatheredRun:
    assert run.summary is not None, "only runs with a summary are compared"
    return GatheredRun(
        listed=run,
        summary=run.summary,
        evaluation=_read_evaluation(run.folders),
    )


def _read_evaluation(folders: Sequence[Location]) -> EvaluationRows | None:
    place = _find_file(folders, EVALUATION_FILE)
    content = place and read_file(place, _PURPOSE, _MAX_EVALUATION_BYTES)
    return decode_rows(content, place.uri) if place and content else None


def _list_doubts(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence for each run that should not be compared as it is."""
    doubts = []
    for variant in variants:
        phase = variant.named.listed.phase
        if phase != _COMPLETE:
            doubts.append(f"{variant.label} is {phase}: its last metrics are not those of its end.")
        sums = {run.summary.checksum.sum for run in variant.runs}
        if len(sums) > 1:
            doubts.append(
                f"{variant.label}: its runs did not train on the same rows; the table may have "
                "changed between them, or maxSteps ended them at different rows."
            )
        if variant.config is None:
            doubts.append(f"{variant.label}: its manifest.yaml cannot be read.")
    return doubts


def _read_config(folders: Sequence[Location]) -> Mapping[str, Any] | None:
    """Return the run configuration without the seed; None if no folder has a manifest."""
    for folder in folders:
        content = read_file(folder.join(MANIFEST_FILE), _PURPOSE, _MAX_MANIFEST_BYTES)
        for document in read_documents((content or b"").decode(errors="replace")):
            try:
                experiment, _ = parse_stored(document.value, RuleSet.NONE)
            except ManifestError:
                continue
            config = run_config(experiment)
            training = {k: v for k, v in config.get("training", {}).items() if k != "seed"}
            return {**config, "training": training}
    return None


def _find_file(folders: Sequence[Location], name: str) -> Location | None:
    """Return the file of this name in the first folder that has it. Raises StoreError."""
    places = (folder.join(name) for folder in folders)
    return next((p for p in places if find_info(p, _PURPOSE).type == pafs.FileType.File), None)
