"""Builds the document of results from real and simulated courses (schema: docs/benchmarks.md)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Final

from benchmarks.harness.cells import Document
from benchmarks.harness.machine import MAX_LOAD
from benchmarks.harness.statistics import rounded
from benchmarks.simulator.courses import Course
from benchmarks.simulator.observing import Observed
from benchmarks.simulator.simulating import Costs

RESULTS_VERSION: Final = 2
# Targets of the simulator for every profile.
MAX_RATE_ERROR: Final = 0.10
MAX_IDLE_ERROR: Final = 0.15
MAX_WORKERS_ERROR: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A profile with its real run, and its simulation with each seed."""

    observed: Observed
    simulated: Sequence[Course]


def build_results(
    compared: Sequence[Compared],
    costs: Costs,
    share: float,
    environment: Mapping[str, Any],
    *,
    is_of_pods: bool = False,
) -> Document:
    """Return the document of all measurements; `environment` describes the machine."""
    before, after = environment["loadAverage"]
    load = before if is_of_pods else max(before, after)  # pods are load themselves
    return {
        "version": RESULTS_VERSION,
        "benchmark": "simulator-pods" if is_of_pods else "simulator",
        "indicative": _explain_indicative(share, load),
        **environment,
        "seeds": len(compared[0].simulated),
        "costs": {name: rounded(value) for name, value in asdict(costs).items()},
        "profiles": [_compare(each) for each in compared],
    }


def _explain_indicative(share: float, load: float) -> list[str]:
    """Return the reasons why the results are indicative; nothing if they are not."""
    reasons = {
        f"{share:g} of the rows": share < 1.0,
        f"other work ran at the same time (load average {load}), which delays workers": (
            load > MAX_LOAD
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _compare(each: Compared) -> Document:
    run, simulated = each.observed, each.simulated
    rates = _figure(run.course.rows_per_second, [c.rows_per_second for c in simulated])
    idle = _figure(run.course.idle_seconds, [c.idle_seconds for c in simulated])
    workers = _settled(each)
    return {
        "profile": run.profile.name,
        "predicted": run.profile.is_predicted,
        "required": [rounded(workers) for workers in run.profile.required()],
        "rows": run.profile.rows,
        "seconds": rounded(run.course.points[-1].at),
        "startSeconds": [rounded(seconds) for seconds in run.starts],
        "rowsPerSecond": rates | {"met": abs(rates["error"]) <= MAX_RATE_ERROR},
        "idleSeconds": idle | {"met": abs(idle["error"]) <= MAX_IDLE_ERROR},
        "workers": workers | {"met": workers["error"] <= MAX_WORKERS_ERROR},
        "meanReady": _figure(run.course.mean_ready, [c.mean_ready for c in simulated]),
        "course": {
            "real": _trace(run.course),
            "simulated": _trace(_find_middle(simulated)),
        },
    }


def _figure(real: float, simulated: Sequence[float]) -> Document:
    """Return a figure; `error` is that of the median seed, as a share of the real value."""
    found = statistics.median(simulated)
    return {
        "real": rounded(real),
        "simulated": _spread(simulated),
        "error": round((found - real) / real, 4) if real > 0.0 else 0.0,
    }


def _spread(values: Sequence[float]) -> Document:
    """Return median, smallest and largest."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: rounded(value) for name, value in found.items()}


def _settled(each: Compared) -> Document:
    """Return the workers at the end of each phase; `error` is the largest difference."""
    profile = each.observed.profile
    real = each.observed.course.settled(profile)
    of_seeds = [course.settled(profile) for course in each.simulated]
    simulated = [statistics.median_low(found) for found in zip(*of_seeds, strict=True)]
    differences = [abs(a - b) for a, b in zip_longest(real, simulated, fillvalue=0)]
    return {"real": real, "simulated": simulated, "error": max(differences)}


def _find_middle(courses: Sequence[Course]) -> Course:
    """Return the course with the median idle time, the lower of two."""
    ordered = sorted(courses, key=lambda course: course.idle_seconds)
    return ordered[(len(ordered) - 1) // 2]


def _trace(course: Course) -> Document:
    return {
        "seconds": [round(point.at, 1) for point in course.points],
        "desired": [point.desired for point in course.points],
        "ready": [point.ready for point in course.points],
        "rows": [round(point.rows) for point in course.points],
        "idleSeconds": [round(point.idle_seconds, 1) for point in course.points],
    }
