"""Advice on the manifest: each rule is a function of the measurements and the plan.

Numbers in the texts are measured, or computed from measured ones by what the text says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.formatting import format_duration
from pipeline_runtime.formatting import format_percent as percent
from pipeline_runtime.plan import Plan, PlannedStep
from pipeline_runtime.profiling.document import (
    Advice,
    Binding,
    Column,
    Need,
    Reading,
    StepCost,
    Trainer,
)
from pipeline_runtime.steps.base import Transform

# Less of a reader's or a trainer's time is not worth a change of the manifest.
_WORTH_RATIO = 0.1
# A part that takes this much is what one looks at first.
_LARGE_RATIO = 0.3
_MAX_NAMES = 5
# Of pipelineOptions.debug: each only takes work away.
_SWITCHES = (
    *("projection", "pushdown", "fusion", "kernels", "page_decoding", "deduplication"),
    *("prefetch", "late_materialization", "ready_batches", "sparse"),
    *("batched_calls", "shared_memory"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that the rules look at."""

    spec: ExperimentSpec
    plan: Plan
    trainer: Trainer
    reading: Reading
    steps: tuple[StepCost, ...]  # the read, the plan's steps in order, handing over
    columns: tuple[Column, ...]
    need: Need
    binding: Binding

    @property
    def data_counts(self) -> bool:
        """Return whether a cheaper row saves data workers or waiting time of trainers."""
        return self.need.workers > 1 or self.binding.what in ("dataWorkers", "storage")


def advise(found: Findings) -> tuple[Advice, ...]:
    """The rules that say something, in order."""
    rules = (_bounds, _storage, _switches, _columns, _order, _maps, _reading, _batches, _host)
    return tuple(advice for rule in rules for advice in rule(found))


def _bounds(found: Findings) -> Iterator[Advice]:
    need = found.need
    bounds = f"minReplicas {need.min_workers} to maxReplicas {need.max_workers}"
    if need.workers > need.max_workers:
        text = f"{need.workers} would feed the trainers"
        if need.waiting_at_max > 0:
            text += f"; with {need.max_workers} they wait {percent(need.waiting_at_max)} of the "
            text += "time"
        yield Advice(field="spec.dataWorkers.maxReplicas", text=text)
    elif need.workers > need.min_workers:
        text = f"{need.workers} would feed the trainers from the start; within {bounds} the "
        text += f"autoscaler is to find it, and they wait up to {percent(need.waiting_at_min)} of "
        text += "the time until it has"
        yield Advice(field="spec.dataWorkers.minReplicas", text=text)
    elif need.workers_high < need.min_workers:
        text = f"{need.workers} {_are(need.workers)} enough: {need.min_workers - need.workers} of "
        text += f"{need.min_workers} would have nothing to do"
        yield Advice(field="spec.dataWorkers.minReplicas", text=text)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _storage(found: Findings) -> Iterator[Advice]:
    read, waiting = found.steps[0], found.reading.waiting_ratio
    if read.share * waiting > _LARGE_RATIO:
        yield Advice(
            field="spec.dataset",
            text=f"a reader waits {percent(read.share * waiting)} of its time for the storage; "
            "a store nearer to the data workers, or fewer bytes per row, counts more than CPUs",
        )


def _switches(found: Findings) -> Iterator[Advice]:
    switches = found.spec.pipeline_options.debug
    for name in _SWITCHES:
        if not getattr(switches, name):
            field = to_camel(name)
            yield Advice(
                field=f"spec.pipelineOptions.debug.{field}",
                text="it is off; on gives the same rows for less work: measure again with "
                f"--set pipelineOptions.debug.{field}=true",
            )


def _columns(found: Findings) -> Iterator[Advice]:
    """Advise to drop columns that cost bytes on the whole way and reach nothing."""
    unused = [column for column in found.columns if column.is_trained_on is False]
    share = sum(column.bytes_ratio for column in unused)
    if unused and share > 0:
        names = ", ".join(column.name for column in unused[:_MAX_NAMES])
        names += f" and {len(unused) - _MAX_NAMES} more" if len(unused) > _MAX_NAMES else ""
        yield Advice(
            field="spec.training.columns",
            text=f"leave out {names}, and steps on nothing else: the model does not use them, no "
            f"row is chosen by them, and they are {percent(share)} of the bytes that are decoded",
        )
        return
    widest = found.columns[0]
    if found.data_counts and widest.is_trained_on is None and widest.bytes_ratio > _LARGE_RATIO:
        yield Advice(
            field="spec.training.columns",
            text=f"{widest.name} is {percent(widest.bytes_ratio)} of the bytes that are decoded; "
            "leave it out, or truncate it, if the model does without",
        )


def _order(found: Findings) -> Iterator[Advice]:
    """A step that drops rows, put before a costly one that it does not depend on."""
    costs = found.steps[1:-1]
    steps = found.plan.training.steps
    best: tuple[float, int, int] | None = None
    for late in range(1, len(steps)):
        cost = costs[late]
        if cost.rows_in == 0 or cost.rows_out >= cost.rows_in:
            continue
        early = _earliest(steps, late)
        dropped = 1 - cost.rows_out / cost.rows_in
        saved = dropped * sum(step.share for step in costs[early:late])
        if saved > max(_WORTH_RATIO, best[0] if best else 0.0):
            best = (saved, late, early)
    if best is None or not found.data_counts:
        return
    saved, late, early = best
    kept = costs[late].rows_out / costs[late].rows_in
    yield Advice(
        field=steps[late].path,
        text=f"{steps[late].kind} keeps {percent(kept)} of its rows; put before "
        f"{steps[early].path} ({steps[early].kind}), on which it does not depend, it would save "
        f"about {percent(saved)} of a reader's time",
    )


def _earliest(steps: Sequence[PlannedStep], late: int) -> int:
    """The first place that a step can move to and do the same."""
    early = late
    while early and _may_pass(steps[late].transform, steps[early - 1]):
        early -= 1
    return early


def _may_pass(moved: Transform, step: PlannedStep) -> bool:
    """Return whether a step works row by row and the two steps are independent."""
    passed = step.transform
    return (
        step.path.startswith("spec.pipeline[")
        and passed.is_elementwise
        and not passed.changes_rows
        and moved.inputs <= set(passed.output_schema.names)
        and passed.outputs.isdisjoint(moved.inputs | moved.outputs)
        and passed.inputs.isdisjoint(moved.outputs)
    )


def _maps(found: Findings) -> Iterator[Advice]:
    for step, cost in zip(found.plan.training.steps, found.steps[1:-1], strict=True):
        if step.transform.calls_user_code and cost.share > _LARGE_RATIO and found.data_counts:
            yield Advice(
                field=step.path,
                text=f"the function takes {percent(cost.share)} of a reader's time, "
                f"{cost.microseconds_per_row.median:.3g} µs per row; work on whole columns (format "
                "arrow or numpy), or built-in steps, cost less",
            )


def _reading(found: Findings) -> Iterator[Advice]:
    """Advise how to make reading cheaper, if it is most of the work."""
    read, stream = found.steps[0], found.plan.training
    if read.share < _LARGE_RATIO or not found.data_counts:
        return
    if found.spec.dataset.request_key and not stream.scan.request_columns:
        yield Advice(
            field="spec.dataset",
            text=f"reading takes {percent(read.share)} of a reader's time and the table is flat; "
            "lastmile convert stores each request's columns once (docs/nested-tables.md)",
        )
    pruning, kept = stream.scan.pruning, _kept_by_filters(found)
    if stream.pushed and pruning.row_groups_read == pruning.row_groups_total and kept < 0.5:
        yield Advice(
            field="spec.dataset",
            text=f"filters keep {percent(kept)} of the rows, but every row group has some of "
            f"them; files sorted or partitioned by the columns of {' and '.join(stream.pushed)} "
            "would leave most unread",
        )


def _kept_by_filters(found: Findings) -> float:
    kept = 1.0
    for step, cost in zip(found.plan.training.steps, found.steps[1:-1], strict=True):
        if step.has_predicate and cost.rows_in:
            kept *= cost.rows_out / cost.rows_in
    return kept


def _batches(found: Findings) -> Iterator[Advice]:
    trainer = found.trainer
    if trainer.fixed_seconds is None:
        return
    share = trainer.fixed_seconds / trainer.step_seconds
    if found.binding.what == "model" and share > _LARGE_RATIO:
        yield Advice(
            field="spec.training.batchSize",
            text=f"a step costs {format_duration(trainer.fixed_seconds)} whatever its size, "
            f"{percent(share)} of one of {trainer.batch_rows:,} samples: larger batches use the "
            "device better (and change the training)",
        )


def _host(found: Findings) -> Iterator[Advice]:
    """Advise on a trainer's own host work, which more data workers do not reduce."""
    trainer = found.trainer
    share = trainer.collate_ratio + trainer.batching_ratio + trainer.transfer_ratio
    if share > _LARGE_RATIO:
        yield Advice(
            field="spec.training.columns",
            text=f"making tensors of batches takes {percent(share)} of a trainer's time, which "
            "data workers do not help: fewer columns, shorter lists (truncate) or narrower types "
            "(cast) do",
        )
