"""The summary of a run: what all runs have, and the sections of the consumer."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime

from pipeline_runtime import report
from pipeline_runtime.config import DatasetExperiment, seed_group
from pipeline_runtime.config.texts.distribution import DISTRIBUTION
from pipeline_runtime.feed.chunk import StepCount
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.plan import StreamPlan
from pipeline_runtime.run.consumers import Control, Outcome, Results, RunBasis
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.reported_inference import ReportedInference


def build_summary(
    basis: RunBasis, results: Results, outcome: Outcome, control: Control
) -> report.Summary:
    """Build the summary of a run, however it ended."""
    metadata, stream = basis.experiment.metadata, basis.plan.main
    started, finished = datetime.fromtimestamp(control.phases.began, UTC), datetime.now(UTC)
    common = {
        "experiment": report.ExperimentName(
            name=metadata.name, namespace=metadata.namespace or "default"
        ),
        "run": report.Run(
            run_hash=basis.run_hash,
            attempt=basis.attempt,
            started_at=started,
            finished_at=finished,
            seconds=(finished - started).total_seconds(),
            phases=_list_phases(control.phases),
            outcome=outcome.kind,
            resumed_from=basis.resumed_from,
            error=outcome.error,
            artifacts_uri=basis.run_location.full_uri,
            seed_group=seed_group(basis.experiment),
            code_digest=basis.code_digest,
            address=control.options.address,
        ),
        "seeds": find_seeds(basis.experiment),
        "versions": versions(),
        "machine": machine_without_gpus(),
        "dataset": read_size(stream, results.counts),
        "snapshots": basis.plan.pins,
        "models": basis.plan.models,
        "materialization": control.options.tables.materialization,
        "inference": list_groups(control.options.inference),
        "steps": step_flows(stream, results.counts),
        "warnings": (*basis.plan.warnings, *basis.warnings, *results.warnings),
    }
    return report.Summary(**(common | dict(results.sections)))


def list_groups(inference: ReportedInference) -> tuple[report.InferenceGroup, ...]:
    """Return the work of the inference workers."""
    return tuple(
        report.InferenceGroup(
            group=each.group,
            rows=each.rows,
            batches=each.batches,
            busy_seconds=each.busy_seconds,
            ready_seconds=each.ready_seconds,
        )
        for each in inference.list_groups()
    )


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
        training=None if spec.consumer else spec.training.seed,
        steps={name: seed for name, seed in seeded.items() if seed is not None},
    )


def versions() -> report.Versions:
    """Versions of what the run used."""

    def of(name: str) -> str:
        return importlib.metadata.version(name)

    return report.Versions(
        lastmile=of(DISTRIBUTION),
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
    """Return the size of the dataset, and of the part that was read."""
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


def build_checksum(checksum: Checksum) -> report.Checksum:
    """Return a checksum of rows as a summary has it."""
    value = checksum.to_json()
    return report.Checksum(
        rows=value["rows"], sum=value["sum"], sum_of_squares=value["sumOfSquares"]
    )
