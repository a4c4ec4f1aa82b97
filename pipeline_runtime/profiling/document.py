"""The models of `profile.json`.

A *sample* is a row that reaches the model, a *row* one that is read; a *reader* is one core of a
data worker. Every figure was measured, or is computed from measured ones as its description says.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_runtime.report.files.summary import (
    ExperimentName,
    Machine,
    SummaryModel,
    UtcTime,
    Versions,
)

PROFILE_VERSION = 1
PROFILE_FILE = "profile.json"

Bottleneck = Literal["model", "collate", "transfer", "dataWorkers", "storage"]


class Measured(SummaryModel):
    """A figure that was measured several times."""

    median: float = Field(description="The middle one.")
    low: float = Field(description="The smallest.")
    high: float = Field(description="The largest.")
    times: int = Field(description="How many there were.")


class Sample(SummaryModel):
    """The sample that was measured."""

    row_groups: int = Field(description="Row groups that were read.")
    row_groups_left: int = Field(description="Row groups that a whole epoch reads.")
    rows: int = Field(description="Rows that were read.")
    rows_left: int = Field(description="Rows that a whole epoch reads.")
    samples: int = Field(description="Rows of them that reach the model.")
    times: int = Field(description="How often they were read again to measure.")


class Reading(SummaryModel):
    """The decode floor: the plan's columns, read and decoded by one core and nothing else."""

    columns: int = Field(description="Columns that are read.")
    rows_per_second: Measured = Field(description="Rows per second of one core.")
    waiting_ratio: float = Field(
        description="Share of that time that the core waited for the storage."
    )
    stored_bytes_per_row: float = Field(description="Bytes on the storage, compressed.")
    decoded_bytes_per_row: float = Field(description="Bytes as Arrow.")


class Column(SummaryModel):
    """A column that is read."""

    name: str = Field(description="Its name.")
    bytes_ratio: float = Field(description="Its share of the bytes that are decoded.")
    is_trained_on: bool | None = Field(
        description="Whether the built-in model is made of it, or rows are chosen by it; null: an "
        "entrypoint of yours."
    )


class StepCost(SummaryModel):
    """The read, a step, or the hand-over of what came out, by one core."""

    kind: str = Field(description="read, the step's kind, or handOver.")
    path: str = Field(description="Where the manifest says it.")
    label: str = Field(description="What it does.")
    rows_in: int = Field(description="Rows of the sample that it was given.")
    rows_out: int = Field(description="Rows of the sample that it gave out.")
    microseconds_per_row: Measured = Field(description="Of one core, for each row given to it.")
    share: float = Field(description="Share of a reader's time.")
    bytes_per_row: float = Field(description="Arrow bytes of each row that it gave out.")


class Trainer(SummaryModel):
    """One rank, with its batches already there."""

    device: str = Field(description="Where the model ran.")
    entrypoint: str = Field(description="What was run.")
    batch_rows: int = Field(description="Samples of a batch.")
    batch_bytes_per_sample: float = Field(description="Bytes of a batch's tensors, a sample.")
    batches: int = Field(description="Different frozen batches that were replayed.")
    roofline: Measured = Field(
        description="Samples per second with frozen batches on the device: the model's own limit."
    )
    intake: Measured = Field(
        description="Samples per second from chunks in memory: with batching, collate and transfer."
    )
    step_seconds: float = Field(description="Of one step on a frozen batch.")
    fixed_seconds: float | None = Field(
        description="What a step costs whatever its size: 2·t(B/2) − t(B); null: not measured."
    )
    model_ratio: float = Field(
        description="Share of the intake's time in the entrypoint's own steps."
    )
    batching_ratio: float = Field(description="Share of the intake's time spent on batching.")
    collate_ratio: float = Field(description="The same of Arrow to tensors.")
    transfer_ratio: float = Field(description="The same of copies to the device.")


class Hop(SummaryModel):
    """Bytes on the way from storage to device, for each sample that arrives."""

    name: str = Field(description="Where the bytes are.")
    bytes_per_sample: float = Field(description="Bytes there for each sample at the end.")
    bytes_per_second: float = Field(description="The same at what all trainers take in.")


class Need(SummaryModel):
    """Number of data workers that the trainers need, counted like the autoscaler."""

    ranks: int = Field(description="Trainers: replicas · max(1, gpusPerReplica).")
    demand: float = Field(description="Samples per second that all take in: ranks · intake.")
    reader: Measured = Field(
        description="Samples per second that one busy reader makes: the autoscaler's μ, a core."
    )
    readers_per_worker: int = Field(description="CPUs of a data worker, a reader each.")
    headroom: float = Field(description="h: how much more than the demand is planned for.")
    workers: int = Field(description="⌈demand · (1 + h) ÷ (reader · readers a worker)⌉.")
    workers_low: int = Field(description="The same by the lowest demand and the fastest reader.")
    workers_high: int = Field(description="The same by the highest demand and slowest reader.")
    min_workers: int = Field(description="spec.dataWorkers.minReplicas.")
    max_workers: int = Field(description="spec.dataWorkers.maxReplicas.")
    waiting_at_min: float = Field(
        description="Share of the trainers' time without rows at minReplicas: 1 − supply ÷ demand."
    )
    waiting_at_max: float = Field(description="The same at maxReplicas.")

    def supply(self, workers: int) -> float:
        """Samples per second of so many data workers: workers · readers a worker · reader."""
        return workers * self.readers_per_worker * self.reader.median


class Binding(SummaryModel):
    """The bottleneck of the run, within the manifest's bounds."""

    what: Bottleneck = Field(
        description="model, collate or transfer (the trainer); dataWorkers or storage (the data)."
    )
    samples_per_second: float = Field(description="What comes of it: min(demand, supply at max).")
    reason: str = Field(description="Why, with the numbers.")


class Advice(SummaryModel):
    """A change that is worth trying, what counts most first."""

    field: str = Field(description="Field of the manifest.")
    text: str = Field(description="What to do, and what it is by.")


class Profile(SummaryModel):
    """All of `profile.json`."""

    version: Literal[1] = Field(default=1, description="Version of this file's shape: 1.")
    experiment: ExperimentName = Field(description="Which experiment was looked at.")
    spec_hashes: dict[str, str] = Field(
        default_factory=dict,
        description="Hash of each part of the spec that the figures rest on: dataset, pipeline, "
        "training but for its epochs.",
    )
    measured_at: UtcTime = Field(description="When.")
    seconds: float = Field(description="How long it took.")
    versions: Versions = Field(description="What it ran with.")
    machine: Machine = Field(description="What it ran on.")
    sample: Sample = Field(description="What was measured on.")
    trainer: Trainer = Field(description="The model's side.")
    reading: Reading = Field(description="The storage's side.")
    steps: tuple[StepCost, ...] = Field(description="A reader's work, in order.")
    columns: tuple[Column, ...] = Field(description="What is read, widest first.")
    hops: tuple[Hop, ...] = Field(description="Bytes from storage to device.")
    need: Need = Field(description="How many data workers it takes.")
    binding: Binding = Field(description="What binds.")
    advice: tuple[Advice, ...] = Field(default=(), description="What to change.")
    warnings: tuple[str, ...] = Field(default=(), description="What to know of the figures.")
