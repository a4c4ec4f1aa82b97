"""The conclusion of a simulation in a sentence, and advice on the manifest."""

from __future__ import annotations

from dataclasses import dataclass

from dataset_operator.autoscaling import Decision
from dataset_operator.sizing.document import Advice, Outcome
from dataset_operator.sizing.simulated_run import SECONDS_PER_HOUR, Assumed, Run
from pipeline_runtime.formatting import format_duration, format_percent, format_short

# Smaller waits are ignored; the policy adds no workers below this share either.
_MIN_IDLE_RATIO = 0.02
# A shorter run has too few decisions to profit from autoscaling.
_MIN_DECISIONS_SECONDS = 600.0
_MIN_FIELD, _MAX_FIELD = "spec.dataWorkers.minReplicas", "spec.dataWorkers.maxReplicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """A sentence, and changes that are worthwhile."""

    headline: str
    advice: tuple[Advice, ...] = ()


def conclude(run: Run, found: Outcome, last: Decision) -> Conclusion:
    """Conclude from the autoscaler's outcome.

    Args:
        last: its last decision, with the rule that limited the number.
    """
    least, most = run.rules.min_workers, run.rules.max_workers
    if least == most:
        return _conclude_fixed(run, found)
    if found.workers_settled is None:
        return Conclusion(
            headline=f"the number of data workers does not settle: {found.workers_mean:.1f} in the "
            f"mean, {found.workers_max} at most; {_say_waits(run, found)}; simulate more --hours"
        )
    if found.settled_idle_ratio >= _MIN_IDLE_RATIO:
        return _conclude_starved(run, found, last)
    if run.wanted < least:
        return Conclusion(
            headline=f"minReplicas ({least}) is more than is needed: {_say_enough(run)}",
            advice=(Advice(field=_MIN_FIELD, text=f"{run.wanted} would do"),),
        )
    return _conclude_settled(run, found)


def _conclude_fixed(run: Run, found: Outcome) -> Conclusion:
    n = run.rules.min_workers
    headline = f"nothing scales, since minReplicas and maxReplicas are both {n}: "
    if run.wanted > n and found.idle_ratio >= _MIN_IDLE_RATIO:
        headline += f"{run.wanted} are needed, {_say_waits(run, found)}"
        return Conclusion(headline=headline, advice=(_raise_most(run),))
    headline += _say_enough(run)
    if run.wanted >= n:
        return Conclusion(headline=headline)
    return Conclusion(
        headline=headline, advice=(Advice(field=_MIN_FIELD, text=f"{run.wanted} would do"),)
    )


def _conclude_starved(run: Run, found: Outcome, last: Decision) -> Conclusion:
    most, settled = run.rules.max_workers, found.workers_settled
    waits = _say_waits(run, found)
    if settled is not None and settled >= most:
        headline = f"maxReplicas ({most}) is reached where {run.wanted} are needed: {waits}"
        return Conclusion(headline=headline, advice=(_raise_most(run),))
    why = last.limited or last.recommended
    headline = f"it stays at {settled} of the {run.wanted} data workers that are needed: {waits}"
    return Conclusion(
        headline=headline, advice=(Advice(field="spec.autoscaling", text=why.message),)
    )


def _conclude_settled(run: Run, found: Outcome) -> Conclusion:
    assert found.workers_settled is not None
    settled = format_workers(found.workers_settled)
    if found.workers_settled == run.rules.min_workers:
        return Conclusion(headline=f"it stays at minReplicas: {_say_enough(run)}")
    after = format_duration(found.settled_seconds or 0.0)
    headline = (
        f"it settles at {settled} after {after}; {_say_waits(run, found)} from then on, "
        f"{format_percent(found.idle_ratio)} with the start"
    )
    if found.idle_ratio < _MIN_IDLE_RATIO:
        return Conclusion(headline=headline)
    lost = found.idle_ratio * found.gpu_hours * SECONDS_PER_HOUR
    text = (
        f"raise it to {found.workers_settled}, which spares the start, in which {_units(run)} wait "
        f"{format_duration(lost)} in all"
    )
    return Conclusion(headline=headline, advice=(Advice(field=_MIN_FIELD, text=text),))


def format_workers(number: float) -> str:
    """Format a number of data workers: `1 data worker`, `7 data workers`, `6.2 data workers`."""
    text = format_short(number)
    return f"{text} data worker" if text == "1" else f"{text} data workers"


def _raise_most(run: Run) -> Advice:
    high = run.count(run.required_high)
    text = f"raise it to {run.wanted}"
    if high > run.wanted:
        text += f"; {high} are enough by the slowest reader and the fastest trainer that were seen"
    return Advice(field=_MAX_FIELD, text=text)


def _say_enough(run: Run) -> str:
    if run.wanted > 1:
        return f"{format_workers(run.wanted)} are enough"
    return (
        f"1 data worker is enough: it makes {1.0 / run.required:.3g} times what the trainers take"
    )


def _say_waits(run: Run, found: Outcome) -> str:
    return f"{_units(run)} wait {format_percent(found.settled_idle_ratio)} of their time for data"


def _units(run: Run) -> str:
    return "GPUs" if run.has_gpus else "trainers"


def list_warnings(
    run: Run, found: Outcome, assumed: Assumed, device: str, changed: tuple[str, ...]
) -> tuple[str, ...]:
    """Return warnings about reasons to distrust the figures.

    Args:
        device: where the model was measured.
        changed: fields of the spec that are not what was measured.
    """
    warnings = []
    if changed:
        fields, is_or_are = " and ".join(changed), "is" if len(changed) == 1 else "are"
        warnings.append(
            f"{fields} {is_or_are} not what was profiled: the rates are those of the manifest as "
            "it was; profile it again"
        )
    if run.has_gpus and device == "cpu" and assumed.gpu_speed == 1.0:
        warnings.append(
            "trainers have GPUs, but the model was profiled on a CPU: profile it on such a GPU, or "
            "say with --gpu-speed how many times faster its step is there"
        )
    seconds = run.samples / run.demand
    if seconds < _MIN_DECISIONS_SECONDS:
        enough = min(run.wanted, found.workers_settled or run.wanted)
        warnings.append(
            f"with rows always there all {run.samples:,} samples are trained on in "
            f"{format_duration(seconds)}, too soon for an autoscaler: begin with what is needed, "
            f"{_MIN_FIELD} {enough}; what is simulated goes on for longer"
        )
    return tuple(warnings)
