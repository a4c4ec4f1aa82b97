"""Measurements as the document has them: per row, per sample, shares of a reader's time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from pipeline_runtime.config import DatasetExperiment, Training
from pipeline_runtime.feed.chunk import StepCount
from pipeline_runtime.formatting import format_percent
from pipeline_runtime.plan import Plan
from pipeline_runtime.profiling.clock import Spent, summarise
from pipeline_runtime.profiling.document import (
    Column,
    Hop,
    Need,
    Reading,
    Sample,
    StepCost,
    Trainer,
)
from pipeline_runtime.profiling.sample import Pass, Taken
from pipeline_runtime.training.ranking.features import choose_features, parse_config

# With the cores at others for more of the time than this, caches and memory were theirs too.
_BUSY_RATIO = 0.05
_MICROSECONDS = 1e6


def describe_sample(taken: Taken, passes: Sequence[Pass]) -> Sample:
    """Describe the sample: its size and the repetitions."""
    pruning = taken.stream.scan.pruning
    return Sample(
        row_groups=sum(len(group.units) for group in taken.groups),
        row_groups_left=pruning.row_groups_read,
        rows=taken.rows,
        rows_left=pruning.rows_read,
        samples=taken.samples,
        times=len(passes),
    )


def describe_reading(taken: Taken, passes: Sequence[Pass]) -> Reading:
    """The decode floor. Stored bytes are by the footers, decoded ones as the read counted them."""
    stream = taken.stream
    units = [unit for group in taken.groups for unit in group.units]
    names = taken.columns
    sizes = stream.table.sizes(units, names).values()
    spent = sum((one.floor for one in passes), Spent())
    return Reading(
        columns=len(names),
        rows_per_second=summarise([taken.rows / one.floor.own for one in passes]),
        waiting_ratio=spent.waiting / spent.own,
        stored_bytes_per_row=sum(size.stored_bytes for size in sizes) / taken.rows,
        decoded_bytes_per_row=taken.counts[0].num_bytes / taken.rows,
    )


def describe_steps(taken: Taken, passes: Sequence[Pass]) -> tuple[StepCost, ...]:
    """The read, every step, and handing over, which is what the counts leave of the whole.

    Each pass's seconds are its own, as `Spent.own` has them, shared out as the clock on the wall
    counted them.
    """
    stream, samples = taken.stream, taken.samples
    seconds = [_seconds_of(one) for one in passes]
    whole = sum(map(sum, seconds))
    last = taken.counts[-1]
    handed = StepCount(rows=samples, num_bytes=last.num_bytes, seconds=0.0)
    named = [
        ("read", "spec.dataset", stream.table.description),
        *((step.kind, step.path, step.label) for step in stream.steps),
        ("handOver", "", "chunks packed to be sent"),
    ]
    counts = [*taken.counts, handed]
    costs = []
    for index, ((kind, path, label), count) in enumerate(zip(named, counts, strict=True)):
        rows_in = counts[max(0, index - 1)].rows
        times = [one[index] for one in seconds]
        costs.append(
            StepCost(
                kind=kind,
                path=path,
                label=label,
                rows_in=rows_in,
                rows_out=count.rows,
                microseconds_per_row=summarise(
                    [_MICROSECONDS * t / max(1, rows_in) for t in times]
                ),
                share=sum(times) / whole,
                bytes_per_row=count.num_bytes / max(1, count.rows),
            )
        )
    return tuple(costs)


def _seconds_of(one: Pass) -> list[float]:
    walls = [*(count.seconds for count in one.counts), one.hand_over_seconds]
    return [wall * one.whole.own / sum(walls) for wall in walls]


def describe_columns(training: Training, taken: Taken) -> tuple[Column, ...]:
    """Describe the columns that are read, the widest first; bytes by the footers."""
    stream = taken.stream
    units = [unit for group in taken.groups for unit in group.units]
    found = stream.table.sizes(units, taken.columns)
    sizes = {name: size.num_bytes for name, size in found.items()}
    whole = max(1, sum(sizes.values()))
    used = _used_columns(training, taken)
    return tuple(
        Column(
            name=name,
            bytes_ratio=sizes[name] / whole,
            is_trained_on=None if used is None else name in used,
        )
        for name in sorted(sizes, key=lambda name: (-sizes[name], name))
    )


def _used_columns(training: Training, taken: Taken) -> set[str] | None:
    """Return the columns that the built-in model or row selection uses; None: unknown."""
    if not training.is_built_in:
        return None
    stream = taken.stream
    features = choose_features(
        parse_config(training.config),
        stream.output_schema,
        label=training.label_column,
        weight=training.weight_column,
    )
    used = {features.label, *features.dense, *features.categorical}
    used |= {sequence.column for sequence in features.sequences}
    used |= {training.weight_column or "", stream.request_key or "", stream.sharing.key or ""}
    for transform in reversed([step.transform for step in stream.steps]):
        if transform.changes_rows or not used.isdisjoint(transform.outputs):
            used = (used - transform.outputs) | transform.inputs
    return used.union(stream.identity.columns)


def describe_hops(
    taken: Taken,
    reading: Reading,
    steps: Sequence[StepCost],
    packed: Mapping[str, float],
    trainer: Trainer,
    need: Need,
) -> tuple[Hop, ...]:
    """Bytes at each place on the way, for each sample at its end.

    Args:
        packed: by `measure_packed`.
    """
    rows_per_sample = taken.rows / taken.samples
    sizes = {
        "storage": reading.stored_bytes_per_row * rows_per_sample,
        "decoded": reading.decoded_bytes_per_row * rows_per_sample,
        "after the steps": steps[-1].bytes_per_row,
        **packed,
        f"batch on {trainer.device}": trainer.batch_bytes_per_sample,
    }
    return tuple(
        Hop(name=name, bytes_per_sample=size, bytes_per_second=size * need.demand)
        for name, size in sizes.items()
    )


def list_warnings(
    experiment: DatasetExperiment, plan: Plan, passes: Sequence[Pass], device: torch.device
) -> Iterator[str]:
    """Yield warnings about reasons to distrust the figures."""
    spent = sum((one.floor + one.whole for one in passes), Spent())
    if spent.queued > _BUSY_RATIO * spent.wall:
        yield (
            f"the machine was busy: {format_percent(spent.queued / spent.wall)} of the time this "
            "process stood in line for a core; that is left out of the rates, which are low and "
            "far apart all the same: measure again when it is idle"
        )
    if experiment.spec.trainers.gpus_per_replica and device.type != "cuda":
        yield (
            "trainers have a GPU by spec.trainers.gpusPerReplica, this machine has none: the model "
            "was measured on its CPU; measure where a GPU is to size a cluster"
        )
    if experiment.spec.pipeline_options.feed == "RayData" or plan.feed.engine == "RayData":
        yield f"the run uses Ray Data ({plan.feed.reason}), whose own cost a block is not measured"
