"""Computes from measurements how many data workers the trainers need, and what the bottleneck is.

The number equals that of the autoscaler: the demand divided by the rate of a busy reader, with the
same headroom, in whole data workers. The functions are pure.
"""

from __future__ import annotations

import math

from pipeline_runtime.config import HEADROOM, ExperimentSpec
from pipeline_runtime.formatting import format_percent, format_short
from pipeline_runtime.profiling.document import (
    Binding,
    Bottleneck,
    Measured,
    Need,
    Reading,
    StepCost,
    Trainer,
)


def plan_need(spec: ExperimentSpec, intake: Measured, reader: Measured) -> Need:
    """Compute the data workers for all trainers of a spec.

    Args:
        intake: samples per second of one trainer that never waits for data.
        reader: samples per second of one reader that never waits for the trainer.
    """
    ranks, workers = spec.trainers.world_size, spec.data_workers
    cpus = workers.num_readers

    def count(demand: float, rate: float) -> int:
        # Round first: in floating point, 3,000 · 1.075 ÷ 1,075 is slightly more than 3.
        return max(1, math.ceil(round(ranks * demand * (1 + HEADROOM) / (rate * cpus), 6)))

    def waiting(replicas: int) -> float:
        return max(0.0, 1 - replicas * cpus * reader.median / (ranks * intake.median))

    return Need(
        ranks=ranks,
        demand=ranks * intake.median,
        reader=reader,
        readers_per_worker=cpus,
        headroom=HEADROOM,
        workers=count(intake.median, reader.median),
        workers_low=count(intake.low, reader.high),
        workers_high=count(intake.high, reader.low),
        min_workers=workers.min_replicas,
        max_workers=workers.max_replicas,
        waiting_at_min=waiting(workers.min_replicas),
        waiting_at_max=waiting(workers.max_replicas),
    )


def find_binding(
    need: Need, trainer: Trainer, reading: Reading, steps: tuple[StepCost, ...]
) -> Binding:
    """Find the bottleneck of a run that has its maximum of data workers."""
    supply = need.supply(need.max_workers)
    if supply < need.demand:
        return _bind_data(need, reading, steps, supply)
    return _bind_trainer(need, trainer)


def _bind_data(need: Need, reading: Reading, steps: tuple[StepCost, ...], supply: float) -> Binding:
    costliest = max(steps, key=lambda step: step.share)
    waiting = steps[0].share * reading.waiting_ratio
    of = f"{need.max_workers} data workers make {format_short(supply)} of the "
    of += f"{format_short(need.demand)} samples per second that the trainers take"
    if waiting > 0.5:
        why = f"; a reader waits {format_percent(waiting)} of its time for the storage"
        return Binding(what="storage", samples_per_second=supply, reason=of + why)
    why = f"; {costliest.kind} takes {format_percent(costliest.share)} of a reader's time"
    return Binding(what="dataWorkers", samples_per_second=supply, reason=of + why)


def _bind_trainer(need: Need, trainer: Trainer) -> Binding:
    parts: dict[Bottleneck, float] = {
        "model": trainer.model_ratio,
        "collate": trainer.collate_ratio + trainer.batching_ratio,
        "transfer": trainer.transfer_ratio,
    }
    what = max(parts, key=lambda part: parts[part])
    words = {
        "model": f"the model itself on {trainer.device}",
        "collate": "cutting batches and turning them into tensors",
        "transfer": f"copying batches to {trainer.device}",
    }
    workers = "1 data worker makes" if need.workers == 1 else f"{need.workers} data workers make"
    reason = (
        f"the trainers take {format_short(need.demand)} samples per second, {workers} "
        f"{format_short(need.supply(need.workers))}; {format_percent(parts[what])} of a trainer's "
        f"time is {words[what]}"
    )
    return Binding(what=what, samples_per_second=need.demand, reason=reason)
