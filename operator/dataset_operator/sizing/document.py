"""The models of `simulation.json`, described in docs/simulate.md."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_runtime.config import SpecModel

SIMULATION_VERSION = 1
SIMULATION_FILE = "simulation.json"

PolicyName = Literal["autoscaler", "minReplicas", "advised", "maxReplicas"]


class Measured(SpecModel):
    """Origin of the rates."""

    experiment: str
    measured_at: str
    device: str


class Assumptions(SpecModel):
    """Assumptions beside the profile."""

    hours: float = Field(description="Of training, if rows were always ready.")
    start_seconds: float
    gpu_speed: float
    row_cost: float
    noise_ratio: float = Field(description="Coefficient of variation of a step and of a chunk.")
    gpu_hour_price: float
    data_worker_hour_price: float
    is_priced: bool = Field(description="True if the user gave the prices.")
    seed: int
    times: int = Field(description="Simulations of each policy, whose means the figures are.")


class Need(SpecModel):
    """Required data workers, with which the trainers do not wait."""

    demand: float = Field(description="Samples per second that all trainers take.")
    worker_rate: float = Field(description="Samples per second of one busy data worker.")
    workers: float = Field(description="demand ÷ worker rate: required if all are busy.")
    workers_low: float = Field(description="The same by the spread of the measurements.")
    workers_high: float
    headroom: float
    replicas: int = Field(description="⌈workers · (1 + headroom)⌉.")
    min_replicas: int
    max_replicas: int
    gpus: int = Field(description="Of all trainers; trainers, where they have none.")
    has_gpus: bool


class WholeRun(SpecModel):
    """Totals of all epochs; beyond the simulated part, at the rates of its second half."""

    hours: float
    worker_hours: float
    gpu_hours: float
    cost: float


class Outcome(SpecModel):
    """Outcome of a policy; means over the simulations."""

    name: PolicyName
    replicas: int | None = Field(description="Of a constant; null: the autoscaler's.")
    workers_mean: float
    workers_settled: int | None = Field(description="Most often in the last third; null: varied.")
    workers_max: int
    settled_seconds: float | None = Field(description="Until it stays within one of that.")
    idle_ratio: float = Field(description="Share of the trainers' time without rows.")
    settled_idle_ratio: float = Field(description="The same in the last third.")
    samples: float = Field(description="That were trained on.")
    is_complete: bool = Field(description="False: stopped after eight times the hours.")
    hours: float
    worker_hours: float
    gpu_hours: float
    cost: float
    cost_per_million: float | None = Field(description="Of samples; null: none was trained on.")
    whole_run: WholeRun | None = Field(description="Null: no sample was trained on.")


class Curve(SpecModel):
    """The first simulation of a policy over time."""

    name: PolicyName
    seconds: tuple[float, ...]
    asked: tuple[int, ...] = Field(description="Requested data workers.")
    ready: tuple[int, ...] = Field(description="Ready data workers.")
    idle_ratio: tuple[float, ...] = Field(description="Since the entry before.")


class Advice(SpecModel):
    """A worthwhile change of a field."""

    field: str
    text: str


class Simulation(SpecModel):
    """All of `simulation.json`."""

    version: Literal[1] = 1
    experiment: str
    headline: str = Field(description="The result in a sentence.")
    advice: tuple[Advice, ...] = ()
    warnings: tuple[str, ...] = ()
    need: Need
    epochs: int
    samples: int = Field(description="Of all epochs.")
    policies: tuple[Outcome, ...]
    profile: Measured
    assumed: Assumptions
    curves: tuple[Curve, ...]

    def outcome(self, name: PolicyName) -> Outcome:
        """Return the outcome of a policy."""
        return next(outcome for outcome in self.policies if outcome.name == name)
