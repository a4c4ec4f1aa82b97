"""The run that a script is part of: `pipeline_runtime.current()`.

A script trains as it likes. The run gives it one thing, the rank's rows (`Run.loader`), and keeps
what belongs to them: the position for a resume (`save`, `load`), the metrics and the report. All
of it is the script's side of a `TrainContext`, which also serves entrypoints.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from pipeline_runtime.batches import Batch
from pipeline_runtime.errors import Interrupted, LoaderError
from pipeline_runtime.training.checkpoints.sharded import check_gathered
from pipeline_runtime.training.context import TrainContext

Split = Literal["training", "evaluation"]

_current: Run | None = None


def current() -> Run:
    """Return the run that this script is part of. Raises LoaderError outside of a run."""
    if _current is None:
        raise LoaderError(
            "pipeline_runtime.current(): this process is not a trainer of a run; name the script "
            "in spec.training.script, and start it by `lastmile run -f MANIFEST`"
        )
    return _current


@contextmanager
def offering(run: Run) -> Iterator[None]:
    """Let `current` return this run."""
    global _current
    before, _current = _current, run
    try:
        yield
    finally:
        _current = before
        run.close()


def join_ranks(world_size: int) -> dist.ProcessGroup | None:
    """Return a group of CPU processes in which the ranks agree; None for a single rank.

    The script's own group may be one of GPUs (NCCL), which would wait for the GPU.
    """
    if world_size == 1:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise LoaderError(
            f"the run has {world_size} trainers, which share the rows in step, but "
            "torch.distributed is not initialised; call "
            "torch.distributed.init_process_group() before the first loop over the loader"
        )
    if dist.get_world_size() != world_size:
        raise LoaderError(
            f"torch.distributed must have the {world_size} ranks of the run, but has "
            f"{dist.get_world_size()}; take the number from WORLD_SIZE"
        )
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)  # all ranks are members of it
    return group


class Run:
    """One rank's side of a run, for a script."""

    def __init__(
        self,
        context: TrainContext,
        num_batches: Mapping[int, int] | None = None,
        first_epoch: int | None = None,
    ) -> None:
        """Wrap a context.

        Args:
            num_batches: batches of each epoch; None if they are unknown.
            first_epoch: the first one that has rows left; None: that of the context.
        """
        context.deliver_to(torch.device("cpu"))
        context.serve_script(self._had_its_chance)
        self._context = context
        self._num_batches = num_batches
        self._first_epoch = context.epoch if first_epoch is None else first_epoch
        self._asks = False  # the script calls `checkpoint_due`
        self._was_told = False  # it learned of the stop there
        self._pid = os.getpid()
        self._chosen: int | None = None  # the epoch of the next loop, if the script chose it
        self._begun: int | None = None  # the epoch of the last loop
        self._num_taken = 0  # batches in this attempt
        self._is_training = False  # within a loop over the training rows
        self._loops: dict[Split, Generator[Batch]] = {}
        self.interrupted: str | None = None  # why the run stops, once the script was told

    @property
    def config(self) -> Mapping[str, Any]:
        """`spec.training.config`."""
        return self._context.config

    @property
    def num_epochs(self) -> int:
        """`spec.training.epochs`."""
        return self._context.num_epochs

    @property
    def epoch(self) -> int:
        """The epoch of the rows, from 0; after a resume, that of the checkpoint."""
        return self._context.epoch

    @property
    def step(self) -> int:
        """Batches that each rank has had since the run began."""
        return self._context.step

    @property
    def batch_size(self) -> int:
        """`spec.training.batchSize`."""
        return self._context.spec.batch_size

    @property
    def request_columns(self) -> frozenset[str]:
        """Columns that batches hold once per request; see `spec.training.deduplicated`."""
        return self._context.request_columns

    @property
    def world_size(self) -> int:
        """Number of trainers, as WORLD_SIZE."""
        return self._context.world_size

    # --- rows -----------------------------------------------------------------------------------

    def loader(
        self, split: Split = "training", *, device: str | torch.device | None = None
    ) -> RunLoader:
        """Return this rank's batches, to use where a torch DataLoader is used.

        The manifest says what they are: `training.batchSize`, `columns`, `shuffle`, `seed`.

        Args:
            split: `training`, of which each loop is the next epoch; or `evaluation`, of which each
                loop has all the rows that `training.evaluation` holds out.
            device: device of the tensors of all loaders; a GPU's come through pinned memory, ahead
                of time. None: the CPU.
        """
        if split not in get_args(Split):
            raise ValueError(f"split: must be 'training' or 'evaluation', but is {split!r}")
        if split == "evaluation" and self._context.spec.evaluation is None:
            raise LoaderError(
                "loader: there are no rows for an evaluation; set spec.training.evaluation"
            )
        target = torch.device("cpu" if device is None else device)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        self._context.deliver_to(target)
        return RunLoader(self, split)

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, the resumed one first.

        The resumed epoch comes even if none of its batches remains.
        """
        for epoch in self._context.epochs():
            self._chosen = epoch
            yield epoch

    # --- state ----------------------------------------------------------------------------------

    def checkpoint_due(self) -> bool:
        """Return whether to call `save` after this step; equal on all ranks.

        True at the intervals of `spec.training.checkpoint`, and once the run is asked to stop; it
        stays true until `save` is called.
        """
        self._asks = True
        self._was_told = self._context.is_stopping
        return self._context.checkpoint_due()

    def save(self, state: Mapping[str, Any], *, step: int | None = None) -> None:
        """Save a checkpoint: rank 0's state, and the position in the rows of all ranks.

        All ranks must call this after the same batch. A store that refuses is a warning of the run.

        Args:
            state: tensors, numbers, texts, bytes and containers of them; a state that is sharded
                over the ranks must be gathered before.
            step: batches that the state was trained on, if the framework took one batch ahead:
                `run.step` or one less. None: all that were taken.

        Raises Interrupted after the checkpoint if the run was asked to stop, LoaderError for
        another step, and TrainingError for a sharded state.
        """
        check_gathered(state)
        ahead = 0 if step is None else self.step - step
        if not 0 <= ahead <= min(1, self._num_taken):
            raise LoaderError(
                f"save: step must be {self.step}, the batches that were taken from the loader, or "
                f"one less, but is {step}. Call save after each batch for which checkpoint_due() "
                "is true, and let the framework take at most one batch ahead"
            )
        try:
            self._context.report({}, checkpoint=state, ahead=ahead)
        except Interrupted as stop:
            self.interrupted = str(stop)
            raise

    def load(self) -> Mapping[str, Any] | None:
        """Return the state of the checkpoint that the run resumes from; None if it begins anew.

        torch's random state of this rank becomes that of the checkpoint.
        """
        self._context.restore_random_state()
        return self._context.checkpoint

    def report(self, metrics: Mapping[str, float]) -> None:
        """Record metrics for the report; names that begin with `eval_` belong to an evaluation."""
        self._context.report(metrics)

    def record_evaluation(
        self,
        batch: Batch,
        predictions: torch.Tensor,
        losses: torch.Tensor,
        *,
        labels: torch.Tensor | None = None,
    ) -> None:
        """Record the results of a batch of the evaluation, for comparisons with other runs.

        Call it once for each batch of `loader("evaluation")`, in their order, on each rank.

        Args:
            batch: as it came from the loader, on any device.
            predictions: of its B rows, such as probabilities.
            losses: of its rows, without their weights.
            labels: of its rows; the column `spec.training.labelColumn` of the batch if None.

        Raises TrainingError if a batch was left out, or the tensors have another number of rows.
        """
        self._context.record_evaluation(batch, predictions, losses, labels_B=labels)

    # --- for loaders ----------------------------------------------------------------------------

    def begin(self, split: Split) -> Iterator[Batch]:
        """Return a loop over a split, which takes the place of an earlier one at its first batch.

        Frameworks make loops that they never use, so making one must not use up an epoch.
        """
        if os.getpid() != self._pid or get_worker_info() is not None:
            raise LoaderError(
                "the loader of a run must be used in the script's own process, but is used in a "
                "fork of it or in a worker of a DataLoader; iterate it directly"
            )
        return self._iterate(split)

    def _iterate(self, split: Split) -> Generator[Batch]:
        self._end(split)
        if split == "evaluation":
            loop = self._context.evaluation_batches()
        else:
            self._choose(self._next_epoch())
            loop, self._is_training = self._train(), True
        self._loops[split] = loop
        yield from loop

    def choose_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop over the training rows."""
        self._chosen = epoch

    def num_batches(self, split: Split) -> int:
        """Return the batches of the present or next loop. Raises TypeError if they are unknown."""
        if self._num_batches is None or split == "evaluation":
            raise TypeError(
                "the number of batches is unknown before they are read; count steps instead"
            )
        epoch = self._begun if self._is_training else self._next_epoch()
        return self._num_batches.get(epoch or 0, 0)

    def close(self) -> None:
        """End all loops."""
        for split in list(self._loops):
            self._end(split)

    def _end(self, split: Split) -> None:
        loop = self._loops.pop(split, None)
        if loop is not None:
            loop.close()
        if split == "training":
            self._is_training = False

    def _next_epoch(self) -> int:
        if self._chosen is not None:
            return self._chosen
        return self._first_epoch if self._begun is None else self._begun + 1

    def _choose(self, epoch: int) -> None:
        """Move to an epoch. Raises LoaderError if its rows cannot be read any more, or ever."""
        first = self.epoch if self._begun is None else self._begun + 1
        if not first <= epoch < self.num_epochs:
            raise LoaderError(
                f"the loop is over epoch {epoch}, but the run has {self.num_epochs} epochs "
                f"(spec.training.epochs), and the next one is {first}. Loop over "
                "current().epochs(), or raise spec.training.epochs"
            )
        self._chosen, self._begun = None, epoch
        self._context.start_epoch(epoch)

    def _train(self) -> Generator[Batch]:
        try:
            with closing(self._context.batches()) as batches:
                for batch in batches:
                    self._num_taken += 1
                    yield batch
        except Interrupted as stop:
            self.interrupted = str(stop)
            raise
        self._is_training = False

    def _had_its_chance(self) -> bool:
        """Return whether the script had its chance to save since the run was asked to stop.

        A framework may take several batches before it asks, and then saves after all of them.
        """
        return self._was_told or not self._asks


class RunLoader:
    """Batches of the run, as dicts of tensors; `Run.loader` makes it.

    Each loop over it is one epoch. A loop that is left before its end gives up the epoch's other
    rows.
    """

    def __init__(self, run: Run, split: Split) -> None:
        self._run = run
        self._split: Split = split

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, at the first batch. All ranks must take equally many batches."""
        return self._run.begin(self._split)

    def __len__(self) -> int:
        """Return the batches of the present or next epoch, those before a resume included.

        Raises TypeError if a step may change the number of rows, so that only reading tells.
        """
        return self._run.num_batches(self._split)

    @property
    def batch_size(self) -> int:
        """`spec.training.batchSize`; the last batch of an epoch may have fewer rows."""
        return self._run.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop; without this, it is the one after the last."""
        self._run.choose_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the run's own checkpoint has the position (`Run.save`).

        Lightning takes a loader without this for one that cannot resume.
        """
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing, as `state_dict`."""
