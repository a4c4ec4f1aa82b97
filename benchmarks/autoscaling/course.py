"""Traces one run under several autoscaling policies over time, for the figure."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from benchmarks.autoscaling.policies import LATENCY_ORACLE, OURS
from benchmarks.autoscaling.simulations import Job, trace_job
from benchmarks.harness.cells import Document
from pipeline_runtime.config import HEADROOM

SCENARIO: Final = "row cost x2"
START_SECONDS: Final = 120.0
NOISE_PERCENT: Final = 20
SEED: Final = 1
POLICIES: Final = (OURS, LATENCY_ORACLE, "HPA on CPU")
# One point for this many periods of 15 s.
_EVERY: Final = 4


def trace_course(settings: dict[str, dict[str, Any]]) -> Document:
    """Return ready workers and waits for rows, minute by minute, of each tuned policy."""
    policies = []
    for policy in POLICIES:
        chosen = tuple(sorted(settings.get(policy, {}).items()))
        [trace] = trace_job(Job(SCENARIO, START_SECONDS, NOISE_PERCENT, policy, chosen, SEED))
        kept = trace.moments[::_EVERY]
        waits = [
            (after.production_seconds - before.production_seconds) / (after.at - before.at)
            for before, after in pairwise(kept)
        ]
        policies.append(
            {
                "policy": policy,
                "minutes": [round(moment.at / 60.0, 2) for moment in kept],
                "required": [moment.truth.required(HEADROOM) for moment in kept],
                "ready": [moment.ready for moment in kept],
                "waitShare": [0.0, *(round(min(1.0, share), 3) for share in waits)],
            }
        )
    return {
        "scenario": SCENARIO,
        "provisioning_delay_seconds": START_SECONDS,
        "noise_percent": NOISE_PERCENT,
        "seed": SEED,
        "policies": policies,
    }
