"""A profile that was never measured, the same each time, for tests of everything that shows one."""

from __future__ import annotations

from pipeline_runtime.profiling.document import (
    Advice,
    Binding,
    Column,
    Hop,
    Measured,
    Need,
    Profile,
    Reading,
    Sample,
    StepCost,
    Trainer,
)
from pipeline_runtime.report.files.summary import ExperimentName
from pipeline_runtime.report.testing import build_sample_summary


def _measured(median: float) -> Measured:
    return Measured(median=median, low=0.9 * median, high=1.2 * median, times=5)


def _step(kind: str, label: str, share: float, rows_out: int, microseconds: float) -> StepCost:
    return StepCost(
        kind=kind,
        path="",
        label=label,
        rows_in=1000,
        rows_out=rows_out,
        microseconds_per_row=_measured(microseconds),
        share=share,
        bytes_per_row=1490,
    )


def build_sample_profile() -> Profile:
    """Twelve data workers would do where there may be eight."""
    made_with = build_sample_summary()
    return Profile(
        experiment=ExperimentName(name="ranking"),
        measured_at=made_with.run.started_at,
        seconds=11.6,
        versions=made_with.versions,
        machine=made_with.machine,
        sample=Sample(
            row_groups=2,
            row_groups_left=56,
            rows=32_768,
            rows_left=875_000,
            samples=15_390,
            times=9,
        ),
        trainer=Trainer(
            device="NVIDIA H200",
            entrypoint="team:loop",
            batch_rows=4096,
            batch_bytes_per_sample=762,
            batches=64,
            roofline=_measured(1_300_000),
            intake=_measured(1_200_000),
            step_seconds=0.00315,
            fixed_seconds=0.0011,
            model_ratio=0.88,
            batching_ratio=0.02,
            collate_ratio=0.06,
            transfer_ratio=0.04,
        ),
        reading=Reading(
            columns=46,
            rows_per_second=_measured(303_000),
            waiting_ratio=0.02,
            stored_bytes_per_row=101,
            decoded_bytes_per_row=1490,
        ),
        steps=(
            _step("read", "impressions/", 0.655, 1000, 4.15),
            _step("filter", "country = 'US'", 0.18, 250, 0.0073),
            _step("handOver", "chunks packed to be sent", 0.165, 250, 1.43),
        ),
        columns=(Column(name="user_sequence", bytes_ratio=0.62, is_trained_on=None),),
        hops=(
            Hop(name="storage", bytes_per_sample=215, bytes_per_second=2.58e8),
            Hop(name="decoded", bytes_per_sample=3180, bytes_per_second=3.816e9),
        ),
        need=Need(
            ranks=1,
            demand=1_200_000,
            reader=_measured(28_000),
            readers_per_worker=4,
            headroom=0.1,
            workers=12,
            workers_low=9,
            workers_high=15,
            min_workers=1,
            max_workers=8,
            waiting_at_min=0.9067,
            waiting_at_max=0.2533,
        ),
        binding=Binding(
            what="dataWorkers", samples_per_second=896_000, reason="8 data workers make 896 k"
        ),
        advice=(Advice(field="spec.dataWorkers.maxReplicas", text="12 would feed the trainers"),),
        warnings=("the machine was busy",),
    )
