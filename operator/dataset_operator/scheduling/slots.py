"""Slots of reconcile passes, shared fairly between namespaces.

A pass needs a slot while it works: while it waits for the API server, decides and writes. It gives
the slot back while it waits for something that a tenant controls, such as a Ray head (`outside`).
So heads that never answer hold no slot, however many there are.

The next free slot goes to the namespace that holds the fewest. Among equals it goes to one where an
edit waits, then to the one that was served longest ago. Inside a namespace the order is: passes
that come back from outside, edits, then everything else by deadline. If edits never stop, every
`EDITS_IN_A_ROW` of them one of the others gets a slot.

The number of passes in progress, with or without a slot, is bounded as well, for each namespace and
for all, since each pass keeps its observed objects in memory. `passes` decides which passes wait;
this module only decides which is next, and reads no clock except to measure waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

# Passes with a slot wait for the API server most of their time; more of them only queue up there.
MAX_SLOTS = 20
# Passes of one namespace that are in progress; those without a slot wait for Ray.
MAX_IN_PROGRESS_EACH = 32
# The same for all namespaces; a namespace with no pass in progress may always begin one.
MAX_IN_PROGRESS = 320
# Edits of one namespace that may go first, one after another, while its other passes wait.
EDITS_IN_A_ROW = 8


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """The place of one pass that is in progress.

    Attributes:
        is_edit: whether an edit by a user, who waits for the result, triggered the pass.
        is_held: whether the pass has a slot at present.
        waited: seconds that it waited for a slot after it had begun.
    """

    slots: Slots
    namespace: str
    is_edit: bool
    is_held: bool = True
    waited: float = 0.0
    _granted: asyncio.Future[None] | None = None

    def enter(self) -> None:
        """Make this the slot of the present task."""
        _CURRENT.set(self)

    def leave(self) -> None:
        """Give the slot to the next pass, for a while or for good."""
        if self.is_held:
            self.is_held = False
            self.slots.release(self)

    async def come_back(self) -> None:
        """Wait for a slot again."""
        started = self.slots.clock()
        self._granted = asyncio.get_running_loop().create_future()
        self.slots.ask_back(self)
        try:
            await self._granted
        finally:
            self.waited += self.slots.clock() - started

    def grant(self) -> bool:
        """Take the slot that is free now; return False if the pass was cancelled meanwhile."""
        assert self._granted is not None
        if self._granted.cancelled():
            return False
        self._granted.set_result(None)
        self.is_held = True
        return True


_CURRENT: ContextVar[Slot | None] = ContextVar("slot", default=None)
Begin = Callable[[Slot], bool]  # begins a pass; returns False if it is no longer needed


@contextlib.asynccontextmanager
async def outside() -> AsyncIterator[None]:
    """Give the slot of the present pass back until the block ends; outside of a pass do nothing."""
    slot = _CURRENT.get()
    if slot is None:
        yield
        return
    token = _CURRENT.set(None)  # tasks that the block starts hold no slot
    slot.leave()
    try:
        yield
    except Exception:  # a cancelled pass needs no slot any more
        await slot.come_back()
        raise
    else:
        await slot.come_back()
    finally:
        _CURRENT.reset(token)


@dataclass(slots=True)
class _Share:
    """The passes of one namespace: how many it has in progress, and what waits.

    Attributes:
        served: when it last got a slot, counted in slots.
        others: a heap by deadline.
    """

    served: int
    num_held: int = 0
    num_in_progress: int = 0
    edits_in_a_row: int = 0
    returning: deque[Slot] = field(default_factory=deque)
    edits: deque[Begin] = field(default_factory=deque)
    others: list[tuple[float, int, Begin]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """True if the namespace has no pass in progress or waiting, so its share may be dropped."""
        return not (self.num_in_progress or self.returning or self.edits or self.others)

    @property
    def prefers_edits(self) -> bool:
        """True if the next pass that begins is an edit."""
        return bool(self.edits) and not (self.others and self.edits_in_a_row >= EDITS_IN_A_ROW)

    def take(self) -> Begin:
        """Remove the next pass that is to begin from the queue."""
        if self.prefers_edits:
            self.edits_in_a_row += 1
            return self.edits.popleft()
        self.edits_in_a_row = 0
        return heapq.heappop(self.others)[2]


@dataclass(slots=True, kw_only=True)
class Slots:
    """All slots, and the passes that wait for one.

    Attributes:
        total: number of passes that may hold a slot at the same time.
        in_progress_each, in_progress: bounds on passes in progress, of a namespace and of all.
        clock: seconds, monotonic.
    """

    total: int = MAX_SLOTS
    in_progress_each: int = MAX_IN_PROGRESS_EACH
    in_progress: int = MAX_IN_PROGRESS
    clock: Callable[[], float] = time.monotonic
    _num_held: int = 0
    _num_in_progress: int = 0
    _shares: dict[str, _Share] = field(default_factory=dict)
    _counter: Iterator[int] = field(default_factory=itertools.count)

    @property
    def each(self) -> int:
        """Number of slots that one namespace may hold, so that others find a free one at once."""
        return self.total - self.total // 4

    def ask(self, namespace: str, begin: Begin, *, is_edit: bool, deadline: float) -> None:
        """Queue a pass, which begins as soon as its turn comes."""
        share = self._share(namespace)
        if is_edit:
            share.edits.append(begin)
        else:
            heapq.heappush(share.others, (deadline, next(self._counter), begin))
        self._serve()

    def ask_back(self, slot: Slot) -> None:
        """Queue a pass that left its slot, for another one."""
        self._share(slot.namespace).returning.append(slot)
        self._serve()

    def release(self, slot: Slot) -> None:
        """Give the slot of a pass to the next."""
        self._num_held -= 1
        self._shares[slot.namespace].num_held -= 1
        self._serve()

    def end(self, slot: Slot) -> None:
        """Forget a pass that has ended."""
        share = self._shares[slot.namespace]
        share.num_in_progress -= 1
        self._num_in_progress -= 1
        slot.leave()
        self._forget_idle(slot.namespace)
        self._serve()

    def _share(self, namespace: str) -> _Share:
        # A new namespace counts as just served: it goes behind the waiting ones.
        return self._shares.setdefault(namespace, _Share(next(self._counter)))

    def _forget_idle(self, namespace: str) -> None:
        share = self._shares.get(namespace)
        if share is not None and share.is_idle:
            del self._shares[namespace]

    def _may_begin(self, share: _Share) -> bool:
        if not (share.edits or share.others):
            return False
        is_full = self._num_in_progress >= self.in_progress
        return share.num_in_progress < (1 if is_full else self.in_progress_each)

    def _may_be_served(self, share: _Share) -> bool:
        return share.num_held < self.each and bool(share.returning or self._may_begin(share))

    def _serve(self) -> None:
        """Hand out free slots."""
        while self._num_held < self.total:
            waiting = [name for name, share in self._shares.items() if self._may_be_served(share)]
            if not waiting:
                return
            self._serve_next(min(waiting, key=lambda name: _rank(self._shares[name])))

    def _serve_next(self, namespace: str) -> None:
        """Give a slot to the namespace's next pass, if it still wants one."""
        share = self._shares[namespace]
        if share.returning:
            is_taken = share.returning.popleft().grant()
        else:
            is_edit = share.prefers_edits
            begin = share.take()
            is_taken = begin(Slot(slots=self, namespace=namespace, is_edit=is_edit))
            share.num_in_progress += is_taken
            self._num_in_progress += is_taken
        if is_taken:
            share.served = next(self._counter)
            share.num_held += 1
            self._num_held += 1
        self._forget_idle(namespace)


def _rank(share: _Share) -> tuple[int, bool, int]:
    """Return the rank of a namespace among the waiting ones; the smallest is served first."""
    is_edit = share.returning[0].is_edit if share.returning else share.prefers_edits
    return share.num_held, not is_edit, share.served
