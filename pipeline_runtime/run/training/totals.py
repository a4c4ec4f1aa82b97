"""Totals of the trainers' reports, as sections of the summary."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline_runtime import report
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.chunk import StepCount, add_counts
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.monitor import MonitorState, RankSnapshot
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.summarise import build_checksum, machine, step_flows
from pipeline_runtime.run.training.prepare import PreparedRun
from pipeline_runtime.training.recorder import STAGES, Past

_RESUME_DETAIL = {
    "order": "preserveOrder: a resumed run trains on the same remaining batches in the same order",
    "rows": "without preserveOrder, the order of batches varies: equal runs differ in their "
    "results, and a resumed run trains on the same remaining rows, each once, in another order",
}


def time_shares(ranks: Iterable[RankSnapshot]) -> dict[str, float]:
    """Shares of the trainers' time by stage, over all ranks; empty if no time was spent."""
    totals = {stage: sum(rank.waited[stage] for rank in ranks) for stage in STAGES}
    whole = sum(totals.values())
    return {stage: value / whole for stage, value in totals.items()} if whole > 0 else {}


def total_counts(ranks: Iterable[RankSnapshot]) -> tuple[StepCount, ...]:
    """Rows and bytes of every step, over all ranks."""
    counts: tuple[StepCount, ...] = ()
    for rank in ranks:
        counts = add_counts(counts, rank.counts)
    return counts


def build_sections(
    run: PreparedRun,
    state: MonitorState,
    phases: Phases,
    last_checkpoint: str | None,
    past: Past,
) -> dict[str, Any]:
    """Return the fields of the summary that only a training has, by name."""
    ranks = [state.ranks[rank] for rank in sorted(state.ranks)]
    evaluation: tuple[StepCount, ...] = ()
    for rank in ranks:
        evaluation = add_counts(evaluation, rank.evaluation_counts)
    return {
        "machine": machine(),
        "evaluation_steps": (
            step_flows(run.plan.evaluation, evaluation) if run.plan.evaluation else ()
        ),
        "training": _training(run, state, ranks, past),
        "throughput": _throughput(run, ranks, total_counts(ranks), phases),
        "time_shares": report.TimeShares(**time_shares(ranks)),
        "checksum": _checksum(ranks),
        "order": _order(run),
        "checkpoints": report.Checkpoints(
            written=sum(rank.checkpoints for rank in ranks), last=last_checkpoint
        ),
    }


def find_last_checkpoint(run: PreparedRun, state: MonitorState) -> str | None:
    """Return the newest checkpoint to resume from; a trainer that died may not have reported it."""
    written = [rank.last_checkpoint for rank in state.ranks.values() if rank.last_checkpoint]
    with contextlib.suppress(OSError, LastmileError):
        headers = run.store.headers()
        return headers[0].uri if headers else None
    return written[-1] if written else (run.resume.uri if run.resume else None)


def _training(
    run: PreparedRun, state: MonitorState, ranks: Sequence[RankSnapshot], past: Past
) -> report.Training:
    spec = run.experiment.spec.training
    evaluations = [
        report.Evaluation(epoch=e.epoch, step=e.step, metrics=e.metrics) for e in state.evaluations
    ]
    return report.Training(
        entrypoint=spec.entrypoint if spec.script is None else "",
        model=spec.model or "",
        script=shlex.join([spec.script, *spec.args]) if spec.script else "",
        epochs=spec.epochs,
        steps=max((rank.step for rank in ranks), default=0),
        samples=sum(rank.samples for rank in ranks),
        batch_size=spec.batch_size,
        world_size=run.world_size,
        device=ranks[0].device if ranks else "",
        precision=spec.precision,
        metrics={**past.metrics, **(ranks[0].metrics if ranks else {})},
        evaluations=tuple(evaluations),
        dropped_rows=sum(rank.dropped_rows for rank in ranks),
        padded_rows=sum(rank.padded_rows for rank in ranks),
    )


def _throughput(
    run: PreparedRun,
    ranks: Sequence[RankSnapshot],
    counts: Sequence[StepCount],
    phases: Phases,
) -> report.Throughput:
    """Return the rates of this attempt, over the trainers' own time, without the start."""
    seconds = max((rank.seconds for rank in ranks), default=0.0)
    first = [rank.first_batch_at for rank in ranks if rank.first_batch_at is not None]
    if seconds <= 0:
        return report.Throughput()
    rows = (counts[0].rows if counts else 0) - run.resumed_rows
    return report.Throughput(
        samples_per_second=sum(rank.attempt_samples for rank in ranks) / seconds,
        rows_per_second=max(0, rows) / seconds,
        seconds_to_first_batch=max(0.0, max(first) - phases.began) if first else None,
    )


def _checksum(ranks: Sequence[RankSnapshot]) -> report.Checksum:
    merged = Checksum()
    for rank in ranks:
        merged = merged.merge(Checksum.from_json(rank.checksum))
    return build_checksum(merged)


def _order(run: PreparedRun) -> report.Order:
    level = "order" if run.plan.preserve_order else "rows"
    return report.Order(
        preserve_order=run.plan.preserve_order,
        resume=level,
        detail=_RESUME_DETAIL[level],
    )
