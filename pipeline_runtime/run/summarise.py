"""From what the monitor saw to the summary, the history and the report of a run."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pipeline_runtime import report
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.pieces import StepCount, add_counts
from pipeline_runtime.monitor import HistoryPoint, MonitorState, RankSnapshot
from pipeline_runtime.plan import StreamPlan
from pipeline_runtime.run.driver import Outcome
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.prepare import PreparedRun, RunOptions
from pipeline_runtime.training.position import Checksum

_STAGES = ("compute", "production", "transfer", "batching", "collate", "paused")
_RESUME_DETAIL = {
    "order": "preserveOrder: a resumed run trains on the same remaining batches in the same order",
    "rows": "a resumed run trains on the same remaining rows, each once; their order may differ",
}


@dataclass(slots=True)
class HistoryRates:
    """Turns running totals, as trainers record them, into rates and shares between two points."""

    _previous: dict[str, float] = field(default_factory=dict)
    _seconds: float = 0.0

    def convert(self, point: HistoryPoint) -> dict[str, float]:
        """Metrics of a point as the history names them."""
        if "samples" not in point.metrics:
            return point.metrics
        elapsed = point.seconds - self._seconds
        delta = {n: v - self._previous.get(n, 0.0) for n, v in point.metrics.items()}
        self._previous, self._seconds = point.metrics, point.seconds
        spent = sum(max(0.0, delta[f"seconds_{stage}"]) for stage in _STAGES)
        rates = {
            "step_seconds": point.metrics["step_seconds"],
            "queue_length": point.metrics["queue_length"],
        }
        if elapsed > 0:
            rates["samples_per_second"] = delta["samples"] / elapsed
            rates["rows_per_second"] = max(0.0, delta["rows"]) / elapsed
        if spent > 0:
            rates |= {f"share_{s}": max(0.0, delta[f"seconds_{s}"]) / spent for s in _STAGES}
        return rates


def time_shares(ranks: Iterable[RankSnapshot]) -> dict[str, float]:
    """Shares of the trainers' time by stage, over all ranks; empty if no time was spent."""
    totals = {stage: sum(rank.waited[stage] for rank in ranks) for stage in _STAGES}
    whole = sum(totals.values())
    return {stage: value / whole for stage, value in totals.items()} if whole > 0 else {}


def total_counts(ranks: Iterable[RankSnapshot]) -> tuple[StepCount, ...]:
    """Rows and bytes of every step, over all ranks."""
    counts: tuple[StepCount, ...] = ()
    for rank in ranks:
        counts = add_counts(counts, rank.counts)
    return counts


def step_flows(stream: StreamPlan, counts: Sequence[StepCount]) -> tuple[report.StepFlow, ...]:
    """The funnel: what entered and left every step."""
    flows = []
    for (index, kind, label), count in zip(stream.step_rows, counts, strict=False):
        before = counts[index - 1] if index else count
        flows.append(
            report.StepFlow(
                index=index,
                kind=kind,
                label=label,
                rows_in=before.rows,
                rows_out=count.rows,
                bytes_in=before.num_bytes,
                bytes_out=count.num_bytes,
                seconds=count.seconds,
            )
        )
    return tuple(flows)


def build_summary(
    run: PreparedRun, options: RunOptions, outcome: Outcome, phases: Phases
) -> report.Summary:
    """Build the summary of a run, however it ended."""
    state = outcome.state
    ranks = [state.ranks[rank] for rank in sorted(state.ranks)]
    metadata = run.experiment.metadata
    counts = total_counts(ranks)
    evaluation: tuple[StepCount, ...] = ()
    for rank in ranks:
        evaluation = add_counts(evaluation, rank.evaluation_counts)
    return report.Summary(
        experiment=report.ExperimentName(
            name=metadata.name, namespace=metadata.namespace or "default"
        ),
        run=_run(run, options, outcome, phases),
        seeds=find_seeds(run.experiment),
        versions=versions(),
        machine=machine(),
        dataset=read_size(run.plan.training, counts),
        steps=step_flows(run.plan.training, counts),
        evaluation_steps=step_flows(run.plan.evaluation, evaluation) if run.plan.evaluation else (),
        training=_training(run, state, ranks),
        throughput=_throughput(run, ranks, counts, phases),
        time_shares=report.TimeShares(**time_shares(ranks)),
        checksum=_checksum(ranks),
        order=_order(run),
        checkpoints=report.Checkpoints(
            written=sum(rank.checkpoints for rank in ranks), last=last_checkpoint(run, state)
        ),
        warnings=(*run.plan.warnings, *run.warnings, *state.warnings),
    )


def last_checkpoint(run: PreparedRun, state: MonitorState) -> str | None:
    """The newest checkpoint that a resume would use; a trainer that died may not have told."""
    written = [rank.last_checkpoint for rank in state.ranks.values() if rank.last_checkpoint]
    with contextlib.suppress(OSError, LastmileError):
        headers = run.store.headers()
        return headers[0].uri if headers else None
    return written[-1] if written else (run.resume.uri if run.resume else None)


def _run(run: PreparedRun, options: RunOptions, outcome: Outcome, phases: Phases) -> report.Run:
    resumed, finished = run.resume, datetime.now(UTC)
    started = datetime.fromtimestamp(phases.began, UTC)
    return report.Run(
        run_hash=run.identity.run_hash,
        attempt=run.identity.attempt,
        started_at=started,
        finished_at=finished,
        seconds=(finished - started).total_seconds(),
        phases=_list_phases(phases),
        outcome=outcome.kind,
        resumed_from=report.ResumedFrom(
            checkpoint=resumed.uri, epoch=resumed.epoch, step=resumed.step
        )
        if resumed
        else None,
        error=outcome.error,
        address=options.address,
    )


def time_report(summary: report.Summary, phases: Phases) -> report.Summary:
    """Return a summary whose duration includes the report, which is written now."""
    phases.end()
    finished = datetime.now(UTC)
    duration = {
        "finished_at": finished,
        "seconds": (finished - summary.run.started_at).total_seconds(),
        "phases": _list_phases(phases),
    }
    return summary.model_copy(update={"run": summary.run.model_copy(update=duration)})


def _list_phases(phases: Phases) -> tuple[report.Phase, ...]:
    return tuple(report.Phase(name=name, seconds=took) for name, took in phases.seconds.items())


def find_seeds(experiment: DatasetExperiment) -> report.Seeds:
    """The seeds of the training, if there is one, and of every step that draws."""
    spec = experiment.spec
    seeded = {
        f"pipeline[{index}].{step.kind}": step.config.find_seed()
        for index, step in enumerate(spec.pipeline)
    }
    return report.Seeds(
        training=None if spec.output else spec.training.seed,
        steps={name: seed for name, seed in seeded.items() if seed is not None},
    )


def versions() -> report.Versions:
    """Versions of what the run used."""

    def of(name: str) -> str:
        return importlib.metadata.version(name)

    return report.Versions(
        lastmile=of("lastmile"),
        python=platform.python_version(),
        ray=of("ray"),
        torch=of("torch"),
        pyarrow=of("pyarrow"),
        numpy=of("numpy"),
    )


def machine() -> report.Machine:
    """Return what the run had."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return machine_without_gpus().model_copy(update={"gpus": tuple(gpus)})


def machine_without_gpus() -> report.Machine:
    """Return what a run had that needs neither GPUs nor torch."""
    return report.Machine(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def read_size(stream: StreamPlan, counts: Sequence[StepCount]) -> report.DatasetRead:
    """What there was to read, and what was read."""
    pruning = stream.scan.pruning
    return report.DatasetRead(
        files=pruning.files_total,
        files_read=pruning.files_read,
        row_groups=pruning.row_groups_total,
        row_groups_read=pruning.row_groups_read,
        rows=pruning.rows_total,
        rows_read=pruning.rows_read,
        bytes_read=counts[0].num_bytes if counts else 0,
        pushed=stream.pushed,
    )


def _training(
    run: PreparedRun, state: MonitorState, ranks: Sequence[RankSnapshot]
) -> report.Training:
    spec = run.experiment.spec.training
    evaluations = [
        report.Evaluation(epoch=e.epoch, step=e.step, metrics=e.metrics) for e in state.evaluations
    ]
    return report.Training(
        entrypoint=spec.entrypoint if spec.script is None else "",
        script=shlex.join([spec.script, *spec.args]) if spec.script else "",
        epochs=spec.epochs,
        steps=max((rank.step for rank in ranks), default=0),
        samples=sum(rank.samples for rank in ranks),
        batch_size=spec.batch_size,
        world_size=run.world_size,
        device=ranks[0].device if ranks else "",
        precision=spec.precision,
        metrics=ranks[0].metrics if ranks else {},
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
    value = merged.to_json()
    return report.Checksum(
        rows=value["rows"], sum=value["sum"], sum_of_squares=value["sumOfSquares"]
    )


def _order(run: PreparedRun) -> report.Order:
    level = "order" if run.plan.preserve_order else "rows"
    return report.Order(
        preserve_order=run.plan.preserve_order,
        resume=level,
        detail=_RESUME_DETAIL[level],
    )
