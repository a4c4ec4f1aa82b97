"""Samples of a run whose rates a story sets, period by period."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dataset_operator.autoscaling import (
    Decision,
    Memory,
    Pods,
    Rules,
    Sample,
    TrainerCounters,
    WorkerCounters,
    decide,
)

PERIOD = 15.0
NOTHING_TAKEN = TrainerCounters(rows=0, steps=0, loop_seconds=0, production_seconds=0)
NOTHING_MADE = WorkerCounters(
    rows=0, read_seconds=0, compute_seconds=0, blocked_seconds=0, idle_seconds=0
)


@dataclass
class Story:
    """A run whose trainers would take `demand` rows per second; a worker makes `rate` of them.

    Requested workers are ready at once, unless `start_seconds` is above 0.
    """

    demand: float = 1000.0
    rate: float = 100.0
    workers: int = 4
    step_rows: float = 100.0
    read_share: float = 0.2
    inference_share: float = 0.0  # of a reader's time for rows: waits for inference workers
    start_seconds: float = 0.0
    storage: float = float("inf")
    waits: dict[str, float] = field(default_factory=dict)  # share of the loop's time, by stage
    held_share: float | None = None  # of readers' time; None: what is left of it
    gpu: float | None = None
    rules: Rules = field(default_factory=lambda: Rules(min_workers=1, max_workers=50))
    is_known: bool = True
    stuck: int = 0
    attempt: int = 1
    now: float = 0.0
    desired: int = 0
    memory: Memory = field(default_factory=lambda: Memory(since=0.0))
    trainer: TrainerCounters = NOTHING_TAKEN
    made: WorkerCounters = NOTHING_MADE
    pending: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desired = self.desired or self.workers

    def run(self, seconds: float) -> list[Decision]:
        """Return the decisions of this time, each applied."""
        return list(self.steps(seconds))

    def steps(self, seconds: float) -> Iterator[Decision]:
        for _ in range(round(seconds / PERIOD)):
            self._pass()
            decision, self.memory = decide(self.memory, self.sample(), self.rules)
            self._ask(decision.desired)
            yield decision

    def sample(self) -> Sample:
        """Return the sample that a source would report now."""
        return Sample(
            at=self.now,
            attempt=self.attempt,
            desired=self.desired,
            pods=Pods(ready=self.workers, stuck=self.stuck, start_seconds=self.start_seconds),
            trainer=self.trainer if self.is_known else None,
            workers=self.made if self.is_known else None,
            gpu_utilization=self.gpu,
        )

    def restart(self) -> None:
        """Start another attempt, whose counters are 0."""
        self.attempt += 1
        self.trainer, self.made = NOTHING_TAKEN, NOTHING_MADE

    def _pass(self) -> None:
        self.now += PERIOD
        self.workers += sum(at <= self.now for at in self.pending)
        self.pending = [at for at in self.pending if at > self.now]
        supply = min(self.workers * self.rate, self.storage)
        rows = min(self.demand, supply) * PERIOD
        production = PERIOD * (1.0 - min(1.0, supply / self.demand))
        busy = rows / min(self.rate, self.storage / max(self.workers, 1))
        spare = self.workers * PERIOD - busy
        if self.held_share is not None:
            spare = busy * self.held_share / (1.0 - self.held_share)
        other = PERIOD - production
        self.trainer = TrainerCounters(
            rows=self.trainer.rows + rows,
            steps=self.trainer.steps + rows / self.step_rows,
            loop_seconds=self.trainer.loop_seconds + PERIOD,
            production_seconds=self.trainer.production_seconds + production,
            waits={
                stage: self.trainer.waits.get(stage, 0.0) + share * other
                for stage, share in self.waits.items()
            },
        )
        self.made = replace(
            self.made,
            rows=self.made.rows + rows,
            read_seconds=self.made.read_seconds + busy * self.read_share,
            compute_seconds=self.made.compute_seconds
            + busy * (1.0 - self.read_share - self.inference_share),
            inference_seconds=self.made.inference_seconds + busy * self.inference_share,
            blocked_seconds=self.made.blocked_seconds + max(0.0, spare),
        )

    def _ask(self, desired: int) -> None:
        there = self.workers + len(self.pending)
        if desired > there:
            self.pending += [self.now + self.start_seconds] * (desired - there)
        elif desired < there:
            gone = there - desired
            kept = max(0, len(self.pending) - gone)
            gone -= len(self.pending) - kept
            self.pending = self.pending[:kept]
            self.workers -= gone
        self.desired = desired
