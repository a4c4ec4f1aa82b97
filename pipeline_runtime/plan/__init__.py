"""Planning: from an experiment to what is read, pushed down, fused and run where; pure and shown.

Before it run `config`, `sources` and `steps`; after it the feed executes the plan.
"""

from __future__ import annotations

from pipeline_runtime.plan.build import build_plan
from pipeline_runtime.plan.explain import explain, plan_document
from pipeline_runtime.plan.groups import Group, plan_groups, rows_per_chunk, share_groups
from pipeline_runtime.plan.model import Plan, PlannedStep, Stage, StreamPlan

__all__ = [
    "Group",
    "Plan",
    "PlannedStep",
    "Stage",
    "StreamPlan",
    "build_plan",
    "explain",
    "plan_document",
    "plan_groups",
    "rows_per_chunk",
    "share_groups",
]
