"""`Loader`, which the caller iterates, and what it takes to make one.

Before it runs the planner; `iteration` runs each epoch.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import get_worker_info

from pipeline_runtime.arrays.conversion import check_tensor_schema
from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.config import DatasetExperiment, ExperimentSpec, run_config
from pipeline_runtime.errors import CheckpointError, LoaderError, ManifestError, Problem
from pipeline_runtime.feed.making.batching import Batching, batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.making.work import name_of
from pipeline_runtime.iceberg.pins import Pin, Pins
from pipeline_runtime.loader.iteration import (
    BatchIterator,
    EpochProgress,
    Recipe,
    check_process,
    iterate_epoch,
)
from pipeline_runtime.loader.options import LoaderOptions, parse_count
from pipeline_runtime.loader.ranks import ALONE, Ranks, find_rank, join_ranks
from pipeline_runtime.loader.state import (
    DataIdentity,
    Start,
    check_digest,
    check_start,
    parse_state,
)
from pipeline_runtime.plan import Plan, build_plan
from pipeline_runtime.training.position import digest_units


def open_loader(experiment: DatasetExperiment, storage_root: str, options: LoaderOptions) -> Loader:
    """Plan a loader of an experiment's training rows.

    Raises ManifestError for what the tables' schemas show, SourceError if a table cannot be read,
    and LoaderError for steps that need tasks of their own.
    """
    return Loader(partial(_plan_loader, experiment, storage_root, options))


def _plan_loader(
    experiment: DatasetExperiment, storage_root: str, options: LoaderOptions, pins: Iterable[Pin]
) -> tuple[Recipe, DataIdentity]:
    """Plan the rows of a loader; tables that have a pin are read at that snapshot."""
    restored = Pins()
    restored.restore(pins)
    plan = build_plan(experiment, storage_root, pins=restored)
    _check_steps(plan)
    found = dict(check_tensor_schema(plan.training.output_schema))
    if ROW_WEIGHT in found:
        found[ROW_WEIGHT] = "must not have the name of the weight of padding; rename or drop it"
    if found:
        raise ManifestError(
            [Problem(path="columns", message=f"{n!r}: {why}") for n, why in found.items()]
        )
    training = experiment.spec.training
    stream = Stream(
        plan=plan.training,
        chunk_rows=plan.training.chunk_rows,
        batching=_choose_batching(plan, experiment.spec),
    )
    recipe = Recipe(
        stream=stream,
        batch_size=training.batch_size,
        preserve_order=plan.preserve_order,
        prefetch=plan.prefetch,
        sparse=plan.delivery.sparse,
        options=options,
    )
    identity = DataIdentity(
        config=run_config(experiment), data_digest=digest_units(plan.training), pins=plan.pins
    )
    return recipe, identity


def _choose_batching(plan: Plan, spec: ExperimentSpec) -> Batching | None:
    """Return what the reader threads make of rows, also where only the loader can cut batches.

    Converted in the loop, rows in their order took half as much of a core again.
    """
    is_ready = plan.delivery.is_ready
    if plan.preserve_order:
        is_ready = spec.pipeline_options.debug.ready_batches
    delivery = replace(plan.delivery, is_ready=is_ready)
    batching = batching_of(delivery, plan.training, spec.training)
    return batching and replace(batching, cuts=not plan.preserve_order)


def _check_steps(plan: Plan) -> None:
    """Raise LoaderError for stages after the first, which are tasks of Ray, and for measures."""
    for step in plan.training.steps:
        if step.transform.observes_all:
            raise LoaderError(
                f"{name_of(step)}: must not measure rows in a loader, whose loop may take a row "
                "several times or never. Remove it; or use Pipeline.train or write_parquet"
            )
    steps = [step for stage in plan.training.stages[1:] for step in stage.steps]
    if steps:
        raise LoaderError(
            f"{name_of(steps[0])}: must not need workers of its own in a loader, which runs the "
            "steps in its own process. Remove map's resources and concurrency, and fusion=False; "
            "or use Pipeline.train"
        )


class Loader:
    """Batches of a pipeline's rows, as flat dicts of tensors; `Pipeline.loader` makes it.

    Each loop over it is one epoch. Use it where a torch DataLoader is used; see docs/loader.md.
    """

    def __init__(self, plan: Callable[[Iterable[Pin]], tuple[Recipe, DataIdentity]]) -> None:
        self._plan = plan  # picklable
        self._recipe, self._identity = plan(())
        self._chunk_rows = self._recipe.stream.chunk_rows
        # Where the next epoch begins, if it is not simply the one after that of `_progress`.
        self._next: Start | None = Start(epoch=0, chunk_rows=self._chunk_rows)
        self._progress: EpochProgress | None = None
        # Not a strong one: an iterator that the caller leaves must end its threads at once.
        self._iterator: weakref.ref[BatchIterator] | None = None
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_next": self._here(), "_progress": None, "_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pid=os.getpid())

    @property
    def batch_size(self) -> int:
        """Rows of a batch; the last one of an epoch may have fewer."""
        return self._recipe.batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the loop, as `state_dict` counts: of a loop that was left, still its own.

        After a complete loop, it is the next one. `set_epoch` and `load_state_dict` change it.
        """
        if self._next is not None and not self._is_running:
            return self._next.epoch
        assert self._progress is not None  # a loop has begun
        return self._progress.start.epoch + int(self._progress.is_finished)

    @property
    def checksum(self) -> dict[str, Any]:
        """The checksum of the rows that this rank's epoch delivered, as in summary.json."""
        progress = self._progress
        if progress is None or not progress.has_begun:
            return self._here().position.checksum.to_json()
        return progress.position.checksum.to_json()

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or the one that `set_epoch` or `load_state_dict` chose.

        Of several ranks, all must call this and take the same number of batches.
        """
        check_process(self._pid)
        if get_worker_info() is not None:
            raise LoaderError(
                "the loader must be iterated itself, but is used in a worker of a DataLoader, "
                "where each worker would read all rows. Remove the DataLoader around it"
            )
        self.close()
        ranks = join_ranks() if self._recipe.options.distributed else ALONE
        start = self._begin()
        agreeing = ranks.begin(self._describe(start))
        recipe = self._settle(ranks)
        if start.batches and start.world_size != ranks.world_size:
            raise CheckpointError(
                f"loader state: the number of ranks must be {start.world_size}, as when it was "
                f"saved, but is {ranks.world_size}. Load it on as many ranks, or begin the epoch "
                f"again by set_epoch({start.epoch})"
            )
        self._progress = EpochProgress(start=start, rank=ranks.rank, world_size=ranks.world_size)
        self._next = None
        iterator = BatchIterator(iterate_epoch(recipe, ranks, agreeing, self._progress))
        self._iterator = weakref.ref(iterator)
        return iterator

    def __len__(self) -> int:
        """Return the number of batches of an epoch, those delivered before a resume included.

        Raises TypeError if a step may drop or add rows, so that only reading them tells.
        """
        plan, options = self._recipe.stream.plan, self._recipe.options
        for step in plan.steps:
            if step.transform.changes_rows:
                raise TypeError(
                    f"the number of batches is unknown before they are read, because "
                    f"{name_of(step)} may change the number of rows; count steps instead"
                )
        world_size = find_rank()[1] if options.distributed else 1
        num_rows = sum(unit.num_rows for unit in plan.scan.units)
        if options.last_batch == "drop":
            return num_rows // world_size // self.batch_size
        return -(-num_rows // (world_size * self.batch_size))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop delivers; without this, it is the one after the last.

        A loaded state stays in force if it is of this epoch, and a loop in progress goes on. So it
        may be called before each loop, as that of a DistributedSampler, and also within one.
        """
        epoch = parse_count("epoch", epoch, least=0)
        if self._is_running and self._progress and self._progress.start.epoch == epoch:
            self._next = None
            return
        start = self._begin()
        is_of_epoch = start.epoch == epoch
        self._next = start if is_of_epoch else Start(epoch=epoch, chunk_rows=self._chunk_rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were delivered, for `load_state_dict`."""
        return self._here().to_state(self._identity)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next loop after the batches that were delivered when the state was saved.

        Iceberg tables are read from now on at the snapshots of the state.

        Raises:
            CheckpointError: a state of another pipeline, of other data or another version, or no
                state, or one with values that no loader saves.
            SourceError: a snapshot has expired, or a table cannot be read.
        """
        saved = parse_state(state_dict, self._identity.config)
        recipe, identity, start = self._recipe, self._identity, saved.start
        if saved.pins and saved.pins != identity.pins:
            recipe, identity = self._plan(saved.pins)
        check_digest(saved.data_digest, identity)
        check_start(start, recipe.stream.plan, self.batch_size)
        self.close()
        self._recipe, self._identity = recipe, identity
        self._next, self._progress, self._chunk_rows = start, None, start.chunk_rows

    def close(self) -> None:
        """End the present loop and its threads, as leaving it does."""
        iterator = self._iterator() if self._iterator else None
        if iterator is not None:
            iterator.close()
        self._iterator = None

    def _here(self) -> Start:
        """Return where the remaining batches begin."""
        if self._next is not None and not self._is_running:
            return self._next
        assert self._progress is not None  # a loop has begun
        return self._progress.here()

    @property
    def _is_running(self) -> bool:
        """True while a loop may take more batches."""
        iterator = self._iterator() if self._iterator else None
        return iterator is not None and not iterator.is_over

    def _begin(self) -> Start:
        """Return where the next loop begins."""
        if self._next is not None:
            return self._next
        assert self._progress is not None  # a loop has begun
        if not self._progress.has_begun:
            return self._progress.start
        return Start(epoch=self._progress.start.epoch + 1, chunk_rows=self._chunk_rows)

    def _describe(self, start: Start) -> dict[str, Any]:
        """Return all that decides how the rows are shared, which must be equal on all ranks."""
        return {
            **self._identity.config,
            "data_digest": self._identity.data_digest,
            "last_batch": self._recipe.options.last_batch,
            "epoch": start.epoch,
            "batches": start.batches,
            "chunk_rows": start.chunk_rows,
            "saved_world_size": start.world_size if start.batches else None,
        }

    def _settle(self, ranks: Ranks) -> Recipe:
        """Return the recipe with a choice for the last batch."""
        options = self._recipe.options
        if options.last_batch == "keep" and ranks.world_size > 1:
            raise LoaderError(
                f"last_batch: must be 'pad' or 'drop' on several ranks ({ranks.world_size}), which "
                "need equally many batches, but is 'keep'. Leave it out for 'pad'"
            )
        last_batch = options.last_batch or ("keep" if ranks.world_size == 1 else "pad")
        return replace(self._recipe, options=replace(options, last_batch=last_batch))
