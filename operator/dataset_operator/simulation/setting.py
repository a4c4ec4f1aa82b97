"""Settings of a simulated run. Rates are those of all ranks together, which move in lockstep."""

from __future__ import annotations

from dataclasses import dataclass, field

# Waits of a step that more workers do not shorten, in the order of `ClusterState.waits`.
STAGES = ("transfer", "collate", "ordering", "rankSkew")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Costs and waits that apply from one row of the run on.

    Attributes:
        from_row: the first row.
        step_seconds: mean compute of a step.
        row_seconds: mean work of one worker per delivered row.
        waits: seconds per step that trainers wait for other stages, by stage.
    """

    from_row: float = 0.0
    step_seconds: float = 0.5
    row_seconds: float = 1e-3
    waits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A share of the workers that is lost at one time: a spot reclaim."""

    at: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run and its cluster.

    Attributes:
        rows: rows of the whole run after filters; the run ends with the last.
        batch_rows: rows that all ranks take in one step.
        is_unbounded: True if the workers store the rows themselves, so that no trainer bounds their
            number; a step is then a stored chunk, and takes no time.
        unit_rows: rows that a worker makes at a time.
        credit_units: the most units that are ready for the trainers.
        noise: coefficient of variation of a step's duration and of a unit's cost.
        read_share: share of a busy worker's time spent reading; a storage at its limit adds to it.
        storage_rows_per_second: limit of all readers together.
        tail: shape of Pareto-distributed unit costs, above 1; None: no heavy tail.
        is_ordered: True if units reach the trainers in the order in which they were leased.
        slow_share, slow_speed: share of slow workers, and their relative speed.
        warm_seconds, warm_speed: duration and relative speed of a worker's warm-up.
        epoch_steps, pause_seconds: a pause (evaluation, checkpoint) after so many steps; 0: none.
        natural_utilization: utilisation of a GPU that computes.
        start_seconds: L, the median time from a pod's request to its first batch.
        crash_per_minute: probability that a worker is lost.
        schedulable: pods that the cluster can place at once.
        outages: (from, to) without metrics.
        restarts: times at which the process of the policy restarts.
        gpu: the GPU series: "measured", "zero" or "absent".
        first_workers: workers at the start.
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
