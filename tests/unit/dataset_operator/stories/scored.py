"""A world whose data workers send rows to groups of inference workers, and store a table."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from world import SETTINGS, World, running

from dataset_operator.autoscaling.inference import InferenceCounters
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, TrainerCounters, WorkerCounters
from dataset_operator.observed import Progress
from dataset_operator.readings import Readings
from pipeline_runtime.config import ExperimentStatus

LARGE, SMALL = "large", "small"
RATE = 100.0  # rows per second that a process scores, and that a data worker sends


def build_spec(*groups: dict[str, Any], **spec: Any) -> dict[str, Any]:
    models = [
        {
            "name": group["name"],
            "onnx": {"uri": "m"},
            "outputs": [{"name": group["name"], "type": "float32"}],
            "workerGroup": group["name"],
        }
        for group in groups
    ]
    return {
        "pipeline": [{"predict": {"models": models}}],
        "output": {"parquet": {"uri": "scores/"}},
        "dataWorkers": {"minReplicas": 2, "maxReplicas": 20},
        "inferenceWorkers": [{"gpusPerReplica": 0, **group} for group in groups],
        **spec,
    }


@dataclass
class Scored:
    """A run that scores `total` rows; each pod has one process.

    Attributes:
        supply: rows per second that data workers can send to each group; None: 100 for each worker.
    """

    world: World
    total: float = 1e9
    supply: float | None = None
    rows: dict[str, float] = field(default_factory=dict)
    stored: float = 0.0
    seconds: float = 0.0
    busy: float = 0.0

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / PERIOD_SECONDS)):
            self.step()

    def step(self, seconds: float = PERIOD_SECONDS) -> None:
        world, numbers = self.world, {}
        sent = RATE * len(world.workers) if self.supply is None else self.supply
        for role, pods in world.models.items():
            name, there = role.removeprefix("inference-"), len(pods.keys() - world.ending.keys())
            rows = min(sent, RATE * there) * seconds
            self.rows[name] = self.rows.get(name, 0.0) + rows
            numbers[name] = InferenceCounters(
                workers=float(there),
                waiting=2.0 * there if sent > RATE * there else 0.0,
                rows=self.rows[name],
                busy_seconds=self.rows[name] / RATE,
            )
            sent = rows / seconds
        self.stored += sent * seconds
        self.seconds += seconds
        self.busy += 2.0 * len(world.workers) * seconds
        counters = Counters(
            trainer=TrainerCounters(
                rows=self.stored,
                steps=self.stored / 10.0,
                loop_seconds=self.seconds,
                production_seconds=self.seconds,
            ),
            workers=WorkerCounters(
                rows=self.stored,
                read_seconds=0.1 * self.busy,
                compute_seconds=0.9 * self.busy,
                blocked_seconds=0.0,
                idle_seconds=0.0,
            ),
            data_workers=float(len(world.workers)),
            readers=2.0 * len(world.workers),
        )
        done = min(1.0, self.stored / self.total)
        world.progress = Progress(
            ratio=0.75 * done, read_ratio=done, counters=counters, inference=numbers
        )
        world.step(seconds)
        stored = json.dumps(world.status)
        ExperimentStatus.model_validate_json(stored, by_alias=True, by_name=False)


def scored(
    *groups: dict[str, Any], replicas: Sequence[int] = (), total: float = 1e9, **spec: Any
) -> Scored:
    """Build a run, whose groups have some numbers of pods."""
    world = running(SETTINGS, **build_spec(*groups, **spec))
    world.readings = Readings()
    for group, number in zip(groups, replicas, strict=False):
        group_of(world, group["name"])["replicas"] = number
    return Scored(world, total)


def group_of(world: World, name: str) -> dict[str, Any]:
    assert world.ray_cluster is not None
    groups = world.ray_cluster["spec"]["workerGroupSpecs"]
    return next(group for group in groups if group["groupName"] == f"inference-{name}")


def pods_of(world: World, name: str) -> set[str]:
    return set(world.models[f"inference-{name}"])


def numbers_of(world: World, name: str) -> dict[str, Any]:
    known: list[dict[str, Any]] = world.status.get("inferenceWorkers", [])
    return next((numbers for numbers in known if numbers["name"] == name), {})


def victims_of(world: World, name: str) -> list[str]:
    return [victim["name"] for victim in numbers_of(world, name).get("draining", ())]


def finish_draining(world: World) -> None:
    """Let Ray report all victims as drained."""
    for name in (LARGE, SMALL):
        world.drained |= {f"ip-of-{victim}" for victim in victims_of(world, name)}


def edit_group(world: World, name: str, **changes: Any) -> None:
    groups = copy.deepcopy(world.document["spec"]["inferenceWorkers"])
    world.edit(inferenceWorkers=[g | changes if g["name"] == name else g for g in groups])
