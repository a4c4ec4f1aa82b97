"""The autoscaling policy of inference workers, a pure function: it decides a group's pods.

    decide_inference(memory, sample, rules) -> (Decision, InferenceMemory)     every 15 s

    c = rows ÷ busy seconds, of a process that is calling a model          rows per second
    u = busy seconds ÷ seconds of all processes                            busy share
    x = rows left ÷ (seconds until the target × c × processes of a pod)    required pods

Pods are added only while the processes are saturated: otherwise others are the bottleneck, such as
data workers, and more pods would idle. With a target, the required pods are requested; without one,
half as many again, until requests no longer wait. Pods that idle are removed in either case. The
chain of the data workers' policy follows the recommendation (`chain`): a whole window must agree
before pods are removed, and at most a quarter of them leave within a window.

Requests wait for a moment also where processes are half idle, and processes that mostly unpack
requests are never busy calling a model. So neither signal alone shows that they are saturated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from dataset_operator.autoscaling.chain import constrain
from dataset_operator.autoscaling.interface import (
    DESIRED_WITHIN_RANGE,
    METRICS_UNKNOWN,
    SCALE_DOWN_LIMIT,
    SCALE_DOWN_WINDOW_SECONDS,
    TOO_MANY_REPLICAS,
    VALID_METRIC_FOUND,
    Bottleneck,
    Decision,
    Rules,
    Verdict,
)
from dataset_operator.autoscaling.intervals import Memory, Move, note_recommendation

# Processes that call models for this share of their time have no time left.
BUSY_SHARE = 0.9
# Pods that are busy for less are too many; the remaining ones are to be busy for the second share.
IDLE_SHARE = 0.5
_TARGET_SHARE = 0.8
# Requests wait if they do in this share of the readings.
_WAITING_SHARE = 0.75
# Signals are measured over this time; other pods may be wanted once that time has passed.
WINDOW_SECONDS = 60.0
# The HPA's tolerance: another number of pods must differ by more than this share.
TOLERANCE = 0.1
# Growth at once without a target: GPU hosts cost too much to double them.
_GROWTH = 1.5
# A target that has passed, or nearly so, is to be missed by no more than this.
MIN_LEFT_SECONDS = 60.0
# Share of the run that must be done before the remaining rows are estimated.
_MIN_DONE = 0.005
_MIN_EFFICIENCY = 0.05
# More pods than any spec allows.
_UNBOUNDED = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCounters:
    """Values of a group of inference workers at one time.

    Attributes:
        workers: processes that answer.
        waiting: requests that wait in them; those that a model is scoring do not count.
        rows: rows scored since the attempt began.
        busy_seconds: seconds in which a process was calling a model, summed over the processes.
    """

    workers: float
    waiting: float
    rows: float
    busy_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSample:
    """All signals of a group at one time.

    Attributes:
        at: seconds on a clock that all samples share.
        attempt: number of the attempt; counters restart with each.
        desired: requested pods.
        elapsed_seconds: since the attempt began.
        counters: None if unknown.
        done: share of the run's rows that were read, 0 to 1; None if unknown.
    """

    at: float
    attempt: int
    desired: int
    elapsed_seconds: float
    counters: InferenceCounters | None = None
    done: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRules:
    """The settings of the policy that a spec gives.

    Attributes:
        bounds: `minReplicas` and `maxReplicas`.
        processes: processes of each pod.
        target_seconds: `targetCompletionSeconds`.
    """

    bounds: Rules
    processes: int = 1
    target_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Signals of the last minute.

    Attributes:
        busy_share: 0 to 1.
        waiting: mean number of waiting requests.
        capacity: rows per second of one process that is never without requests; 0 if unknown.
        is_saturated: True if requests wait because the processes have no time left.
    """

    busy_share: float
    waiting: float
    capacity: float
    is_saturated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMemory:
    """Memory of the policy; `InferenceMemory(chain=Memory(since=now))` for one that starts.

    Attributes:
        chain: recommendations and moves, for the windows, and the time of the last decision.
        first: the first sample of the attempt with counters and progress, from which the remaining
            rows are estimated.
        samples: samples of the last minute with known counters.
        efficiency: busy share of processes that were saturated when last seen so, at most 1.
        measured: signals of the last minute; None if they are unknown, or no process answered.
        reasons: reasons of the latest decisions, as the operator reports them.
        refused_at: time at which a request for pods was withdrawn, since they cannot be created.
    """

    chain: Memory
    first: InferenceSample | None = None
    samples: tuple[InferenceSample, ...] = ()
    efficiency: float = 1.0
    measured: Measured | None = None
    reasons: tuple[str, ...] = ()
    refused_at: float | None = None


def decide_inference(
    memory: InferenceMemory, sample: InferenceSample, rules: InferenceRules
) -> tuple[Decision, InferenceMemory]:
    """Decide the number of a group's pods from now on.

    Args:
        memory: returned by the previous decision.
        sample: the signals now.
    """
    memory = _measure(_take_in(memory, sample))
    verdict = _recommend(memory, sample, rules)
    bounds, now, chain = rules.bounds, sample.at, memory.chain
    wanted = min(max(verdict.workers, bounds.min_workers), bounds.max_workers)
    chain = note_recommendation(chain, now, wanted, SCALE_DOWN_WINDOW_SECONDS)
    desired, limited = constrain(verdict.workers, sample.desired, chain, bounds, now)
    if limited is not None:
        limited = _explain_limit(limited, memory, sample, rules)
    known = memory.measured is not None
    active = replace(verdict, reason=VALID_METRIC_FOUND if known else METRICS_UNKNOWN)
    decision = Decision(desired=desired, recommended=verdict, active=active, limited=limited)
    return decision, replace(memory, chain=chain)


def find_bottleneck(name: str, memory: InferenceMemory) -> Bottleneck | None:
    """Return the group as the bottleneck of the data workers, if its processes are saturated."""
    measured = memory.measured
    if measured is None or not measured.is_saturated:
        return None
    message = (
        f"inference workers {name} are {measured.busy_share:.0%} busy, and "
        f"{measured.waiting:.0f} requests wait for them; more data workers will not help"
    )
    return Bottleneck(stage="Inference", message=message)


# --- signals --------------------------------------------------------------------------------------


def _take_in(memory: InferenceMemory, sample: InferenceSample) -> InferenceMemory:
    """Record a sample and the effect of the last decision; drop what another attempt measured."""
    chain = memory.chain
    moves = tuple(move for move in chain.moves if move.at > sample.at - SCALE_DOWN_WINDOW_SECONDS)
    if chain.desired is not None and chain.desired != sample.desired:
        moves = (*moves, Move(at=sample.at, before=chain.desired, after=sample.desired))
    chain = replace(chain, moves=moves, desired=sample.desired, decided_at=sample.at)
    memory = replace(memory, chain=chain)
    last = memory.samples[-1] if memory.samples else memory.first
    if last is not None and not _continues(last, sample):
        memory = replace(memory, first=None, samples=())
    if sample.counters is None:
        return memory
    recent = (each for each in memory.samples if each.at >= sample.at - WINDOW_SECONDS)
    # Progress may be reported later than the workers, as by trainers that have yet to start.
    first = memory.first or (sample if sample.done is not None else None)
    return replace(memory, first=first, samples=(*recent, sample))


def _continues(last: InferenceSample, sample: InferenceSample) -> bool:
    """Return whether no counter began again between two samples."""
    if last.attempt != sample.attempt or last.at >= sample.at:
        return False
    before, now = last.counters, sample.counters
    if before is None or now is None:
        return True
    return now.rows >= before.rows and now.busy_seconds >= before.busy_seconds


def _measure(memory: InferenceMemory) -> InferenceMemory:
    """Measure the signals of the last minute, once half of it has been sampled."""
    known = [(sample.at, sample.counters) for sample in memory.samples if sample.counters]
    is_fresh = bool(known) and known[-1][0] == memory.chain.decided_at
    # A pass may come early; the samples are one period apart.
    if not is_fresh or known[-1][0] - known[0][0] < WINDOW_SECONDS / 2:
        return replace(memory, measured=None)
    spans = [(b - a, before) for (a, before), (b, _) in pairwise(known)]
    seconds = sum(span * counters.workers for span, counters in spans)
    if seconds <= 0.0:  # they load their models, which may take long, or nobody calls them yet
        return replace(memory, measured=None)
    busy = known[-1][1].busy_seconds - known[0][1].busy_seconds
    rows = known[-1][1].rows - known[0][1].rows
    share = min(1.0, busy / seconds)
    waits = [counters.waiting for _, counters in known]
    waiting = sum(waits) / len(waits)
    workers = sum(counters.workers for _, counters in known) / len(known)
    has_queue = sum(wait > 0.0 for wait in waits) >= _WAITING_SHARE * len(waits)
    is_saturated = has_queue and workers > 0.0 and (share >= BUSY_SHARE or waiting >= workers)
    efficiency = max(_MIN_EFFICIENCY, share) if is_saturated else memory.efficiency
    rate = rows / busy if busy > 0.0 else 0.0
    measured = Measured(
        busy_share=share,
        waiting=waiting,
        capacity=rate * efficiency if math.isfinite(rate) else 0.0,
        is_saturated=is_saturated,
    )
    return replace(memory, measured=measured, efficiency=efficiency)


def _count_left(memory: InferenceMemory, sample: InferenceSample) -> float | None:
    """Estimate the rows that are left to score; None while too little of the run is done.

    The rows per share of the run are known only once some were scored: filters drop rows, and a
    training scores them again in each epoch.
    """
    first, now = memory.first, sample.counters
    if first is None or first.counters is None or now is None:
        return None
    if first.done is None or sample.done is None:
        return None
    done, rows = sample.done - first.done, now.rows - first.counters.rows
    if done < _MIN_DONE or rows <= 0.0:
        return None
    return (1.0 - sample.done) * rows / done


# --- the recommendation ---------------------------------------------------------------------------


def _recommend(memory: InferenceMemory, sample: InferenceSample, rules: InferenceRules) -> Verdict:
    """Recommend a number from the signals alone; unknown signals keep the present one."""
    measured, current = memory.measured, sample.desired
    if measured is None or sample.counters is None:
        message = "the number stays: no inference worker answers, or the metrics are not known"
        return Verdict(workers=current, reason=METRICS_UNKNOWN, message=message)
    state = (
        f"processes are {measured.busy_share:.0%} busy, {measured.waiting:.0f} requests wait, "
        f"one scores {measured.capacity:,.0f} rows per second"
    )
    enough = current
    if measured.busy_share < IDLE_SHARE and not measured.is_saturated:
        enough = min(current, max(1, math.ceil(current * measured.busy_share / _TARGET_SHARE)))
    required = _find_required(memory, sample, rules)
    if rules.target_seconds is None:
        wanted = _grow(memory, sample, rules) if enough == current else enough
    elif required is None:
        wanted = enough
        state += "; when the last row is scored is not known yet"
    else:
        state += f"; {required:.1f} pods meet the target"
        wanted = _round(required, current, rules.bounds.max_workers)
        if wanted > current and not measured.is_saturated:
            wanted = current  # other pods would idle
            state += ", but requests do not wait for more"
        wanted = min(wanted, enough) if enough < current else wanted
    return Verdict(workers=wanted, reason=DESIRED_WITHIN_RANGE, message=state)


def _grow(memory: InferenceMemory, sample: InferenceSample, rules: InferenceRules) -> int:
    """Return half as many pods again, if all present ones were saturated for a minute."""
    wanted = sample.desired * rules.processes
    numbers = [each.counters.workers for each in memory.samples if each.counters]
    if memory.measured is None or not memory.measured.is_saturated or min(numbers) < wanted:
        return sample.desired
    return math.ceil(sample.desired * _GROWTH)


def _find_required(
    memory: InferenceMemory, sample: InferenceSample, rules: InferenceRules
) -> float | None:
    """Return the pods that score the remaining rows by the target; None if it is not known."""
    left, target = _count_left(memory, sample), rules.target_seconds
    rate = memory.measured.capacity * rules.processes if memory.measured else 0.0
    if target is None or left is None or rate <= 0.0:
        return None
    seconds = max(MIN_LEFT_SECONDS, target - sample.elapsed_seconds)
    return min(left / rate / seconds, _UNBOUNDED)


def _round(required: float, current: int, most: int) -> int:
    """Return the number of pods; the present or largest one if that is within the tolerance."""
    if current and abs(required / current - 1.0) <= TOLERANCE:
        return current
    wanted = max(1, math.ceil(required))
    return most if wanted > most and required <= most * (1.0 + TOLERANCE) else wanted


def _explain_limit(
    limited: Verdict, memory: InferenceMemory, sample: InferenceSample, rules: InferenceRules
) -> Verdict:
    """Return the limit with what it means for a group of inference workers."""
    if limited.reason == SCALE_DOWN_LIMIT:
        window = f"{SCALE_DOWN_WINDOW_SECONDS:.0f} s"
        message = f"fewer would do, but at most a quarter of the pods leave within {window}"
        return replace(limited, message=message)
    left, target = _count_left(memory, sample), rules.target_seconds
    rate = memory.measured.capacity * rules.processes if memory.measured else 0.0
    if limited.reason != TOO_MANY_REPLICAS or target is None or left is None or rate <= 0.0:
        return limited
    late = sample.elapsed_seconds + left / rate / rules.bounds.max_workers - target
    message = (
        f"{limited.message}; the last row is scored about {max(0.0, late) / 60.0:,.0f} minutes "
        "after the target: raise maxReplicas or targetCompletionSeconds"
    )
    return replace(limited, message=message)
