"""The policy's memory survives the operator in an experiment's status."""

import json

from autoscaling_story import Story
from hypothesis import given
from hypothesis import strategies as st
from world import SETTINGS, running

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.intervals import (
    Memory,
    Move,
    SaturationPoint,
    note_recommendation,
)
from dataset_operator.autoscaling.saved import MAX_RECOMMENDATIONS, restore, save
from pipeline_runtime.config import ScalingStatus

MINUTE = 60.0


@given(
    since=st.integers(0, 2**31),
    recommended=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 2000)), max_size=60),
    verified=st.integers(0, 2000),
    point=st.none() | st.tuples(st.integers(1, 2000), st.integers(1, 10**9)),
)
def test_what_is_saved_is_restored(
    since: int,
    recommended: list[tuple[int, int]],
    verified: int,
    point: tuple[int, int] | None,
) -> None:
    at, memory = float(since), Memory(since=float(since), verified=verified)
    for pause, workers in recommended:
        at += pause
        memory = note_recommendation(memory, at, workers, window=900.0)
    if point is not None:
        found = SaturationPoint(workers=point[0], until=at + 60.0, rows_per_second=float(point[1]))
        memory = Memory(
            since=memory.since,
            verified=verified,
            recommendations=memory.recommendations,
            saturation=found,
        )
    saved = save(memory)
    ScalingStatus.model_validate_json(json.dumps(saved.to_document()), by_alias=True, by_name=False)
    restored = restore(saved, at, at)
    assert restored.verified == memory.verified
    assert restored.saturation == memory.saturation
    assert restored.recommendations == memory.recommendations[-MAX_RECOMMENDATIONS:]


def test_a_new_operator_continues_the_stabilisation() -> None:
    kept, lost = (Story(demand=1000, rate=100, workers=40) for _ in range(2))
    for story in (kept, lost):
        story.run(4 * MINUTE)
    kept.memory = restore(save(kept.memory), kept.now, kept.now)
    lost.memory = Memory(since=lost.now)
    assert kept.run(3 * MINUTE)[-1].desired == 30
    assert lost.run(3 * MINUTE)[-1].desired == 40  # nobody knows what was recommended


def test_a_settled_run_saves_the_same() -> None:
    story = Story(demand=1000, rate=100, workers=11)
    story.run(10 * MINUTE)
    saved = save(story.memory)
    story.run(60 * MINUTE)
    assert save(story.memory) == saved


def test_a_long_absence_drops_the_recommendations() -> None:
    story = Story(demand=1000, rate=100, workers=40)
    story.run(4 * MINUTE)
    saved = save(story.memory)
    later = story.now + 60 * MINUTE
    assert restore(saved, later, later).since == story.memory.since
    assert restore(saved, later, story.now).since == later
    assert restore(saved, later, story.now).recommendations == ()


def test_cut_recommendations_move_the_beginning() -> None:
    memory = Memory(since=0.0)
    for index in range(MAX_RECOMMENDATIONS + 8):
        memory = note_recommendation(memory, 10.0 * index, 1 + index % 2, window=3600.0)
    assert restore(save(memory), 400.0, 400.0).since == 80.0


def test_moves_survive() -> None:
    story = Story(demand=1000, rate=100, workers=8)
    story.run(3 * MINUTE)
    assert story.memory.moves
    restored = restore(save(story.memory), story.now, story.now)
    assert [(m.before, m.after) for m in restored.moves] == [(8, 11)]


def test_a_new_operator_keeps_moves_and_saturation() -> None:
    world = running(SETTINGS, dataWorkers={"minReplicas": 2, "maxReplicas": 40})
    point = SaturationPoint(workers=2, until=world.now.timestamp() + 900.0, rows_per_second=7.0)
    move = Move(at=world.now.timestamp(), before=3, after=2)
    memory = Memory(since=world.now.timestamp(), saturation=point, moves=(move,))
    world.document["status"]["scaling"], world.memory = save(memory).to_document(), None
    assert "trainer" not in world.status
    decided = world.step(PERIOD_SECONDS).memory
    assert decided is not None
    assert (decided.saturation, decided.moves) == (point, (move,))
