"""Gives each rank of Ray Train the dataset that was built for it, with an executor of its own.

It is separate from `ray_data`, which every data worker imports, since importing `ray.train` would
be a fifth of a data worker's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray.data
import ray.train
from ray.train import DataConfig

from pipeline_runtime.feed.base import Feed
from pipeline_runtime.feed.over_ray.ray_data import RayDataFeed
from pipeline_runtime.plan.groups import Group


def dataset_name(role: str, rank: int) -> str:
    """Return the name of a rank's dataset in Ray Train."""
    return f"{role}-{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetShards:
    """Opens feeds over the datasets of Ray Train, in the rank's process."""

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> Feed:
        """Open the feed of the rank's dataset, which already has its groups and their order."""
        return RayDataFeed(ray.train.get_dataset_shard(dataset_name(role, rank)))


class OneTrainerDataConfig(DataConfig):
    """Gives every rank its own dataset, streamed from an executor of its own."""

    def __init__(self) -> None:
        super().__init__(datasets_to_split=[])

    def configure(
        self,
        datasets: dict[str, ray.data.Dataset],
        world_size: int,
        worker_handles: Any = None,
        worker_node_ids: Any = None,
        **kwargs: Any,
    ) -> list[dict[str, ray.data.DataIterator]]:
        """See DataConfig. A single split is not cut to equal lengths, so no row is lost."""
        shards = {name: ds.streaming_split(1, equal=False)[0] for name, ds in datasets.items()}
        return [shards for _ in range(world_size)]
