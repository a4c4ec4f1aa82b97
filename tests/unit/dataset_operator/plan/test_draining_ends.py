"""Every drain ends, whatever happens to pods, nodes, the operator and the number."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_tests import examples
from trained import (
    BY_HAND,
    Trained,
    bounds_of,
    draining,
    finish_draining,
    group_of,
    request_number,
    scale_by_hand,
)
from world import World

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.plan.draining import DRAIN_SECONDS


def _lose_a_node(run: Trained) -> None:
    """Lose a node: its pods are deleted, but never end."""
    world = run.world
    name = next((name for name in world.workers if name not in world.dead), None)
    if name is not None and len(world.dead) < 4:
        world.dead.add(name)
        world.end_worker(name)


def _scale_up_by_hand(run: Trained) -> None:
    most = bounds_of(run.world)[1]
    if run.world.ray_cluster is not None and most >= len(run.world.workers):
        scale_by_hand(run.world, most)


def _unready_one(run: Trained) -> None:
    run.world.unwell |= set(list(run.world.workers)[:1])


def _crash(run: Trained, *, after_drain: bool) -> None:
    run.world.now += timedelta(seconds=PERIOD_SECONDS)
    run.world.crash(after_drain=after_drain)


def _go(run: Trained) -> None:
    noted = run.world.status.get("dataWorkers", {}).get("draining", ())
    run.world.workers.pop(next((victim["name"] for victim in noted), ""), None)


EVENTS: dict[str, Callable[[Trained], Any]] = {
    "step": lambda run: None,
    "drained": finish_draining,
    "gone": _go,
    "more": lambda run: setattr(run, "demand", 1500.0),
    "less": lambda run: setattr(run, "demand", 100.0),
    "new operator": lambda run: setattr(run.world, "memory", None),
    "killed before it drains": lambda run: _crash(run, after_drain=False),
    "killed before it patches": lambda run: _crash(run, after_drain=True),
    "node lost": _lose_a_node,
    "nodes back": lambda run: run.world.dead.clear(),
    "unready": _unready_one,
    "ready": lambda run: run.world.unwell.clear(),
    "hand scale, all": _scale_up_by_hand,
    "hand scale, a few": lambda run: scale_by_hand(run.world, bounds_of(run.world)[0]),
    "request, all": lambda run: request_number(run.world, bounds_of(run.world)[1]),
    "request, a few": lambda run: request_number(run.world, bounds_of(run.world)[0]),
    "bounds lowered": lambda run: run.world.edit(dataWorkers={"minReplicas": 2, "maxReplicas": 3}),
    "bounds raised": lambda run: run.world.edit(dataWorkers={"minReplicas": 9, "maxReplicas": 40}),
    "409": lambda run: setattr(run.world, "num_conflicts", run.world.num_conflicts + 1),
    "head lost": lambda run: run.world.lose_head(),
    "cluster lost": lambda run: run.world.lose_cluster(),
    "two minutes": lambda run: run.run(120),
}


def count_wanted(world: World) -> int:
    workers = world.status["dataWorkers"]
    staying: int = workers.get("drainingTo", group_of(world)["replicas"])
    return staying


def count_lost(world: World) -> int:
    noted = world.status.get("dataWorkers", {}).get("draining", ())
    return sum(bool(victim.get("lost")) for victim in noted)


def _end_drains(run: Trained) -> None:
    """Run for as long as drains may take.

    A drain lasts until the deadline; then its pods end, and one more pass clears the list. At most
    three follow each other: one that was begun, as many victims as a status holds, and the rest.
    A refused write is made a period later.
    """
    refused = run.world.num_conflicts * PERIOD_SECONDS
    run.run(3 * (DRAIN_SECONDS + 2 * PERIOD_SECONDS) + refused)


TAKES = "hand scale, a few"  # KubeRay chooses the pods
LOWERED = ["request, all", "two minutes", "unready", "bounds lowered"]


# Fewer workers stay than minReplicas allows a moment later; the bounds hold nevertheless.
# Three drains in a row.
@example(events=["hand scale, all", "unready", "409", "bounds lowered"])
@example(events=["hand scale, all", "bounds lowered", "unready", "bounds raised", "step"])
# The node of a draining worker is lost before the worker is listed: long before, just before.
@example(events=[*LOWERED, *["bounds lowered"] * 2, "node lost"])
@example(events=[*LOWERED, *["step"] * 6, "node lost"])
# The lost worker ends while the write that removes its replacement is refused: one step later.
@example(
    events=[
        *("node lost", "bounds raised", "409", "hand scale, all"),
        *("killed before it drains", "409", "gone", "409"),
    ]
)
@given(
    events=st.lists(st.sampled_from(sorted(EVENTS.keys() - {TAKES})), max_size=20)
    | st.lists(st.sampled_from(sorted(EVENTS)), max_size=20)
)
@settings(max_examples=examples(10), deadline=None)
def test_every_drain_ends(events: list[str]) -> None:
    run = draining()
    world = run.world
    made_up_for = 0
    for event in events:
        before, made_up_for = made_up_for, count_lost(world)  # their nodes may be back now
        EVENTS[event](run)
        if world.num_conflicts:  # nothing can be undone in this step
            made_up_for = max(before, made_up_for)
        run.step()
        if TAKES not in events:
            assert world.taken == []
        assert len(set(world.workers) - set(world.ending)) <= 40 + made_up_for
    world.settings = BY_HAND
    _end_drains(run)
    lowest, highest = bounds_of(world)
    assert lowest <= count_wanted(world)
    # While KubeRay waits for a deleted pod on a lost node, no drain ends, and none can follow.
    if not world.awaited & world.dead:
        assert len(set(world.workers) - world.dead) == count_wanted(world) <= highest
    if world.dead:
        world.dead.clear()
        _end_drains(run)
    assert "draining" not in world.status["dataWorkers"]
    assert not (group_of(world).get("scaleStrategy") or {}).get("workersToDelete")
    assert len(world.workers) == group_of(world)["replicas"]
    assert lowest <= len(world.workers) <= highest == group_of(world)["maxReplicas"]
    if TAKES not in events:
        assert world.taken == []
