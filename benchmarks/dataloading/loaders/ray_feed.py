"""Lastmile's plain path, Ray Data under the same stream: `pipelineOptions.feed: RayData`."""

from __future__ import annotations

from collections.abc import Sequence

import ray

from benchmarks.harness.errors import BenchmarkError
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.base import Feed
from pipeline_runtime.feed.over_ray.data_config import OneTrainerDataConfig
from pipeline_runtime.feed.over_ray.ray_data import RayDataFeed, RayDataOptions, build_dataset
from pipeline_runtime.plan import Plan
from pipeline_runtime.plan.groups import Group


def open_ray_feed(plan: Plan, groups: Sequence[Group], chunk_rows: int) -> Feed:
    """Open the feed of a single trainer with the calls of `run.on_ray`.

    Raises BenchmarkError if Ray does not run: Ray Data would start it while the clock runs.
    """
    if not ray.is_initialized():
        raise BenchmarkError(f"{plan.feed.reason}: must run where Ray is up, see `needs_ray`")
    options = RayDataOptions(preserve_order=plan.preserve_order, broadcast=plan.broadcast)
    dataset = build_dataset(plan.training, groups, chunk_rows, options, _ignore)
    shards = OneTrainerDataConfig().configure({"training": dataset}, world_size=1)
    return RayDataFeed(shards[0]["training"])


def _ignore(error: LastmileError) -> None:
    """Ignore the report of a failure: there is no monitor, and Ray raises the failure as well."""
    del error
