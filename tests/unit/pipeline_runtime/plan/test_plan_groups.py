"""Groups: every unit once an epoch, in an order that the seed and epoch alone decide."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.config import Shuffle
from pipeline_runtime.plan.groups import (
    MAX_CHUNK_BYTES,
    Group,
    plan_groups,
    rows_per_chunk,
    share_groups,
)
from pipeline_runtime.sources import Unit

units = st.lists(st.integers(1, 500), min_size=1, max_size=60).map(
    lambda sizes: [
        Unit(place=str(index // 4), index=index % 4, num_rows=rows, num_bytes=rows * 10)
        for index, rows in enumerate(sizes)
    ]
)


@given(
    units=units, seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 50), rows=st.integers(1, 900)
)
def test_every_unit_is_in_one_group_and_groups_fit_the_chunk(
    units: list[Unit], seed: int, epoch: int, rows: int
) -> None:
    groups = plan_groups(units, seed=seed, epoch=epoch, shuffle=Shuffle(), chunk_rows=rows)
    assert sorted((u.place, u.index) for g in groups for u in g.units) == sorted(
        (u.place, u.index) for u in units
    )
    assert [group.index for group in groups] == list(range(len(groups)))
    for group in groups:  # several units only where they fit one chunk together
        assert len(group.units) == 1 or sum(unit.num_rows for unit in group.units) <= rows


@given(units=units, seed=st.integers(0, 2**31 - 1))
def test_the_same_seed_and_epoch_give_the_same_order(units: list[Unit], seed: int) -> None:
    def order(epoch: int) -> list[Unit]:
        groups = plan_groups(units, seed=seed, epoch=epoch, shuffle=Shuffle(), chunk_rows=1)
        return [unit for group in groups for unit in group.units]

    assert order(3) == order(3)


def test_epochs_differ_and_no_shuffle_keeps_the_tables_order() -> None:
    many = [Unit(place="f", index=i, num_rows=1, num_bytes=1) for i in range(50)]
    shuffled = [plan_groups(many, seed=1, epoch=e, shuffle=Shuffle(), chunk_rows=1) for e in (0, 1)]
    assert [g.units for g in shuffled[0]] != [g.units for g in shuffled[1]]
    plain = plan_groups(many, seed=1, epoch=0, shuffle=Shuffle(unit="None"), chunk_rows=1)
    assert [unit for group in plain for unit in group.units] == many


@pytest.mark.parametrize(
    ("unit", "digest"),
    [("Row", "c9e7c86961624b5c"), ("Request", "c9e7c86961624b5c"), ("None", "b3b8702bd595f2e8")],
)
def test_groups_of_other_tables_stay_as_they_were(unit: Any, digest: str) -> None:
    """A position of a checkpoint counts them; the digests are older than mixed groups."""
    units = [
        Unit(
            place=f"day={day}/{file}",
            index=index,
            num_rows=100 + (day * 7 + file * 3 + index) % 50,
            num_bytes=1000,
            partition={"day": day},
            bucket=file,
        )
        for day in range(5)
        for file in range(4)
        for index in range(3)
    ]
    groups = [
        [(u.place, u.index) for u in group.units]
        for epoch in (0, 3)
        for group in plan_groups(
            units, seed=7, epoch=epoch, shuffle=Shuffle(unit=unit), chunk_rows=400
        )
    ]
    assert hashlib.sha256(repr(groups).encode()).hexdigest()[:16] == digest


def test_without_a_shuffle_a_long_row_group_stays_whole_up_to_a_limit() -> None:
    def chunk_rows(num_rows: int, unit: str = "None", limit: int | None = None) -> int:
        units = [Unit(place="f", index=0, num_rows=num_rows, num_bytes=num_rows)]
        return rows_per_chunk(units, Shuffle(unit=unit), limit)  # type: ignore[arg-type]

    assert chunk_rows(100_000, "Row") == chunk_rows(100) == 32_768
    assert chunk_rows(60_000) == 60_000
    assert chunk_rows(100_000) == 100_000
    assert chunk_rows(200_000) == 131_072
    assert chunk_rows(100_000, limit=50_000) == 50_000


def test_wide_rows_make_smaller_chunks() -> None:
    wide = [Unit(place="f", index=0, num_rows=1000, num_bytes=1000 * 1_000_000)]
    assert rows_per_chunk(wide, Shuffle()) == MAX_CHUNK_BYTES // 1_000_000
    assert rows_per_chunk(wide, Shuffle(), limit=7) == 7
    assert rows_per_chunk([], Shuffle(window_rows=9)) == 9  # nothing to read is no error here


def rows_of(groups: list[Group]) -> list[tuple[int, int, int]]:
    """Return (file, row group, row) of each row, in order."""
    rows = []
    for group in groups:
        every = [(u.place, u.index, row) for u in group.units for row in range(u.num_rows)]
        rows += [every[i] for i in group.row_range]
        last = group.row_range.stop - 1
        assert (every[0], every[last]) >= ((*rows[-len(group.row_range)][:2], 0), rows[-1])
    return rows


@given(
    units=units,
    shuffle=st.sampled_from(["None", "Row"]),
    epoch=st.integers(0, 3),
    chunk_rows=st.integers(1, 900),
    num_ranks=st.integers(1, 9),
)
def test_ranks_share_each_row_once_and_equally(
    units: list[Unit], shuffle: str, epoch: int, chunk_rows: int, num_ranks: int
) -> None:
    unit: Any = shuffle
    groups = plan_groups(
        units, seed=3, epoch=epoch, shuffle=Shuffle(unit=unit), chunk_rows=chunk_rows
    )
    shares = share_groups(groups, num_ranks)
    counts = [len(rows_of(share)) for share in shares]
    assert max(counts) - min(counts) <= 1
    ordered = sorted((group for share in shares for group in share), key=lambda each: each.index)
    assert rows_of(ordered) == rows_of(groups)  # in the epoch's order
    assert [group.index for group in ordered] == list(range(len(ordered)))
    for share in shares:
        assert [group.index for group in share] == sorted(group.index for group in share)
    assert len(ordered) <= len(groups) + 2 * (num_ranks - 1)
    if num_ranks == 1:
        assert shares == [groups]


def test_equal_groups_are_shared_in_turn_and_not_cut() -> None:
    units = [Unit(place="f", index=i, num_rows=10, num_bytes=10) for i in range(8)]
    groups = plan_groups(units, seed=0, epoch=0, shuffle=Shuffle(unit="None"), chunk_rows=10)
    assert share_groups(groups, 4) == [groups[rank::4] for rank in range(4)]
