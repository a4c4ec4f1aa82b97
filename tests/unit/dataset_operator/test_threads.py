"""Namespaces share threads: each gets its turn, and none gets all threads."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

from dataset_operator.scheduling.threads import Threads


class Gate:
    """Functions that run until the test releases them, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._open: dict[str, threading.Event] = {}

    def work(self, name: str) -> Callable[[], str]:
        self._open[name] = threading.Event()

        def run() -> str:
            self.began.append(name)
            assert self._open[name].wait(60)
            return name

        return run

    def open(self, *names: str) -> None:
        for name in names or list(self._open):
            self._open[name].set()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.001)


def test_namespaces_share_threads_in_turn() -> None:
    async def story() -> None:
        gate, threads = Gate(), Threads(max_threads=3, max_of_one=2)
        names = [f"a{index}" for index in range(5)] + ["b0", "c0", "b1"]
        tasks = [asyncio.create_task(threads.run(name[0], gate.work(name))) for name in names]
        await until(lambda: len(gate.began) == 3)
        assert sorted(gate.began) == ["a0", "a1", "b0"]
        gate.open("b0")
        await until(lambda: len(gate.began) == 4)
        assert gate.began[3] == "c0"  # two of a run, and b had its turn
        gate.open("c0")
        await until(lambda: len(gate.began) == 5)
        assert gate.began[4] == "b1"
        gate.open()
        assert await asyncio.gather(*tasks) == names

    asyncio.run(story())


def test_failed_or_cancelled_calls_free_their_thread() -> None:
    async def story() -> None:
        gate, threads = Gate(), Threads(max_threads=1, max_of_one=1)

        def fail() -> None:
            raise ValueError("a defect")

        with pytest.raises(ValueError, match="defect"):
            await threads.run("a", fail)
        running = asyncio.create_task(threads.run("a", gate.work("first")))
        await until(lambda: gate.began == ["first"])
        waiting = asyncio.create_task(threads.run("a", gate.work("never")))
        last = asyncio.create_task(threads.run("b", gate.work("last")))
        await asyncio.sleep(0)
        for task in (running, waiting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert gate.began == ["first"]  # it keeps its thread to the end
        gate.open()
        assert await last == "last"
        assert gate.began == ["first", "last"]

    asyncio.run(story())
