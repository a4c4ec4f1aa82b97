"""Texts of a profile for people; `terminal` and `page` show them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_runtime.formatting import (
    NO_BREAK_SPACE,
    NOTHING,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_short,
)
from pipeline_runtime.profiling.document import Measured, Need, Profile, StepCost

BINDING_WORDS = {
    "model": "the model binds",
    "collate": "the trainer's batching and collate bind",
    "transfer": "the trainer's transfer binds",
    "dataWorkers": "the data workers bind",
    "storage": "the storage binds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One number of the headline; `spread` is from the smallest to the largest that was found."""

    title: str
    value: str
    spread: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A part of a reader's work."""

    name: str
    label: str
    path: str
    cost: str
    spread: str
    share: float
    share_text: str
    kept: str
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRow:
    """A place on the way; `share` is of the widest one."""

    name: str
    size: str
    rate: str
    share: float


def build_rates(profile: Profile) -> list[Rate]:
    """The numbers that a person looks for first."""
    trainer, need, reading = profile.trainer, profile.need, profile.reading
    return [
        _build_rate("Model's roofline", trainer.roofline, f"samples, {trainer.device}"),
        _build_rate("Trainer's intake", trainer.intake, "samples, made into tensors"),
        _build_rate("Decode floor", reading.rows_per_second, "rows, one core"),
        _build_rate("One reader makes", need.reader, "samples, one core"),
        Rate(
            title="Data workers needed",
            value=str(need.workers),
            spread=_format_range(str(need.workers_low), str(need.workers_high)),
            what=describe_need(need),
        ),
    ]


def _build_rate(title: str, measured: Measured, what: str) -> Rate:
    return Rate(
        title=title,
        value=format_rate(measured.median),
        spread=_format_range(format_short(measured.low), format_short(measured.high)),
        what=what,
    )


def _format_range(low: str, high: str) -> str:
    return "" if low == high else f"{low} to {high}"


def describe_need(need: Need) -> str:
    """Describe how the number of data workers was computed."""
    trainers = "1 trainer" if need.ranks == 1 else f"{need.ranks} trainers"
    cpus = "1 CPU" if need.readers_per_worker == 1 else f"{need.readers_per_worker} CPUs"
    return (
        f"of {cpus}, for {trainers}, {format_percent(need.headroom)} headroom; {need.min_workers} "
        f"to {need.max_workers} allowed"
    )


def build_steps(profile: Profile) -> list[StepRow]:
    """A reader's work in its order."""
    return [_build_step(index, step) for index, step in enumerate(profile.steps)]


def _build_step(index: int, step: StepCost) -> StepRow:
    cost = step.microseconds_per_row
    is_step = step.kind not in ("read", "handOver")
    return StepRow(
        name={"handOver": "hand over"}.get(step.kind, f"{index}. {step.kind}"),
        label=step.label,
        path=step.path,
        cost=_format_microseconds(cost.median),
        spread=_format_range(_format_microseconds(cost.low), _format_microseconds(cost.high)),
        share=step.share,
        share_text=format_percent(step.share),
        kept=format_percent(step.rows_out / step.rows_in) if is_step and step.rows_in else NOTHING,
        size=format_bytes(round(step.bytes_per_row)),
    )


def _format_microseconds(value: float) -> str:
    scaled, unit = (value, "µs") if value >= 1 else (1000 * value, "ns")
    return f"{scaled:.3g}{NO_BREAK_SPACE}{unit}"


def build_hops(profile: Profile) -> list[HopRow]:
    """Bytes at each place."""
    widest = max(hop.bytes_per_sample for hop in profile.hops)
    return [
        HopRow(
            name=hop.name,
            size=format_bytes(round(hop.bytes_per_sample)),
            rate=f"{format_bytes(round(hop.bytes_per_second))}/s",
            share=hop.bytes_per_sample / widest if widest else 0.0,
        )
        for hop in profile.hops
    ]


def describe_sample(profile: Profile) -> str:
    """Describe the measured sample in a sentence."""
    sample = profile.sample
    return (
        f"{format_count(sample.rows)} rows of {format_count(sample.rows_left)} "
        f"({sample.row_groups} of {sample.row_groups_left} row groups), of which "
        f"{format_count(sample.samples)} reach the model; {sample.times} times, "
        f"{format_duration(profile.seconds)} in all"
    )


def build_shares(profile: Profile) -> list[tuple[str, float, str]]:
    """Return the parts of a trainer's time without waits: name, share, text."""
    trainer = profile.trainer
    shares = {
        "model": trainer.model_ratio,
        "batching": trainer.batching_ratio,
        "collate": trainer.collate_ratio,
        "transfer": trainer.transfer_ratio,
    }
    return [(name, share, format_percent(share)) for name, share in shares.items()]


def describe_trainer(profile: Profile) -> str:
    """Describe how long a step takes."""
    trainer = profile.trainer
    text = (
        f"A step of {format_count(trainer.batch_rows)} samples takes "
        f"{format_duration(trainer.step_seconds)}"
    )
    if trainer.fixed_seconds is not None:
        text += f", of which {format_duration(trainer.fixed_seconds)} whatever its size"
    return f"{text}; {trainer.batches} different batches were replayed."
