"""Parses what a driver reports about its groups of inference workers.

The pod runs a user's code, so every value is checked: an impossible value makes its group unknown,
and so does a missing one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.samples import Sample

from dataset_operator.autoscaling.inference import InferenceCounters

PREFIX = "lastmile_inference_"
_FIELDS = {
    f"{PREFIX}workers": "workers",
    f"{PREFIX}waiting_requests": "waiting",
    f"{PREFIX}rows_total": "rows",
    f"{PREFIX}busy_seconds_total": "busy_seconds",
}
INFERENCE_NAMES = tuple(_FIELDS)
# No counter reaches this value.
_MAX_VALUE = 1e18


def parse_inference(samples: Iterable[Sample]) -> dict[str, InferenceCounters]:
    """Return the counters in samples of INFERENCE_NAMES, by the name of the group."""
    found: dict[str, dict[str, float]] = {}
    for sample in samples:
        values, name = found.setdefault(sample.labels.get("group", ""), {}), _FIELDS[sample.name]
        is_sound = name not in values and 0.0 <= sample.value <= _MAX_VALUE
        values[name] = float(sample.value) if is_sound else math.nan
    return {
        group: InferenceCounters(**values)
        for group, values in found.items()
        if len(values) == len(_FIELDS) and not any(map(math.isnan, values.values()))
    }
