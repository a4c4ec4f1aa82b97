"""Candidates for a lease while the API server and its store die, restart or are slow.

Each is a process that prints the moments at which it may act: never two at a time, and one in the
end.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest
from recorded import Recorder, recording
from restarting import API_SERVER, ETCD, answers, kill, running_box, start, until

from dataset_operator.election.elector import Terms
from dataset_operator.election.guard import EXIT_LEASE_LOST
from tools.cluster.binaries import Binaries
from tools.cluster.control_plane import ControlPlane

PROGRAM = Path(__file__).parents[1] / "stages" / "standing_candidate.py"
SHORT = Terms(name="", namespace="default", duration_seconds=9, deadline_seconds=6, retry_seconds=1)
# Far beyond any wait of a test, so that the end of the lease causes nothing.
LONG = replace(SHORT, duration_seconds=3600, deadline_seconds=1800)
BOTH = (ETCD, API_SERVER)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own_box(parts: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with running_box(tmp_path_factory.mktemp("election") / "box", parts) as box:
        yield box


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A candidate for the lease, its log, and the moments at which it acted."""

    name: str
    process: subprocess.Popen[bytes]
    moments: Path
    log: Path

    def list_moments(self) -> list[float]:
        return [float(line) for line in self.moments.read_text().splitlines()]

    async def acts(self) -> None:
        """Wait until it acts once more."""
        before = len(self.list_moments())
        await until(self._when(lambda: len(self.list_moments()) > before))

    async def stands_by(self, leader: "Standing") -> None:
        words = re.compile(rf"standing by.*\b{leader.name}\b")
        await until(self._when(lambda: words.search(self.log.read_text()) is not None))

    async def ends(self) -> int:
        async with asyncio.timeout(60):
            while (code := self.process.poll()) is None:
                await asyncio.sleep(0.1)
        return code

    def _when(self, is_so: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return is_so()

        return check


@dataclass(slots=True, kw_only=True)
class Candidates:
    """Starts the candidates for one lease."""

    box: ControlPlane
    folder: Path
    terms: Terms
    stack: ExitStack
    all: list[Standing]

    def start(self, name: str, kubeconfig: Path | None = None) -> Standing:
        moments, log = self.folder / f"{name}.moments", self.folder / f"{name}.log"
        command = [sys.executable, PROGRAM, kubeconfig or self.box.kubeconfig, name]
        with moments.open("wb") as out, log.open("wb") as error:
            process = subprocess.Popen(
                [*command, json.dumps(asdict(self.terms))], stdout=out, stderr=error
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self.all.append(Standing(name=name, process=process, moments=moments, log=log))
        return self.all[-1]

    async def start_two(
        self, first_kubeconfig: Path | None = None, second_kubeconfig: Path | None = None
    ) -> tuple[Standing, Standing]:
        """Start the candidate `first`, which leads, and then `second`, which stands by."""
        first = self.start("first", first_kubeconfig)
        await first.acts()
        second = self.start("second", second_kubeconfig)
        await second.stands_by(first)
        return first, second

    @contextmanager
    def reached_by_proxy(self) -> Iterator[Recorder]:
        """Yield a proxy that lives as long as the candidates that may use it."""
        with recording(self.box) as way:
            try:
                yield way
            finally:
                way.is_cut, way.delay_seconds = False, 0.0
                self.stack.close()

    def list_leaders(self) -> list[str]:
        """Return the names of those that acted, in order; a name that comes twice was not alone."""
        acts = sorted((at, each.name) for each in self.all for at in each.list_moments())
        return [name for name, _ in groupby(name for _, name in acts)]

    def read_lease(self) -> dict[str, object]:
        found = self.box.kubectl("get", "lease", self.terms.name, "-n", "default", "-o", "json")
        spec: dict[str, object] = json.loads(found)["spec"]
        return spec


@pytest.fixture
def candidates(own_box: ControlPlane, tmp_path: Path) -> Iterator[Callable[[Terms], Candidates]]:
    with ExitStack() as stack:

        def make(terms: Terms) -> Candidates:
            named = replace(terms, name=tmp_path.name.replace("_", "-"))
            return Candidates(box=own_box, folder=tmp_path, terms=named, stack=stack, all=[])

        yield make


async def one_leads(candidates: Candidates, *those: Standing) -> Standing:
    """Return the candidate that acts in the end, and check that no other may act.

    On a busy machine, a leader may lose the lease in between. It has ended then.
    """

    def find_leader() -> Standing | None:
        acted = {each.list_moments()[-1]: each for each in those if each.list_moments()}
        last = acted[max(acted)] if acted else None
        return last if last is not None and last.process.poll() is None else None

    async def is_led() -> bool:
        return find_leader() is not None

    await until(is_led)
    leader = find_leader()
    assert leader is not None
    for each in those:
        if each is leader:
            continue
        if each.list_moments():
            assert await each.ends() == EXIT_LEASE_LOST
        else:
            await each.stands_by(leader)
    await leader.acts()
    assert candidates.read_lease()["holderIdentity"] == leader.name
    return leader


def check_order(leaders: list[str], last: Standing) -> None:
    """Check that `first` led first, `last` last, and no two candidates at the same time."""
    assert (leaders[0], leaders[-1]) == ("first", last.name)
    assert len(leaders) == len(set(leaders)), leaders


@pytest.mark.parametrize("names", [(ETCD,), (API_SERVER,), BOTH], ids="+".join)
def test_one_leads_at_a_time_when_the_lease_ends_without_answers(
    names: tuple[str, ...], own_box: ControlPlane, candidates: Callable[[Terms], Candidates]
) -> None:
    async def story() -> None:
        those = candidates(SHORT)
        first, second = await those.start_two()
        dead = [kill(own_box, name) for name in names]
        assert await first.ends() == EXIT_LEASE_LOST
        third = those.start("third")  # in its place, as a kubelet would
        for component in dead:
            start(own_box, component)
        await until(lambda: answers(own_box))
        leader = await one_leads(those, second, third)
        check_order(those.list_leaders(), leader)

    asyncio.run(story())


def test_the_standby_replaces_a_leader_that_died_with_the_api_server(
    own_box: ControlPlane, candidates: Callable[[Terms], Candidates]
) -> None:
    async def story() -> None:
        those = candidates(SHORT)
        first, second = await those.start_two()
        dead = [kill(own_box, name) for name in BOTH]
        first.process.kill()
        await first.ends()
        for component in dead:
            start(own_box, component)
        await one_leads(those, second)
        assert those.list_leaders() == ["first", "second"]
        assert those.read_lease()["leaseTransitions"] == 1

    asyncio.run(story())


def test_the_leader_continues_after_a_restart_within_its_lease(
    own_box: ControlPlane, candidates: Callable[[Terms], Candidates]
) -> None:
    async def story() -> None:
        those = candidates(LONG)
        first, _ = await those.start_two()
        before = those.read_lease()
        for component in [kill(own_box, name) for name in BOTH]:
            start(own_box, component)
        await until(lambda: answers(own_box))

        async def is_renewed() -> bool:
            return those.read_lease()["renewTime"] != before["renewTime"]

        await until(is_renewed)
        await first.acts()
        assert those.list_leaders() == ["first"]
        same = ("holderIdentity", "acquireTime", "leaseTransitions")
        after = those.read_lease()
        assert {name: after[name] for name in same} == {name: before[name] for name in same}

    asyncio.run(story())


def test_a_leader_without_connection_ends_before_another_leads(
    own_box: ControlPlane, candidates: Callable[[Terms], Candidates]
) -> None:
    async def story() -> None:
        those = candidates(SHORT)
        with those.reached_by_proxy() as way:
            kubeconfig = way.kubeconfig(those.folder / "kubeconfig")
            first, second = await those.start_two(kubeconfig)
            way.is_cut = True
            for component in [kill(own_box, name) for name in BOTH]:
                start(own_box, component)  # long before the lease is over
            await one_leads(those, second)
            way.is_cut = False
            assert await first.ends() == EXIT_LEASE_LOST
            assert those.list_leaders() == ["first", "second"]

    asyncio.run(story())


@pytest.mark.parametrize("for_all", [True, False], ids=["for all", "for the leader"])
def test_one_leads_at_a_time_with_a_slow_api_server(
    for_all: bool, candidates: Callable[[Terms], Candidates]
) -> None:
    async def story() -> None:
        those = candidates(SHORT)
        with those.reached_by_proxy() as way:
            slow = way.kubeconfig(those.folder / "kubeconfig")
            first, second = await those.start_two(slow, slow if for_all else None)
            # Longer than a request may take: renewals succeed, but the leader gets no answer.
            way.delay_seconds = SHORT.deadline_seconds / 2 + 1
            assert await first.ends() == EXIT_LEASE_LOST
            third = those.start("third", slow)
            if for_all:
                await asyncio.sleep(SHORT.duration_seconds)
                assert those.list_leaders() == ["first"]  # no candidate gets an answer
            else:
                await second.acts()
            way.delay_seconds = 1.0  # slow, and fast enough
            leader = await one_leads(those, second, third)
            check_order(those.list_leaders(), leader)

    asyncio.run(story())
