"""The elector's rules, and that two candidates never act at once, whatever happens to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from dataset_operator.election.elector import Elector, Proposal, Terms
from dataset_operator.election.lease import Lease, build_document, parse_lease

TERMS = Terms(
    name="lease", namespace="ns", duration_seconds=15, deadline_seconds=10, retry_seconds=2
)
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
# Clocks run faster than another by less than duration / deadline.
RATES = st.sampled_from([1.0, 1.01, 1.49])


def elector(identity: str) -> Elector:
    return Elector(identity=identity, terms=TERMS)


class Server:
    """An API server with one lease: a write must carry the version that is there."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.version = 0

    def read(self) -> Lease | None:
        return parse_lease(self.document) if self.document else None

    def write(self, lease: Lease) -> Lease | None:
        """The lease as it is stored, None for a conflict."""
        have = self.document["metadata"]["resourceVersion"] if self.document else None
        if lease.metadata.get("resourceVersion") != have:
            return None
        self.version += 1
        self.document = build_document(lease)
        self.document["metadata"]["resourceVersion"] = str(self.version)
        return self.read()


def take(server: Server, one: Elector, now: float) -> bool:
    """Look and write in no time; whether it was taken."""
    one.see(server.read(), now)
    proposal = one.propose(now, NOON)
    if proposal is None:
        return False
    stored = server.write(proposal.lease)
    if stored is not None:
        one.accept(proposal, stored, now)
    return stored is not None


def test_the_first_takes_what_is_not_there_and_the_second_stands_by() -> None:
    server, first, second = Server(), elector("first"), elector("second")
    assert take(server, first, 100.0)
    assert not take(server, second, 5000.0)  # its clock began elsewhere
    assert first.may_act(109.9)
    assert not second.may_act(5000.0)


def test_a_lease_is_taken_a_duration_after_it_was_last_seen_renewed() -> None:
    server, first, second = Server(), elector("first"), elector("second")
    take(server, first, 100.0)
    take(server, second, 5000.0)
    take(server, first, 102.0)
    assert not take(server, second, 5003.0)
    assert not take(server, second, 5017.9)  # 14.9 s after that
    assert take(server, second, 5018.0)

    lease = server.read()
    assert lease is not None
    assert (lease.holder, lease.transitions) == ("second", 1)


def test_who_leads_acts_for_a_deadline_after_it_asked_and_never_again() -> None:
    server, one = Server(), elector("one")
    take(server, one, 100.0)
    assert one.may_act(109.9)
    assert not one.may_act(110.0)
    assert one.propose(110.0, NOON) is None
    assert not one.may_act(105.0)  # an end is final
    assert "renewDeadlineSeconds" in one.lost


def test_a_late_answer_counts_from_when_it_was_asked_for() -> None:
    server, one = Server(), elector("one")
    one.see(None, 100.0)
    proposal = one.propose(100.0, NOON)
    assert proposal is not None
    stored = server.write(proposal.lease)
    assert stored is not None
    one.accept(proposal, stored, 108.0)
    assert one.remaining_seconds(108.0) == pytest.approx(2.0)


def test_an_answer_that_was_lost_is_found_by_looking_again() -> None:
    server, one = Server(), elector("one")
    take(server, one, 100.0)
    proposal = one.propose(102.0, NOON)
    assert proposal is not None
    server.write(proposal.lease)  # and nothing comes back

    again = one.propose(104.0, NOON)
    assert again is not None
    assert server.write(again.lease) is None  # a conflict
    assert take(server, one, 104.1)
    assert one.may_act(114.0)


def test_who_sees_another_hold_its_lease_has_lost_it() -> None:
    server, first, second = Server(), elector("first"), elector("second")
    take(server, first, 100.0)
    take(server, second, 0.0)
    take(server, second, 15.0)
    first.see(server.read(), 101.0)
    assert not first.may_act(101.0)
    assert "second" in first.lost
    assert first.release(101.0, NOON) is None


def test_a_released_lease_is_taken_at_once() -> None:
    server, first, second = Server(), elector("first"), elector("second")
    take(server, first, 100.0)
    take(server, second, 0.0)
    released = first.release(101.0, NOON)
    assert released is not None
    assert not first.may_act(101.0)
    server.write(released)

    assert released.holder == ""
    assert take(server, second, 0.1)


def test_the_duration_of_who_leads_counts_not_that_of_who_stands_by() -> None:
    server, first = Server(), elector("first")
    hasty = Elector(identity="hasty", terms=replace(TERMS, duration_seconds=3, deadline_seconds=2))
    take(server, first, 100.0)
    take(server, hasty, 0.0)
    assert not take(server, hasty, 14.9)
    assert take(server, hasty, 15.0)


def test_a_wall_clock_that_stands_still_or_goes_back_is_no_sign_of_death() -> None:
    server, first, second = Server(), elector("first"), elector("second")
    take(server, first, 100.0)
    take(server, second, 0.0)
    take(server, first, 102.0)  # the wall clock still says noon
    proposal = first.propose(104.0, NOON - timedelta(hours=1))
    assert proposal is not None
    assert server.write(proposal.lease) is not None
    assert not take(server, second, 14.9)
    assert not take(server, second, 29.8)


def test_an_edit_of_the_metadata_is_no_renewal() -> None:
    server, first, second = Server(), elector("first"), elector("second")
    take(server, first, 100.0)
    take(server, second, 0.0)
    lease = server.read()
    assert lease is not None
    server.write(replace(lease, metadata={**lease.metadata, "annotations": {"by": "hand"}}))
    assert take(server, second, 15.0)
    stored = server.read()
    assert stored is not None
    assert stored.metadata["annotations"] == {"by": "hand"}


def test_a_document_comes_back_as_it_was() -> None:
    document = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "lease", "namespace": "ns", "resourceVersion": "7"},
        "spec": {
            "holderIdentity": "pod_1",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-11-23T12:00:00.000000Z",
            "renewTime": "2026-11-23T12:00:01.000002Z",
            "leaseTransitions": 3,
        },
    }
    assert build_document(parse_lease(document)) == document


def test_a_lease_that_somebody_made_by_hand_is_nobodys() -> None:
    bare = parse_lease({"metadata": {"name": "lease", "namespace": "ns", "resourceVersion": "1"}})
    one = elector("one")
    one.see(bare, 0.0)
    proposal = one.propose(0.0, NOON)
    assert proposal is not None
    assert proposal.lease.metadata["resourceVersion"] == "1"


# --- never two ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Node:
    """An elector, its clock, and the one request that it has on its way.

    Each `move` is one step of that request: it is sent, arrives, is answered. Between any two of
    them others may move and any time may pass, which is what slow networks, pauses and suspended
    machines do.
    """

    elector: Elector
    server: Server
    rate: float
    moves: list[Callable[[float, bool], None]] = field(default_factory=list)
    seen: Lease | None = None

    def now(self, true_seconds: float) -> float:
        return true_seconds * self.rate

    def move(self, now: float, is_lost: bool) -> None:
        (self.moves.pop(0) if self.moves else self._begin)(now, is_lost)

    def _begin(self, now: float, _: bool) -> None:
        if self.elector.lost:
            return  # the process has ended
        if self.elector.is_leading:
            self._propose(now)
        else:
            self.moves = [self._read, self._take_in]

    def _read(self, _: float, is_lost: bool) -> None:
        self.seen = self.server.read()
        if is_lost:
            self.moves = []

    def _take_in(self, now: float, _: bool) -> None:
        self.elector.see(self.seen, now)
        self._propose(now)

    def _propose(self, now: float) -> None:
        proposal = self.elector.propose(now, NOON)
        if proposal is not None:
            self.moves = [lambda _, is_lost: self._write(proposal, is_lost)]

    def _write(self, proposal: Proposal, is_lost: bool) -> None:
        stored = self.server.write(proposal.lease)
        if stored is None:
            self.moves = [self._read, self._take_in]
        elif not is_lost:
            self.moves = [lambda now, _: self.elector.accept(proposal, stored, now)]


NUM_MOVES = 120
PAUSES_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)  # between two moves of whomever
NUM_SEEDS = 3000


def play(rates: Sequence[float], seed: int, terms: Terms = TERMS) -> tuple[int, int]:
    """A story: how many might act at once at most, and how many have led.

    Now and then one is cut off or stopped for up to twenty moves of the others, and an answer in
    ten is lost.
    """
    random, server, seconds = Random(seed), Server(), 0.0
    nodes = [
        Node(elector=Elector(identity=str(index), terms=terms), server=server, rate=rate)
        for index, rate in enumerate(rates)
    ]
    stopped, most, led = [0] * len(nodes), 0, set()
    for _ in range(NUM_MOVES):
        seconds += random.choice(PAUSES_SECONDS)
        index = random.randrange(len(nodes))
        if random.random() < 0.05:
            stopped[index] = random.randint(1, 20)
        stopped[index] -= 1
        if stopped[index] < 0:
            nodes[index].move(nodes[index].now(seconds), random.random() < 0.1)
        # Nobody begins to lead but by a move, so that two who overlap do so after one.
        acting = [node for node in nodes if node.elector.may_act(node.now(seconds))]
        most = max(most, len(acting))
        led |= {node.elector.identity for node in acting}
    return most, len(led)


@settings(max_examples=examples(250))
@given(st.lists(RATES, min_size=2, max_size=3), st.integers(0, 2**32))
def test_never_two_may_act_at_once(rates: list[float], seed: int) -> None:
    assert play(rates, seed)[0] <= 1


def test_one_leads_after_another_in_such_stories() -> None:
    """So the property is not true for want of leaders."""
    assert any(play([1.0, 1.0, 1.49], seed)[1] == 3 for seed in range(NUM_SEEDS))


@pytest.mark.parametrize(
    ("rates", "terms"),
    [
        pytest.param([1.0, 4.0], TERMS, id="a clock that is four times as fast"),
        pytest.param(
            [1.0, 1.0], replace(TERMS, deadline_seconds=20), id="a deadline after the lease's end"
        ),
    ],
)
def test_beyond_its_bounds_two_may_act_at_once(rates: list[float], terms: Terms) -> None:
    """So the stories are such that they would find it."""
    assert any(play(rates, seed, terms)[0] == 2 for seed in range(NUM_SEEDS))
