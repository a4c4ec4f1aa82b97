"""Settings of a simulated run. Rates are of the whole run: ranks move in lockstep, as one."""

from __future__ import annotations

from dataclasses import dataclass, field

# Waits of a step that no worker cures, in the order of `Phase.waits`.
STAGES = ("transfer", "collate", "ordering", "rankSkew")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Costs and waits that apply from a row on.

    Attributes:
        from_row: of the run.
        step_seconds: of compute, mean.
        row_seconds: of one busy worker for one row that is delivered, mean.
        waits: seconds of each step that trainers wait for other stages, by stage.
    """

    from_row: float = 0.0
    step_seconds: float = 0.5
    row_seconds: float = 1e-3
    waits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Workers lost at once: a spot reclaim."""

    at: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run and the cluster that it is on.

    Attributes:
        rows: of the whole run, after filters; it ends with the last.
        batch_rows: that all ranks take in one step.
        is_unbounded: the workers store the rows themselves, and no trainer bounds their number; a
            step is then a chunk that was stored, and takes no time.
        unit_rows: that a worker makes at a time.
        credit_units: made ahead of the trainers at most.
        noise: coefficient of variation of a step's time and of a unit's cost.
        read_share: of a busy worker's time; storage that is at its limit adds to it.
        storage_rows_per_second: that all workers together can read.
        tail: shape of Pareto-distributed unit costs, above 1; None: no heavy tail.
        is_ordered: units reach the trainers in the order in which they were leased.
        slow_share, slow_speed: of the workers, and how fast these are.
        warm_seconds, warm_speed: how long and how fast a worker works at first.
        epoch_steps, pause_seconds: a pause (evaluation, checkpoint) after so many steps; 0: none.
        natural_utilization: of a GPU that computes.
        start_seconds: L, from a pod's request to its first batch, median.
        crash_per_minute: probability that a worker dies.
        schedulable: pods that the cluster can place at once.
        outages: (from, to) in which no metrics are read.
        gpu: what the GPU series says: as it is, 0, or nothing.
    """

    rows: float
    phases: tuple[Phase, ...] = (Phase(),)
    batch_rows: float = 4096.0
    is_unbounded: bool = False
    unit_rows: float = 2048.0
    credit_units: int = 32
    noise: float = 0.1
    read_share: float = 0.4
    storage_rows_per_second: float = float("inf")
    tail: float | None = None
    is_ordered: bool = False
    slow_share: float = 0.0
    slow_speed: float = 0.5
    warm_seconds: float = 10.0
    warm_speed: float = 0.5
    epoch_steps: int = 0
    pause_seconds: float = 0.0
    natural_utilization: float = 0.97
    start_seconds: float = 30.0
    crash_per_minute: float = 0.0
    schedulable: int = 1_000_000
    losses: tuple[Loss, ...] = ()
    outages: tuple[tuple[float, float], ...] = ()
    restarts: tuple[float, ...] = ()
    gpu: str = "measured"
    min_workers: int = 2
    max_workers: int = 64
    first_workers: int = 2
