"""The one page of numbers that a run leaves: the models of `summary.json`, written and read.

Owned here: every field of the file, with its unit, and the version check. The training run fills
the models when it ends, well or badly; `html` and `terminal` show them, other programs read the
file. `docs/summary.md` holds the same descriptions, kept equal by a test.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import read_regular, write_atomically
from pipeline_runtime.iceberg.pins import ModelPin, Pin
from pipeline_runtime.report.files.inference_groups import InferenceGroup
from pipeline_runtime.report.files.measures_file import Measure

SUMMARY_VERSION = 1
SUMMARY_FILE = "summary.json"

# Shares come from clocks of several threads, rounded; a hundredth is far above what that adds up
# to and far below what a person would act on.
SHARE_TOLERANCE = 0.01

# Sums are modulo 2**64, hence 16 hexadecimal digits.
CHECKSUM_DIGITS = 16


def _to_utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _to_padded_hex(value: object) -> object:
    return (
        value.lower().removeprefix("0x").zfill(CHECKSUM_DIGITS) if isinstance(value, str) else value
    )


UtcTime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1 + SHARE_TOLERANCE)]
HexSum = Annotated[
    str, BeforeValidator(_to_padded_hex), StringConstraints(pattern=r"^[0-9a-f]{16}$")
]


class SummaryModel(BaseModel):
    """A part of the summary: frozen, camelCase outside; fields of a later Lastmile are ignored.

    JSON has no NaN and no infinity, and a diverged loss is both: they are written as the strings
    "NaN", "Infinity" and "-Infinity", which loading turns back.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="strings"
    )


class ExperimentName(SummaryModel):
    """Name and namespace of the experiment."""

    name: str = Field(description="Name of the experiment, from the manifest.")
    namespace: str = Field(default="default", description="Namespace of the experiment.")


class ResumedFrom(SummaryModel):
    """The checkpoint that a run went on from."""

    checkpoint: str = Field(description="URI of the checkpoint.")
    epoch: Count = Field(description="Epoch, from 0, that the checkpoint was taken in.")
    step: Count = Field(description="Optimiser steps done when the checkpoint was taken.")


class Phase(SummaryModel):
    """A part of the run's duration."""

    name: str = Field(description="What the run did; `imports` comes first, `report` last.")
    seconds: Seconds = Field(description="How long it took, in seconds.")


class Run(SummaryModel):
    """Identity, times and outcome of the run."""

    run_hash: str = Field(description="Hash of the resolved run configuration.")
    attempt: int = Field(default=1, ge=1, description="Number of this attempt at the run, from 1.")
    started_at: UtcTime = Field(description="When the attempt started, ISO 8601, UTC.")
    finished_at: UtcTime = Field(description="When the attempt ended, ISO 8601, UTC.")
    seconds: Seconds = Field(description="Duration of the attempt, in seconds.")
    phases: tuple[Phase, ...] = Field(
        default=(), description="Parts of the duration, in their order."
    )
    outcome: Literal["Complete", "Failed", "Interrupted"] = Field(
        description="How the attempt ended: `Complete`, `Failed` or `Interrupted`."
    )
    resumed_from: ResumedFrom | None = Field(
        default=None, description="The checkpoint it went on from; null for a fresh start."
    )
    error: str | None = Field(
        default=None, description="The whole error text when it failed, else null."
    )
    artifacts_uri: str | None = Field(
        default=None,
        description="Folder of the run on the artifacts store, which has all its files; null: "
        "written by an older Lastmile.",
    )
    seed_group: str | None = Field(
        default=None,
        description="Hash of the run configuration without `training.seed`: runs with the same one "
        "repeat each other with other seeds.",
    )
    code_digest: str | None = Field(
        default=None,
        description="Hash of the file of the entrypoint, model or script; null: the built-in "
        "model, a function of a notebook, or an older Lastmile.",
    )
    address: str = Field(
        default="local",
        description="Where it ran: `local` is one machine, else a Ray cluster's address.",
    )


class Seeds(SummaryModel):
    """Every seed that had a say in the rows or the model."""

    training: int | None = Field(
        default=None, description="Seed of shuffling and of the model; or null."
    )
    steps: dict[str, int] = Field(
        default_factory=dict,
        description="Seed of each step that draws, by place: `pipeline[1].downsample`.",
    )


class Versions(SummaryModel):
    """Versions of the software; an empty text for a library that was not installed."""

    lastmile: str = Field(default="", description="Version of Lastmile.")
    python: str = Field(default="", description="Version of Python.")
    ray: str = Field(default="", description="Version of Ray.")
    torch: str = Field(default="", description="Version of Torch.")
    pyarrow: str = Field(default="", description="Version of PyArrow.")
    numpy: str = Field(default="", description="Version of NumPy.")


class Machine(SummaryModel):
    """Resources of the machine, or their sum over the cluster."""

    cpus: Annotated[float, Field(ge=0)] = Field(
        default=0, description="CPU cores that Ray was given."
    )
    memory_bytes: Count = Field(default=0, description="Memory, in bytes.")
    gpus: tuple[str, ...] = Field(
        default=(), description="Model name of each GPU, one entry a device."
    )


class DatasetRead(SummaryModel):
    """Size of the dataset, and the part of it that was read over all epochs of training."""

    files: Count = Field(default=0, description="Files of the table.")
    files_read: Count = Field(
        default=0, description="Files left to read after partitions were pruned."
    )
    row_groups: Count = Field(default=0, description="Row groups in those files.")
    row_groups_read: Count = Field(
        default=0, description="Row groups left after statistics pruned them."
    )
    rows: Count = Field(default=0, description="Rows of the table.")
    rows_read: Count = Field(
        default=0, description="Rows decoded from the row groups that were read."
    )
    bytes_read: Count = Field(
        default=0, description="Arrow bytes of the columns and rows read, all epochs."
    )
    pushed: tuple[str, ...] = Field(
        default=(), description="Predicates that were pushed to the files."
    )


class StepFlow(SummaryModel):
    """Rows and bytes through one step, over all epochs; index 0 is the read itself."""

    index: Count = Field(description="Place in the stream: 0 is the read, then the steps.")
    kind: str = Field(description="Kind of step: `read`, `filter`, `downsample`, …")
    label: str = Field(description="The step in one line, as `explain` prints it.")
    rows_in: Count = Field(description="Rows that entered.")
    rows_out: Count = Field(description="Rows that left.")
    bytes_in: Count = Field(default=0, description="Bytes of Arrow buffers that entered.")
    bytes_out: Count = Field(default=0, description="Bytes of Arrow buffers that left.")
    seconds: Seconds = Field(
        default=0, description="Worker time spent in it, in seconds, over all workers."
    )


class Evaluation(SummaryModel):
    """Metrics of one evaluation."""

    epoch: Count = Field(description="Epoch, from 0, that it closed or fell in.")
    step: Count = Field(description="Optimiser steps done by then.")
    metrics: dict[str, float] = Field(description="Value of each metric, by name.")


class Training(SummaryModel):
    """Work and results of the trainer."""

    entrypoint: str = Field(default="", description="`module:function` of the training loop.")
    model: str = Field(default="", description="`module:function` of the user's model, if any.")
    script: str = Field(
        default="", description="The script that trained instead, and its arguments."
    )
    epochs: Count = Field(default=0, description="Epochs that the spec asks for.")
    steps: Count = Field(
        default=0, description="Optimiser steps done, those before a resume included."
    )
    samples: Count = Field(
        default=0,
        description="Samples trained on, those before a resume included, padding left out.",
    )
    batch_size: Count = Field(default=0, description="Samples in a full batch of one rank.")
    world_size: Count = Field(default=0, description="Trainer processes.")
    device: str = Field(default="", description="Device of the model: `cpu`, `cuda:0`, …")
    precision: str = Field(
        default="", description="Number format of the forward pass: `float32`, …"
    )
    metrics: dict[str, float] = Field(
        default_factory=dict, description="Last value of each metric, by name."
    )
    evaluations: tuple[Evaluation, ...] = Field(
        default=(), description="Every evaluation, oldest first."
    )
    dropped_rows: Count = Field(default=0, description="Rows left over by `lastBatch: Drop`.")
    padded_rows: Count = Field(default=0, description="Rows of weight 0 added by `lastBatch: Pad`.")


class Written(SummaryModel):
    """The table that a run wrote, with `output` in the manifest."""

    uri: str = Field(description="Folder of the table, or the name of an Iceberg table.")
    rows: Count = Field(default=0, description="Rows of the table; those so far if it failed.")
    files: Count = Field(default=0, description="Files of the table, or those so far.")
    bytes: Count = Field(default=0, description="Bytes of these files.")
    partition_by: tuple[str, ...] = Field(
        default=(), description="Columns whose values are names of folders."
    )
    catalog: str | None = Field(default=None, description="Catalog of an Iceberg table.")
    snapshot_id: str | None = Field(
        default=None, description="Snapshot of an Iceberg table that holds the rows."
    )
    replaced: str | None = Field(
        default=None, description="Rows and files of an Iceberg table that these rows replaced."
    )
    written_partitions: tuple[str, ...] | None = Field(
        default=None,
        description="Partitions that were written; null if not one by one.",
    )
    complete_partitions: tuple[str, ...] | None = Field(
        default=None, description="Partitions that were in the table already, of the same rows."
    )


class Materialized(SummaryModel):
    """The rows that the step `materialize` keeps for later runs."""

    catalog: str = Field(description="Catalog of the cache table.")
    table: str = Field(description="The cache table, as `namespace.table`.")
    state: Literal["Hit", "Partial", "Miss"] = Field(
        description="`Hit` if the table had all rows when the run began, `Miss` if it had none."
    )
    partitions: Count = Field(description="Partitions of the source that the run needs.")
    complete_partitions: Count = Field(description="Those of them whose rows the table has.")
    snapshot_id: str | None = Field(
        default=None, description="Snapshot of the table with these rows; null: there is none yet."
    )

    def describe(self) -> str:
        """Return the state and the table, for people."""
        counts = f"{self.complete_partitions:,} of {self.partitions:,} partitions"
        at = f" at snapshot {self.snapshot_id}" if self.snapshot_id else ""
        return f"{self.state.lower()}; {counts} in {self.catalog}.{self.table}{at}"


class Throughput(SummaryModel):
    """Throughput from the first batch to the last."""

    samples_per_second: Seconds = Field(default=0, description="Samples trained on per second.")
    rows_per_second: Seconds = Field(default=0, description="Rows read from the table per second.")
    seconds_to_first_batch: Seconds | None = Field(
        default=None,
        description="Seconds from the start of the command to the first batch; null: none came.",
    )


class TimeShares(SummaryModel):
    """The trainer's time by stage, in shares that sum to 1; all are 0 if it never started."""

    compute: Share = Field(
        default=0, description="Share of trainer time in the model: forward to step."
    )
    production: Share = Field(
        default=0, description="Share waited because no batch had been produced."
    )
    transfer: Share = Field(
        default=0, description="Share waited for a batch on its way to the trainer."
    )
    batching: Share = Field(default=0, description="Share spent forming mini-batches.")
    collate: Share = Field(
        default=0, description="Share spent turning Arrow into tensors on the device."
    )
    paused: Share = Field(default=0, description="Share in evaluation, checkpoints and set-up.")

    @classmethod
    def from_seconds(cls, **seconds: float) -> Self:
        """Shares of the given seconds by name (`compute=12.5, production=3`), made to sum to 1."""
        known = {name: max(0.0, seconds.get(name, 0.0)) for name in cls.model_fields}
        unknown = sorted(seconds.keys() - known.keys())
        if unknown:
            raise LastmileError(
                f"time shares: must be of {', '.join(known)}, got {unknown[0]!r}; rename it"
            )
        total = sum(known.values())
        return cls(**{name: value / total for name, value in known.items()} if total else {})

    @property
    def waited(self) -> float:
        """Share of trainer time waiting for data, whatever the stage; pauses are no waits."""
        return self.production + self.transfer + self.batching + self.collate

    @model_validator(mode="after")
    def _check_sum(self) -> Self:
        total = self.compute + self.waited + self.paused
        if total and abs(total - 1) > SHARE_TOLERANCE:
            raise ValueError(f"must sum to 1 (or all be 0), got {total:.4f}; divide by their sum")
        return self


class Checksum(SummaryModel):
    """Checksum of the rows that reached the consumer, in any order: equal checksums, equal rows."""

    rows: Count = Field(
        default=0, description="Rows of weight above 0 that were trained on, or rows of the table."
    )
    sum: HexSum = Field(
        default="0" * CHECKSUM_DIGITS, description="Sum of row hashes mod 2^64, 16 hex digits."
    )
    sum_of_squares: HexSum = Field(
        default="0" * CHECKSUM_DIGITS, description="Sum of their squares mod 2^64, 16 hex digits."
    )


class Order(SummaryModel):
    """Guarantees about the order of batches, and about a resume."""

    preserve_order: bool = Field(
        default=False, description="Whether the order of batches is fixed by the seed."
    )
    resume: Literal["order", "rows", "epoch"] = Field(
        default="epoch",
        description="How finely it resumes: `order` (same batches), `rows` (same rows), `epoch`.",
    )
    detail: str = Field(default="", description="The same in a sentence, with its reason.")


class Checkpoints(SummaryModel):
    """Checkpoints of the run."""

    written: Count = Field(default=0, description="Checkpoints written by this attempt.")
    last: str | None = Field(default=None, description="URI of the last whole one; null: none.")


class Summary(SummaryModel):
    """All of `summary.json`; a run that failed early gives `experiment` and `run`, the rest 0."""

    version: Literal[1] = Field(default=1, description="Version of this file's shape: 1.")
    experiment: ExperimentName = Field(description="Which experiment ran.")
    run: Run = Field(description="Which run it was, when, and how it ended.")
    seeds: Seeds = Field(default=Seeds(), description="Every seed that had a say.")
    versions: Versions = Field(default=Versions(), description="What it ran with.")
    machine: Machine = Field(default=Machine(), description="What it ran on.")
    dataset: DatasetRead = Field(
        default=DatasetRead(), description="What there was to read, and what was read."
    )
    snapshots: tuple[Pin, ...] = Field(
        default=(),
        description="The snapshots of the Iceberg tables that were read, sides included.",
    )
    models: tuple[ModelPin, ...] = Field(
        default=(), description="The models that steps called, with the digests of their files."
    )
    materialization: Materialized | None = Field(
        default=None, description="The rows that a step keeps; null: no step `materialize`."
    )
    inference: tuple[InferenceGroup, ...] = Field(
        default=(), description="The work of inference workers, by group."
    )
    steps: tuple[StepFlow, ...] = Field(
        default=(), description="Rows through the steps of the training stream."
    )
    evaluation_steps: tuple[StepFlow, ...] = Field(
        default=(), description="The same for the evaluation stream."
    )
    training: Training = Field(default=Training(), description="What the trainer did.")
    output: Written | None = Field(
        default=None, description="The table that was written; null: a model was trained."
    )
    measures: tuple[Measure, ...] = Field(
        default=(),
        description="Metrics of steps that measure rows; `measures.json` has all of them.",
    )
    throughput: Throughput = Field(default=Throughput(), description="How fast it went.")
    time_shares: TimeShares = Field(
        default=TimeShares(), description="Where the trainer's time went; sums to 1."
    )
    checksum: Checksum = Field(
        default=Checksum(),
        description="Which rows reached the trainer, or the table; order left out.",
    )
    order: Order = Field(default=Order(), description="How much of the order is promised.")
    checkpoints: Checkpoints = Field(default=Checkpoints(), description="What was saved.")
    warnings: tuple[str, ...] = Field(
        default=(), description="What a person should know, a sentence each."
    )


def write_summary(directory: Path, summary: Summary) -> Path:
    """Write `summary.json` into `directory` (made if missing), whole or not at all; its path."""
    path = Path(directory) / SUMMARY_FILE
    write_atomically(path, summary.model_dump_json(by_alias=True, indent=2) + "\n")
    return path


def load_summary(directory: Path) -> Summary:
    """Read `summary.json` of `directory`.

    Raises:
        LastmileError: it is missing, is no JSON, is of another version, or breaks a field's rule.
    """
    path = Path(directory) / SUMMARY_FILE
    try:
        content = read_regular(path)
    except FileNotFoundError:
        raise LastmileError(
            f"{path}: must exist, but does not; a run writes it when it ends: "
            "give the output directory of a run"
        ) from None
    return parse_summary(content, str(path))


def parse_summary(content: bytes, path: str) -> Summary:
    """Parse the content of a `summary.json`; `path` is its name in messages.

    Raises:
        LastmileError: it is no JSON, is of another version, or breaks a field's rule.
    """
    document = _parse_document(content, path)
    _check_version(path, document)
    try:
        return Summary.model_validate(document)
    except ValidationError as error:
        raise LastmileError(_describe_broken_field(path, error)) from error


def _parse_document(content: bytes, path: str) -> dict[str, Any]:
    try:
        document = from_json(content)
    except ValueError as error:
        raise LastmileError(
            f"{path}: must be JSON, got {error}; run again to rewrite it"
        ) from error
    if not isinstance(document, dict):
        raise LastmileError(
            f"{path}: must be a JSON object, got {type(document).__name__}; run again"
        )
    return document


def _check_version(path: str, document: dict[str, Any]) -> None:
    got = document.get("version")
    if got == SUMMARY_VERSION and not isinstance(got, bool):
        return
    versions = document.get("versions")
    writer = versions.get("lastmile", "?") if isinstance(versions, dict) else "?"
    raise LastmileError(
        f"{path}: version: must be {SUMMARY_VERSION}, which this Lastmile reads, got {got!r} "
        f"(written by Lastmile {writer}); read it with that Lastmile, or run again"
    )


def _describe_broken_field(path: str, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "the document"
    return f"{path}: {field}: {first['msg']}, got {first['input']!r:.200}; run again to rewrite it"
