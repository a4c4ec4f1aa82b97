"""Passes that hold large objects: few at a time, and a hanging head holds up nobody else."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.errors import RayUnreachable
from dataset_operator.names import Owner
from dataset_operator.ray.head_requests import Heads
from dataset_operator.scheduling import places
from dataset_operator.scheduling.passes import Done, Passes, Trigger
from dataset_operator.scheduling.places import NUM_ASKING, NUM_WORKING, Places


async def idle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@dataclass
class Work:
    """A reconcile over large objects: it asks a head, then works until the test lets it end."""

    places: Places = field(default_factory=Places)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    hanging: set[str] = field(default_factory=set)
    working: set[str] = field(default_factory=set)
    holding: set[str] = field(default_factory=set)
    most_working: int = 0
    most_holding: int = 0

    async def __call__(self, namespace: str, name: str) -> None:
        async with self.places.serving(namespace):
            await places.take()
            assert namespace not in self.holding
            try:
                self.holding.add(namespace)
                self.note()
                owner = Owner(name=name, namespace=namespace, uid="u")
                jobs = Heads(cast(Any, lambda *_: self)).connect(owner, "")
                if namespace in self.hanging:
                    with pytest.raises(RayUnreachable):
                        await jobs.get("x")
                self.working.add(namespace)
                self.note()
                await self.gate.wait()
            finally:
                self.working.discard(namespace)
                self.holding.discard(namespace)

    def note(self) -> None:
        self.most_working = max(self.most_working, len(self.working))
        self.most_holding = max(self.most_holding, len(self.holding))

    async def get(self, _: str) -> None:
        """Be a head that does not answer before the test says so."""
        await self.answers.wait()
        raise RayUnreachable("no answer")


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_hanging_heads_hold_no_place_of_others() -> None:
    async def story() -> None:
        work = Work(hanging={f"silent-{index}" for index in range(NUM_ASKING)})
        work.gate.set()
        done: list[Done] = []
        passes = Passes(work, report=done.append, close_seconds=0.0)
        for namespace in sorted(work.hanging):
            for index in range(3):
                passes.wake(namespace, f"e{index}")
        await idle()
        assert (len(work.holding), done) == (NUM_ASKING, [])
        passes.wake("other", "edited", Trigger.EDIT)
        await idle()
        assert [each.result for each in done] == ["done"]
        await passes.close()

    play(story())


def test_few_passes_hold_large_objects_however_many_heads_hang() -> None:
    async def story() -> None:
        names = {f"team-{index}" for index in range(NUM_WORKING + NUM_ASKING + 5)}
        work, done = Work(hanging=names), list[Done]()
        passes = Passes(work, report=done.append, close_seconds=0.0)
        for namespace in sorted(names):
            passes.wake(namespace, "e")
        await idle()
        assert len(work.holding) == NUM_WORKING + NUM_ASKING
        work.answers.set()
        await idle()
        assert len(work.working) == NUM_WORKING
        work.gate.set()
        await idle()
        assert [each.result for each in done] == ["done"] * len(names)
        assert work.most_working == NUM_WORKING
        assert work.most_holding == NUM_WORKING + NUM_ASKING
        await passes.close()

    play(story())


@given(st.data())
def test_cancelled_passes_lose_and_double_no_place(data: st.DataObject) -> None:
    async def story() -> None:
        number = NUM_WORKING + NUM_ASKING + 2
        names = [f"team-{index % (number - 2)}" for index in range(number)]
        work = Work(hanging=set(names[::2]))
        tasks = [asyncio.create_task(work(namespace, "e")) for namespace in names]
        for _ in range(data.draw(st.integers(0, 6))):
            await asyncio.sleep(0)
        steps = [work.answers.set, work.gate.set, *(task.cancel for task in tasks[:4])]
        for step in data.draw(st.permutations(steps)):
            step()
            for _ in range(data.draw(st.integers(0, 6))):
                await asyncio.sleep(0)
        await asyncio.wait(tasks, timeout=60)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert work.most_holding <= NUM_WORKING + NUM_ASKING
        assert work.most_working <= NUM_WORKING
        semaphores = [work.places.working, work.places.asking]
        for semaphore, size in zip(semaphores, [NUM_WORKING, NUM_ASKING], strict=True):
            for _ in range(size):
                assert not semaphore.locked()
                await semaphore.acquire()
            assert semaphore.locked()

    play(story())
