"""A world with trainers that consume rows and data workers that produce them and are scaled."""

import copy
import functools
import json
from dataclasses import dataclass, replace
from typing import Any

from world import SETTINGS, World, running

from dataset_operator.api import DATA_WORKERS
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, TrainerCounters, WorkerCounters
from dataset_operator.builders.template_merge import merge
from dataset_operator.cli.scale import build_request
from dataset_operator.observed import Progress
from pipeline_runtime.config import ExperimentStatus

BY_HAND = SETTINGS.model_copy(update={"autoscale": False})


BOUNDS = {"dataWorkers": {"minReplicas": 2, "maxReplicas": 40}}


@dataclass
class Trained:
    """A world whose trainers demand `demand` rows/s; each worker has two readers with 50 rows/s."""

    world: World
    demand: float
    rows: float = 0.0
    loop: float = 0.0
    production: float = 0.0
    busy: float = 0.0
    blocked: float = 0.0
    missing: str = ""  # a counter that is missing

    def run(self, seconds: float) -> None:
        """Run passes, one period apart."""
        for _ in range(round(seconds / PERIOD_SECONDS)):
            self.step()

    def step(self, seconds: float = PERIOD_SECONDS) -> None:
        if self.world.ray_cluster is None:
            self._pass(seconds)
            return
        workers = group_of(self.world)["replicas"]
        supply = 100.0 * workers
        rows = min(self.demand, supply) * seconds
        self.rows += rows
        self.loop += seconds
        self.production += seconds * max(0.0, 1.0 - supply / self.demand)
        self.busy += rows / 50.0
        self.blocked += 2 * workers * seconds - rows / 50.0
        counters = Counters(
            trainer=TrainerCounters(
                rows=self.rows,
                steps=self.rows / 10.0,
                loop_seconds=self.loop,
                production_seconds=self.production,
            ),
            workers=WorkerCounters(
                rows=self.rows,
                read_seconds=0.3 * self.busy,
                compute_seconds=0.7 * self.busy,
                blocked_seconds=self.blocked,
                idle_seconds=0.0,
            ),
            data_workers=float(workers),
            readers=2.0 * workers,
        )
        if self.missing:
            counters = replace(counters, **{self.missing: None})
        self.world.progress = Progress(ratio=0.5, counters=counters)
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.world.step(seconds)
        stored = json.dumps(self.world.status)
        ExperimentStatus.model_validate_json(stored, by_alias=True, by_name=False)


def trained(demand: float, replicas: int = 2, **spec: Any) -> Trained:
    world = running(SETTINGS, **(BOUNDS | spec))
    assert world.ray_cluster is not None
    group_of(world)["replicas"] = replicas
    return Trained(world, demand)


def group_of(world: World) -> dict[str, Any]:
    assert world.ray_cluster is not None
    groups = world.ray_cluster["spec"]["workerGroupSpecs"]
    return next(group for group in groups if group["groupName"] == DATA_WORKERS)


def draining() -> Trained:
    """Build a run that drains three of its eight data workers."""
    run = copy.deepcopy(_draining())
    assert len(run.world.status["dataWorkers"]["draining"]) == 3
    return run


@functools.cache
def _draining() -> Trained:
    run = trained(demand=350.0, replicas=8, backoffLimit=1000)
    while "draining" not in run.world.status["dataWorkers"]:
        run.step()
    return run


def victims_of(world: World) -> list[str]:
    return [victim["name"] for victim in world.status["dataWorkers"].get("draining", ())]


def listed(world: World) -> list[str]:
    return (group_of(world).get("scaleStrategy") or {}).get("workersToDelete") or []


def finish_draining(run: Trained) -> None:
    noted = run.world.status.get("dataWorkers", {}).get("draining", ())
    run.world.drained |= {f"ip-of-{victim['name']}" for victim in noted}


def settle_by_hand(run: Trained, seconds: float) -> None:
    """Switch the autoscaling policy off."""
    run.world.settings = BY_HAND
    run.run(seconds)


def scale_by_hand(world: World, wanted: int) -> None:
    """Write a number into the RayCluster by hand, as `lastmile scale` of 0.1.0 did.

    Draining workers are deleted at once, so that the number is that of the staying workers.
    """
    if world.ray_cluster is None:
        return
    group = group_of(world)
    draining = world.status.get("dataWorkers", {}).get("draining", ())
    listed = group.get("scaleStrategy", {}).get("workersToDelete", [])
    unlisted = [victim for victim in draining if victim["name"] not in listed]
    names = [victim["name"] for victim in unlisted if not victim.get("lost")]
    replicas = wanted + len(unlisted) - len(names)
    change: dict[str, Any] = {"replicas": replicas}
    if names:
        change["scaleStrategy"] = {"workersToDelete": [*listed, *names]}
    change["maxReplicas"] = max(replicas, group["maxReplicas"])
    groups = world.ray_cluster["spec"]["workerGroupSpecs"]
    changed = [{**g, **change} if g is group else g for g in groups]
    world.ray_cluster = merge(world.ray_cluster, {"spec": {"workerGroupSpecs": changed}})


def request_number(world: World, wanted: int) -> None:
    """Request a number as `lastmile scale` does."""
    request = build_request(wanted)["metadata"]["annotations"]
    world.document["metadata"].setdefault("annotations", {}).update(request)


def bounds_of(world: World) -> tuple[int, int]:
    workers = world.document["spec"]["dataWorkers"]
    return workers["minReplicas"], workers["maxReplicas"]
