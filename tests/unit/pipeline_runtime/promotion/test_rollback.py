"""Rollbacks undo promotions, and nothing but promotions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from facts import assert_told
from promotion_lake import DAY_1, DAY_2, PromotionLake, Row, feature_rows, main_rows

from pipeline_runtime.errors import OutputRefused

FIRST, SECOND = "2026-01-01", "2026-01-02"
LATE: Row = {"day": DAY_1, "user": 7, "item": "late", "clicks": 1}
Change = Callable[[PromotionLake], None]


def promote_all(lake: PromotionLake, value: float = 0.5, name: str = "db.ctr") -> int | None:
    """Promote a value for every row; return the snapshot before it."""
    staging = lake.create_staging(name, feature_rows(main_rows(), value), buckets=6, by_day=True)
    return lake.promote(staging, replaces=True).previous_snapshot_id


def without_ctr(rows: list[Row]) -> list[Row]:
    return [row | {"ctr": None} for row in rows]


def by_day(rows: list[Row], day: object) -> list[Row]:
    return [row for row in rows if row["day"] == day]


def test_untouched_partitions_get_their_files_back(lake: PromotionLake) -> None:
    files, rows, stored = lake.files(), lake.rows(), lake.stored()
    before = promote_all(lake)
    assert before is not None
    written = lake.stored()

    done = lake.roll_back(before)

    assert (lake.files(), lake.rows()) == (files, without_ctr(rows))
    assert (lake.stored(), done.rewritten, done.columns) == (written, (), ("ctr",))
    assert len(done.restored) == len(files)
    assert written > stored


def test_only_chosen_partitions_are_rolled_back(lake: PromotionLake) -> None:
    before = promote_all(lake)
    promoted = lake.rows()

    lake.roll_back(before, FIRST)

    assert by_day(lake.rows(), DAY_1) == without_ctr(by_day(promoted, DAY_1))
    assert by_day(lake.rows(), DAY_2) == by_day(promoted, DAY_2)


@pytest.mark.parametrize(
    ("change", "expected", "num_rewritten"),
    [
        pytest.param(
            lambda lake: lake.append([LATE]), [*main_rows(), LATE], 1, id="late append stays"
        ),
        pytest.param(
            lambda lake: lake.main.delete("user = 3"),
            [row for row in main_rows() if row["user"] != 3],
            2,  # of two days
            id="erased rows stay erased",
        ),
    ],
)
def test_changes_after_the_promotion_stay(
    lake: PromotionLake, change: Change, expected: list[Row], num_rewritten: int
) -> None:
    before = promote_all(lake)
    change(lake)

    done = lake.roll_back(before)

    assert sorted(map(str, lake.rows())) == sorted(map(str, without_ctr(expected)))
    assert len(done.rewritten) == num_rewritten
    assert len(done.restored) == 6 - num_rewritten  # two buckets and null, of two days


def test_appends_to_other_days_stay_untouched(lake: PromotionLake) -> None:
    before = promote_all(lake)
    lake.append([LATE | {"day": DAY_2}])
    done = lake.roll_back(before, FIRST)
    assert done.rewritten == ()
    assert len(by_day(lake.rows(), DAY_2)) == 21


def test_partition_is_rewritten_without_its_old_files(lake: PromotionLake) -> None:
    old, rows = lake.files(), lake.rows()
    before = promote_all(lake)
    lost = sorted(path for path in old if FIRST in path)
    for path in lost:
        Path(path.removeprefix("file://")).unlink()

    done = lake.roll_back(before)

    assert len(done.rewritten) == len(lost)
    assert lake.rows() == without_ctr(rows)


def test_each_of_two_promotions_can_be_undone(lake: PromotionLake) -> None:
    first = promote_all(lake, 0.5, "db.one")
    between_rows, between_files = lake.rows(), lake.files()
    between = promote_all(lake, 9.5, "db.two")
    assert lake.rows() != between_rows

    lake.roll_back(between)
    assert (lake.rows(), lake.files()) == (between_rows, between_files)
    lake.roll_back(first)
    assert lake.rows() == without_ctr(main_rows_sorted())


def test_two_promotions_are_undone_at_once(lake: PromotionLake) -> None:
    files = lake.files()
    first = promote_all(lake, 0.5, "db.one")
    promote_all(lake, 9.5, "db.two")
    lake.roll_back(first)
    assert lake.files() == files


def test_promotion_can_be_repeated_after_a_rollback(lake: PromotionLake) -> None:
    files = lake.files()
    before = promote_all(lake)
    promoted = lake.rows()
    lake.roll_back(before)

    again = lake.promote(lake.stage("db.ctr"))

    assert (again.is_repeated, lake.rows()) == (False, promoted)
    lake.roll_back(again.previous_snapshot_id)
    assert lake.files() == files


def test_tag_keeps_old_files_until_the_promotion_expires(lake: PromotionLake) -> None:
    before = promote_all(lake)
    tags = [tag for tag in lake.main.metadata.refs if tag != "main"]
    lake.roll_back(before)
    assert [lake.main.metadata.refs[tag].snapshot_id for tag in tags] == [before]
    lake.append([LATE])
    lake.main.maintenance.expire_snapshots().older_than(
        datetime.now(UTC) + timedelta(days=1)
    ).commit()
    assert lake.main.snapshot_by_id(before or 0) is not None  # by its tag
    assert len(lake.rows()) == 41

    again = promote_all(lake, 1.5, "db.other")

    refs = lake.main.metadata.refs
    assert not set(tags) & set(refs)
    assert [ref.snapshot_id for tag, ref in refs.items() if tag != "main"] == [again]


def _replace_and_append(lake: PromotionLake) -> int | None:
    promote_all(lake, 0.5, "db.one")
    between = promote_all(lake, 9.5, "db.two")
    lake.append([LATE])
    return between


def _roll_back_twice(lake: PromotionLake) -> int | None:
    before = promote_all(lake)
    lake.roll_back(before)
    return before


def _expire(lake: PromotionLake) -> int | None:
    before = promote_all(lake)
    lake.main.manage_snapshots().remove_tag(f"lastmile-before-{lake.head()}").commit()
    lake.main.maintenance.expire_snapshots().by_id(before or 0).commit()
    return before


@pytest.mark.parametrize(
    ("prepare", "days", "facts"),
    [
        pytest.param(
            _replace_and_append, [FIRST], "db.main … day=2026-01-01 … 'ctr'", id="replaced values"
        ),
        pytest.param(_roll_back_twice, [], "--to … db.main", id="undone before"),
        pytest.param(_expire, [], "--to … db.main", id="expired snapshot"),
        pytest.param(lambda lake: lake.head(), [], "--to … db.main", id="no promotion"),
        pytest.param(lambda lake: 12345, [], "--to … db.main … 12345", id="no such snapshot"),
        pytest.param(promote_all, ["2027-01-01"], "--partition … db.main", id="no such day"),
    ],
)
def test_impossible_rollbacks_change_nothing(
    lake: PromotionLake,
    prepare: Callable[[PromotionLake], int | None],
    days: list[str],
    facts: str,
) -> None:
    to = prepare(lake)
    head, stored = lake.head(), lake.stored()
    with pytest.raises(OutputRefused) as caught:
        lake.roll_back(to, *days)
    assert_told(str(caught.value), facts)
    assert (lake.head(), lake.stored()) == (head, stored)


def main_rows_sorted() -> list[Row]:
    return sorted(main_rows(), key=lambda row: [(v is not None, v) for v in row.values()])
