"""Builds the run to simulate from the spec, the measured profile, and the user's assumptions.

Rates are for all ranks together, in samples (rows that reach the model) per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dataset_operator.autoscaling import Rules
from dataset_operator.plan.data_workers.scaling import build_rules
from dataset_operator.simulation.setting import Phase, Setting
from dataset_operator.sizing.measured import Profile, Trainer
from pipeline_runtime.config import HEADROOM, ExperimentSpec

# A simulated step combines real steps to at least this duration, which does not change the values
# that are sampled every 15 s.
_STEP_SECONDS = 0.05
# A simulated chunk takes one worker second, but is at most half a second of demand. It is larger if
# chunks would otherwise come so fast that a simulation takes minutes.
_CHUNK_SECONDS = 1.0
_MAX_CHUNK_SECONDS_OF_DEMAND = 0.5
_MAX_CHUNKS_PER_SECOND = 100.0
# With `preserveOrder` a chunk counts once a worker starts it; two for each worker, as in the
# runtime.
_CHUNKS_PER_WORKER = 2
_CREDIT_CHUNKS = 32
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Assumptions about values that no profile contains.

    Attributes:
        hours: of training without any wait for rows.
        start_seconds: from a pod's request to its first batch.
        gpu_speed: speed of the model's step, as a multiple of the measured speed.
        row_cost: work per row, as a multiple of the measured work.
        gpu_hour_price, worker_hour_price: of one GPU, and of one data worker.
        is_priced: True if the user gave the prices.
    """

    hours: float
    start_seconds: float
    gpu_speed: float
    row_cost: float
    gpu_hour_price: float
    worker_hour_price: float
    is_priced: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run to simulate.

    Attributes:
        demand: rows per second of all trainers while they never wait.
        worker_rate: rows per second of one busy data worker.
        required, required_low, required_high: data workers, if all are busy, with bounds from the
            spread of the profile.
        advised: the constant number of workers that the profile recommends.
        gpus: of all trainers; without GPUs, the number of trainers.
        samples: of all epochs.
        setting: of the simulator; it begins with minReplicas.
    """

    demand: float
    worker_rate: float
    required: float
    required_low: float
    required_high: float
    advised: int
    gpus: int
    has_gpus: bool
    epochs: int
    samples: int
    rules: Rules
    setting: Setting

    @property
    def wanted(self) -> int:
        """The number that the autoscaling policy requests once it knows all rates."""
        return self.count(self.required)

    def count(self, required: float) -> int:
        """Return the required data workers with headroom, rounded up."""
        return max(1, math.ceil(round(required * (1.0 + HEADROOM), 6)))


def build_run(spec: ExperimentSpec, profile: Profile, assumed: Assumed) -> Run:
    """Build the run of a spec whose work was measured."""
    trainer, reader = profile.trainer, profile.need.reader
    readers, ranks = spec.data_workers.num_readers, spec.trainers.world_size
    faster = _speed_up(trainer, assumed.gpu_speed)
    demand = ranks * trainer.intake.median * faster
    worker_rate = readers * reader.median / assumed.row_cost
    required = demand / worker_rate
    rules = build_rules(spec)
    has_gpus = spec.trainers.gpus_per_replica > 0
    epoch = profile.sample.rows_left * profile.sample.samples / profile.sample.rows
    slowest, fastest = trainer.intake.low / reader.high, trainer.intake.high / reader.low
    middle = trainer.intake.median / reader.median
    return Run(
        demand=demand,
        worker_rate=worker_rate,
        required=required,
        required_low=required * min(1.0, slowest / middle),
        required_high=required * max(1.0, fastest / middle),
        advised=max(1, math.ceil(round(required * (1.0 + profile.need.headroom), 6))),
        gpus=ranks,
        has_gpus=has_gpus,
        epochs=spec.training.epochs,
        samples=round(spec.training.epochs * epoch),
        rules=rules,
        setting=_build_setting(profile, assumed, rules, demand, worker_rate, faster),
    )


def _speed_up(trainer: Trainer, gpu_speed: float) -> float:
    """Return the speed-up of a trainer if only the model's share of its time shrinks."""
    return 1.0 / (1.0 - min(1.0, trainer.model_ratio) * (1.0 - 1.0 / gpu_speed))


def _build_setting(
    profile: Profile,
    assumed: Assumed,
    rules: Rules,
    demand: float,
    worker_rate: float,
    faster: float,
) -> Setting:
    trainer = profile.trainer
    required = demand / worker_rate
    step = trainer.batch_rows / (trainer.intake.median * faster)
    times = max(1, math.ceil(_STEP_SECONDS / step))
    step *= times
    collate = faster * (trainer.collate_ratio + trainer.batching_ratio)
    transfer = faster * trainer.transfer_ratio
    # Leave a share to the model, however the shares were rounded.
    elsewhere = min(collate + transfer, 0.99)
    scale = elsewhere / (collate + transfer) if elsewhere else 0.0
    phase = Phase(
        step_seconds=step * (1.0 - elsewhere),
        row_seconds=1.0 / worker_rate,
        waits={"collate": step * collate * scale, "transfer": step * transfer * scale},
    )
    chunk = min(_CHUNK_SECONDS, _MAX_CHUNK_SECONDS_OF_DEMAND * required)
    chunk = max(chunk, required / _MAX_CHUNKS_PER_SECOND)
    is_read = sum(part.share for part in profile.steps if part.kind == "read")
    credit = _CHUNKS_PER_WORKER * rules.max_workers if rules.is_ordered else 0
    return Setting(
        rows=assumed.hours * SECONDS_PER_HOUR * demand,
        phases=(phase,),
        batch_rows=step * demand,
        unit_rows=chunk * worker_rate,
        credit_units=max(_CREDIT_CHUNKS, credit),
        read_share=min(1.0, is_read),
        is_ordered=rules.is_ordered,
        start_seconds=assumed.start_seconds,
        min_workers=rules.min_workers,
        max_workers=rules.max_workers,
        first_workers=rules.min_workers,
    )
