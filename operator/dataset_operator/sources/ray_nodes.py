"""GPUs in the metrics of one of Ray's nodes: `ray_node_gpus_utilization`, 0 to 100, by GpuIndex.

Source: Ray 2.60, dashboard/modules/reporter/reporter_agent.py. A slice of a GPU (MIG) tells -1.
"""

from __future__ import annotations

import math

from dataset_operator.ray.families import parse_line
from dataset_operator.sources.gpus import is_percent

FAMILY = "ray_node_gpus_utilization"
_INDEX = "GpuIndex"
_MAX_INDEX_CHARS = 16


def parse_gpus(text: str) -> dict[str, float]:
    """Percent by index, from lines of the family; what is told twice or cannot be is left out."""
    percents: dict[str, float] = {}
    for sample in (sample for line in text.splitlines() for sample in parse_line(line)):
        index = sample.labels.get(_INDEX, "")
        if sample.name != FAMILY or not 0 < len(index) <= _MAX_INDEX_CHARS:
            continue
        is_sound = index not in percents and is_percent(sample.value)
        percents[index] = float(sample.value) if is_sound else math.nan
    return {index: percent for index, percent in percents.items() if not math.isnan(percent)}
