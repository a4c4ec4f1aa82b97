"""A run with `output.mode: OverwritePartitions`: writes the partitions that a staging table lacks.

Each commit has a few partitions, and is an output job of its own. So a run that is killed keeps the
commits before, and the next run computes the others. Several runs may write different partitions of
a table at a time; what another one has committed meanwhile is not committed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pipeline_runtime.config import DatasetExperiment, run_config, run_hash
from pipeline_runtime.errors import OutputRefused, StoreError
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.materialization.backfill import Backfill
from pipeline_runtime.materialization.lookup import name_partition
from pipeline_runtime.materialization.tables import ORPHAN_AGE
from pipeline_runtime.output.covered_table import AlreadyCovered
from pipeline_runtime.output.iceberg import IcebergTable
from pipeline_runtime.output.job import Job, Progress, Target, add_progress, open_job
from pipeline_runtime.output.names import make_token, name_backfill, split_backfill
from pipeline_runtime.output.records import RunRecord
from pipeline_runtime.output.staging_table import StagingTable, open_staging_table
from pipeline_runtime.plan import build_plan
from pipeline_runtime.promotion.partitions import PartitionChoice, encode_value
from pipeline_runtime.run.consumers import Claim, Control, Reading, RunBasis
from pipeline_runtime.run.folders import parse_run_hash
from pipeline_runtime.run.keeping_measures import KeptMeasures
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.partition_commits import MOMENT, CommitRows, cut_commits
from pipeline_runtime.run.pinning import find_pins
from pipeline_runtime.run.results import check_not_complete
from pipeline_runtime.run.writing.targets import open_target
from pipeline_runtime.run.writing.writing_run import WritingRun
from pipeline_runtime.sources import Location, open_location
from pipeline_runtime.sources.stores import list_folder
from pipeline_runtime.training.position import digest_units

_MAX_SHOWN = 8


def prepare_backfill(
    experiment: DatasetExperiment, options: RunOptions, now: datetime, claim: Claim
) -> BackfillRun:
    """Plan a run, find the partitions that are missing, and claim the run.

    Args:
        claim: see `run.consumers.Runner`.

    Raises ManifestError, SourceError (StoreError if a store does not answer), OutputError, or
    AlreadyComplete.
    """
    root = options.storage_root
    found_hash = run_hash(experiment)
    artifacts = open_location(experiment.spec.artifacts.uri, root).join(experiment.metadata.name)
    earlier = [
        name
        for name in (_list_folders(artifacts) if options.resume else ())
        if options.is_attempt(name, found_hash)
    ]
    pins = Pins()
    if earlier:
        pins = find_pins(artifacts, None, lambda name: name == earlier[0])
    plan = build_plan(experiment, root, pins=pins)
    target = open_target(experiment, plan, root)
    fresh = options.name_run(now, found_hash, artifacts, is_alone=False)
    name = earlier[0] if earlier else fresh
    check_not_complete(artifacts.join(name))
    claim(artifacts.join(name))
    assert plan.backfill is not None
    chosen = _choose(plan.backfill, options.partitions)
    missing = [key for key in plan.backfill.missing if key in chosen]
    rows = CommitRows.plan(plan.main, missing, plan.backfill.partitions)
    basis = RunBasis(
        experiment=experiment,
        plan=replace(plan, streams={rows.stream.role: rows.stream}),
        run_location=artifacts.join(name),
        run_hash=found_hash,
        attempt=1 + len(earlier),
    )
    needs_ray = options.address != "local" or plan.needs_ray
    return BackfillRun(basis, target, missing, chosen, needs_ray=needs_ray)


def _list_folders(artifacts: Location) -> list[str]:
    infos = list_folder(artifacts, "look for earlier attempts")
    return sorted((info.base_name for info in infos), reverse=True)


def _choose(found: Backfill, texts: Sequence[str]) -> frozenset[str]:
    """Return the partitions that the user names, or else all. Raises OutputRefused."""
    values = {
        key: {
            name: encode_value(None if value is None else str(value))
            for name, value in json.loads(key).items()
        }
        for key in found.wanted
    }
    for text in texts:
        choice = PartitionChoice.parse([text])
        if not any(choice.matches(each) for each in values.values()):
            names = _name_some(_name_choice(values[key]) for key in sorted(values))
            raise OutputRefused(
                f"--partition: must choose a partition of the source, got {text!r}, but the "
                f"manifest reads {names}. Correct it, or spec.dataset.where"
            )
    choice = PartitionChoice.parse(texts)
    return frozenset(key for key, each in values.items() if choice.matches(each))


def _name_choice(values: Mapping[str, str]) -> str:
    """Return the text that chooses a partition by `--partition`."""
    return ",".join(f"{name}={value}" for name, value in values.items()) or "the whole table"


def _name_some(names: Iterable[str]) -> str:
    """Return the first names, and the number of the others."""
    found = list(names)
    more = f" and {len(found) - _MAX_SHOWN:,} more" if len(found) > _MAX_SHOWN else ""
    return f"{', '.join(found[:_MAX_SHOWN]) or 'none'}{more}"


class BackfillRun(WritingRun):
    """See `run.consumers.ConsumerRun`.

    Args:
        target: the staging table.
        missing: the partitions to compute, in order.
        chosen: the partitions that the user asked for.
    """

    hint = "continue: the same command writes the partitions that are missing"
    stopping = "stopping; committed partitions are kept (Ctrl-C again: at once)"

    def __init__(
        self,
        basis: RunBasis,
        target: Target,
        missing: Sequence[str],
        chosen: frozenset[str],
        *,
        needs_ray: bool,
    ) -> None:
        num_complete = len(chosen) - len(missing)
        progress = Progress(num_partitions=len(chosen), num_complete_partitions=num_complete)
        super().__init__(basis, target, progress, needs_ray=needs_ray)
        # Earlier runs have written most of the table's rows, and did not keep their counts.
        self.measures = KeptMeasures((), basis.run_location)
        assert basis.plan.backfill is not None
        self._found = basis.plan.backfill
        self._missing = missing
        self._complete = sorted(chosen - set(missing))
        self._written: list[str] = []
        self._snapshot_id = ""
        self._run = basis.run_location.path.rstrip("/").rpartition("/")[2]

    @property
    def intro(self) -> Iterator[str]:
        """Lines that say what is about to run."""
        yield from super().intro
        count = f"{len(self._missing):,} of {self.progress.num_partitions:,}"
        yield f"{count} partitions are missing or changed, the others are in the table"

    def _write(self, control: Control) -> None:
        on_progress = self.watch(control)
        on_progress(self.progress)
        self._sweep()
        for keys in cut_commits(self._missing, self._found.partitions) if self._missing else ():
            left = self._open_table(keys).find_missing()
            with suppress(AlreadyCovered):
                if left:
                    self._commit(frozenset(left), control)
            done = [key for key in keys if key not in self._written]
            self._complete += done
            self.progress.num_complete_partitions += len(done)
            names = ", ".join(map(name_partition, sorted(keys)))
            control.show(Reading(notes=(f"complete: {names}",)))
        self._check_kept()
        self.progress.phase = "Committed"
        on_progress(self.progress)

    def _check_kept(self) -> None:
        """Raise StoreError if rows of this run are gone, so that it does not end as complete."""
        if lost := self._open_table(frozenset(self._missing)).find_lost():
            raise StoreError(
                f"{self.target.name}: must have the partitions of this run until it ends, but "
                f"another program has changed or deleted the table, and {len(lost):,} of them are "
                f"not known any more: {_name_some(map(name_partition, sorted(lost)))}. Run again"
            )

    def _commit(self, keys: frozenset[str], control: Control) -> None:
        """Write some partitions, and commit them. Raises AlreadyCovered if another run did."""
        before, on_progress = self.progress, self.watch(control)
        rows = CommitRows.plan(self.basis.plan.main, keys, self._found.partitions)
        table = self._open_table(keys)
        job = self._open_job(table, rows)

        job.progress.waited, job.progress.usage = before.waited, before.usage  # they go on

        def add(progress: Progress) -> None:
            self.progress = add_progress(before, progress)
            if progress.phase != "Committed":  # that is the end of the run
                on_progress(self.progress)

        try:
            committed = self.write_job(job, rows.stream, rows.groups, add)
        except AlreadyCovered:
            self.progress = before  # its rows are another run's
            raise
        finally:
            table.abandon(job.run)
        self.warnings += job.warnings
        self._written += keys
        self._snapshot_id = committed.snapshot_id
        self.progress.num_complete_partitions += len(keys)

    def _open_table(self, keys: frozenset[str]) -> StagingTable:
        table = self.target.destination
        assert isinstance(table, IcebergTable)
        return open_staging_table(table, self._found, keys)

    def _open_job(self, table: StagingTable, rows: CommitRows) -> Job:
        record = RunRecord(
            id=make_token(),
            run_hash=self.basis.run_hash,
            run_config=run_config(self.basis.experiment),
            data_digest=digest_units(rows.stream),
            chunk_rows=rows.stream.chunk_rows,
            layout=self.target.layout,
        )
        return open_job(
            replace(self.target, destination=table),
            f"{name_backfill(self._run)}{datetime.now(UTC):{MOMENT}}-{record.id}",
            record,
            is_mine=lambda name: False,
            resume=False,
            claim=lambda name: None,
        )

    def _sweep(self) -> None:
        """Remove what runs left that were killed a day ago or longer."""
        table = self._open_table(frozenset())
        before = f"{datetime.now(UTC) - ORPHAN_AGE:{MOMENT}}"
        for name in table.list_runs():
            run, began = split_backfill(name) or ("", "")
            # The table of another manifest may be another one.
            if began < before and parse_run_hash(run) == self.basis.run_hash:
                table.abandon(name)

    def _describe_table(self) -> dict[str, Any]:
        """Return fields of `report.Written` about the table that was committed."""
        return {
            "snapshot_id": self._snapshot_id or None,
            "written_partitions": tuple(map(name_partition, sorted(self._written))),
            "complete_partitions": tuple(map(name_partition, sorted(self._complete))),
        }
