"""Slots: shared fairly between namespaces, free while Ray is asked, never lost or doubled."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.scheduling.passes import Done, Passes, Trigger
from dataset_operator.scheduling.slots import (
    EDITS_IN_A_ROW,
    MAX_IN_PROGRESS_EACH,
    MAX_SLOTS,
    Slots,
    outside,
)

HEADS = 400


@dataclass
class Work:
    """A reconcile: it asks a head outside its slot, then works in it until the gate opens."""

    hanging: set[str] = field(default_factory=set)  # namespaces whose heads never answer
    begun: list[str] = field(default_factory=list)
    asking: Counter[str] = field(default_factory=Counter)
    most_asking: Counter[str] = field(default_factory=Counter)
    working: Counter[str] = field(default_factory=Counter)
    most_working: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, namespace: str, name: str) -> None:
        self.begun.append(f"{namespace}/{name}")
        async with outside():
            self.asking[namespace] += 1
            self.most_asking |= self.asking
            if namespace in self.hanging:
                await self.answers.wait()
            self.asking[namespace] -= 1
        self.working[namespace] += 1
        self.most_working = max(self.most_working, self.working.total())
        try:
            await self.gate.wait()
        finally:
            self.working[namespace] -= 1


async def idle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


@pytest.mark.parametrize("trigger", Trigger)
def test_an_edit_is_handled_while_heads_hang(trigger: Trigger) -> None:
    async def story() -> None:
        work = Work(hanging={"a"})
        work.gate.set()
        done: list[Done] = []
        passes = Passes(work, report=done.append, close_seconds=0.0)
        for index in range(HEADS):
            passes.wake("a", f"e{index}", trigger)
        await idle()
        assert not done
        passes.wake("b", "edited", Trigger.EDIT)
        await idle()
        assert [each.result for each in done] == ["done"]
        assert work.begun[-1] == "b/edited"
        await passes.close()

    play(story)


def test_passes_in_progress_are_bounded_for_each_namespace() -> None:
    async def story() -> None:
        work = Work(hanging={"a", "c"})
        work.gate.set()
        passes = Passes(work)
        for index in range(HEADS):
            passes.wake("a", f"e{index}")
            passes.wake("c", f"e{index}")
        await idle()
        assert work.most_asking == {"a": MAX_IN_PROGRESS_EACH, "c": MAX_IN_PROGRESS_EACH}
        work.answers.set()
        await idle()
        await idle()
        assert len(work.begun) == len(set(work.begun)) == 2 * HEADS
        assert work.most_asking["a"] == MAX_IN_PROGRESS_EACH

    play(story)


def test_a_namespace_can_start_a_pass_at_the_global_bound() -> None:
    begun: list[str] = []
    slots = Slots(total=4, in_progress_each=3, in_progress=6)

    def begin(namespace: str) -> None:
        def start(slot: Any) -> bool:
            begun.append(namespace)
            asyncio.get_running_loop().call_soon(slot.leave)
            return True

        slots.ask(namespace, start, is_edit=False, deadline=0.0)

    async def story() -> None:
        for namespace in ("a", "b", "c", "c", "d") * 4:
            begin(namespace)
        await idle()
        assert Counter(begun) == {"a": 2, "b": 2, "c": 2, "d": 1}  # d had no pass in progress
        for namespace in ("a", "e", "e"):
            begin(namespace)
        await idle()
        assert begun[7:] == ["e"]

    play(story)


def test_no_namespace_takes_all_slots() -> None:
    async def story() -> None:
        work = Work()
        passes = Passes(work, close_seconds=0.0)
        for index in range(HEADS):
            passes.wake("a", f"e{index}")
        await idle()
        assert work.working["a"] == MAX_SLOTS - MAX_SLOTS // 4
        passes.wake("b", "e", Trigger.CLOCK)
        await idle()
        assert work.working["b"] == 1
        await passes.close()

    play(story)


def order_of(wakes: list[tuple[str, str, Trigger]], **more: Any) -> list[str]:
    """Return the order in which passes that wait for one slot begin."""

    async def story() -> None:
        passes = Passes(reconcile, max_concurrent=1, **more)
        passes.wake("z", "first")
        await idle()
        for namespace, name, trigger in wakes:
            passes.wake(namespace, name, trigger)
        gate.set()
        await idle()
        await idle()

    gate, begun = asyncio.Event(), list[str]()

    async def reconcile(namespace: str, name: str) -> None:
        await gate.wait()
        begun.append(name)

    play(story)
    return begun[1:]


def test_waiting_namespaces_take_turns() -> None:
    wakes = [("a", f"a{index}", Trigger.CLOCK) for index in range(3)]
    wakes += [("b", f"b{index}", Trigger.CLOCK) for index in range(2)]
    wakes += [("c", "c0", Trigger.CLOCK)]
    assert order_of(wakes) == ["a0", "b0", "c0", "a1", "b1", "a2"]


def test_an_edit_precedes_other_waiting_passes() -> None:
    wakes = [(namespace, f"{namespace}{i}", Trigger.CHANGE) for i in range(2) for namespace in "ab"]
    wakes += [("b", "edit", Trigger.EDIT)]
    assert order_of(wakes) == ["edit", "a0", "b0", "a1", "b1"]


def test_an_old_backlog_does_not_overtake_an_edit() -> None:
    now = 0.0

    async def story() -> None:
        nonlocal now
        passes = Passes(reconcile, clock=lambda: now, max_concurrent=1)
        passes.wake("a", "first")
        for index in range(HEADS):
            passes.wake("a", f"clock{index}", Trigger.CLOCK)
        await idle()
        now = 402.0
        passes.wake("a", "edit", Trigger.EDIT)
        gate.set()
        await idle()
        assert begun[:2] == ["first", "edit"]

    gate, begun = asyncio.Event(), list[str]()

    async def reconcile(namespace: str, name: str) -> None:
        await gate.wait()
        begun.append(name)

    play(story)


def test_endless_edits_leave_every_ninth_slot_to_others() -> None:
    wakes = [("a", f"clock{index}", Trigger.CLOCK) for index in range(2)]
    wakes += [("a", f"edit{index}", Trigger.EDIT) for index in range(2 * EDITS_IN_A_ROW + 1)]
    order = order_of(wakes)
    assert [order.index("clock0"), order.index("clock1")] == [
        EDITS_IN_A_ROW,
        2 * EDITS_IN_A_ROW + 1,
    ]


def test_a_flood_of_edits_does_not_delay_other_namespaces() -> None:
    wakes = [("a", f"a{index}", Trigger.EDIT) for index in range(50)]
    wakes += [("b", "edit", Trigger.EDIT), ("b", "clock", Trigger.CLOCK)]
    order = order_of(wakes)
    assert order[1] == "edit"
    assert "clock" in order


def test_a_returning_pass_precedes_a_new_pass() -> None:
    async def story() -> None:
        work = Work(hanging={"a"})
        passes = Passes(work, max_concurrent=1)
        passes.wake("a", "asks")
        await idle()
        passes.wake("b", "works")
        passes.wake("a", "next")
        await idle()
        assert work.begun == ["a/asks", "b/works", "a/next"]  # both passes of a ask Ray
        passes.wake("a", "last")
        work.answers.set()
        await idle()
        assert work.working["b"] == 1
        work.gate.set()
        await idle()
        assert work.begun[-1] == "a/last"
        assert work.most_working == 1

    play(story)


def test_the_reported_wait_excludes_the_wait_for_ray() -> None:
    now = 0.0

    async def story() -> None:
        nonlocal now
        done: list[Done] = []
        work = Work(hanging={"a"})
        passes = Passes(work, clock=lambda: now, max_concurrent=1, report=done.append)
        passes.wake("a", "asks")
        await idle()
        now = 10.0  # Ray has answered, but the slot is occupied
        passes.wake("b", "works")
        await idle()
        work.answers.set()
        await idle()
        now = 13.0
        work.gate.set()
        await idle()
        assert [(each.seconds, each.waited) for each in done] == [(3.0, 0.0), (13.0, 3.0)]

    play(story)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sampled_from(Trigger)), max_size=40
    ),
    st.sets(st.sampled_from("abc")),
    st.integers(0, 60),
    st.booleans(),
)
def test_hanging_or_cancelled_passes_lose_no_slot(
    wakes: list[tuple[str, int, Trigger]], hanging: set[str], turns: int, answers: bool
) -> None:
    async def story() -> None:
        work = Work(hanging=hanging)
        work.gate.set()
        passes = Passes(work, max_concurrent=3, close_seconds=0.0)
        for namespace, index, trigger in wakes:
            passes.wake(namespace, f"e{index}", trigger)
        for _ in range(turns):
            await asyncio.sleep(0)
        if answers:
            work.answers.set()
            await idle()
            woken = {(namespace, f"e{index}") for namespace, index, _ in wakes}
            assert {tuple(each.split("/")) for each in work.begun} == woken
        else:
            await passes.close()
        assert work.most_working <= 3
        slots = passes._slots
        assert (slots._num_held, slots._num_in_progress) == (0, 0)
        assert not answers or not slots._shares

    play(story)
