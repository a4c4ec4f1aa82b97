"""The state of a table: its partitions, and the commits that change them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from pipeline_runtime.materialization.states import WHOLE, Dimension, find_changed, read_state
from tests.support.tables.days_table import compact, make_rows

Create = Callable[..., Table]
DAY_1, DAY_2 = '{"day_identity":"2026-01-01"}', '{"day_identity":"2026-01-02"}'


@pytest.fixture
def table(create: Create) -> Table:
    """Days 1 and 2, each in two buckets."""
    found = create(("day", "identity"), ("user_id", "bucket[2]"))
    found.append(pa.concat_tables([make_rows(1), make_rows(2)]))
    return found


def _fingerprints(table: Table) -> dict[str, str]:
    return {key: each.fingerprint for key, each in read_state(table).partitions.items()}


def test_partitions_are_those_of_all_fields_but_buckets(table: Table) -> None:
    state = read_state(table)
    assert list(state.partitions) == [DAY_1, DAY_2]
    assert state.dimensions == (Dimension(column="day", transform="identity"),)
    assert state.partitions[DAY_1].values == (20_454,)
    assert state.partitions[DAY_1].rows == 4


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        pytest.param([], [WHOLE], id="no-partitions"),
        pytest.param([("user_id", "bucket[2]")], [WHOLE], id="buckets-only"),
        pytest.param([("ts", "day")], ['{"ts_day":"2026-01-01"}'], id="hidden"),
        pytest.param(
            [("day", "identity"), ("label", "truncate[10]")],
            ['{"day_identity":"2026-01-01","label_truncate":"0"}'],
            id="two",
        ),
    ],
)
def test_keys_depend_on_the_spec(
    create: Create, fields: list[tuple[str, str]], keys: list[str]
) -> None:
    table = create(*fields)
    table.append(make_rows(1))
    assert list(read_state(table).partitions) == keys


def test_null_and_the_text_null_are_two_partitions(create: Create) -> None:
    table = create(("day", "identity"))
    rows = make_rows(1).set_column(1, "day", pa.array([None] * 4, pa.date32()))
    table.append(rows)
    assert list(read_state(table).partitions) == ['{"day_identity":null}']


def test_a_table_without_rows_has_no_partition(create: Create) -> None:
    state = read_state(create(("day", "identity")))
    assert (state.snapshot_id, state.partitions) == (None, {})


@pytest.mark.parametrize("day", [2, 3])
def test_append_changes_its_partition_alone(table: Table, day: int) -> None:
    before, since = _fingerprints(table), read_state(table).snapshot_id
    assert since is not None
    table.append(make_rows(day))
    after, key = _fingerprints(table), f'{{"day_identity":"2026-01-0{day}"}}'
    assert {k for k in after if after[k] != before.get(k)} == {key}
    assert find_changed(table, read_state(table), since) == frozenset({key})


def test_delete_changes_its_partition_alone(table: Table) -> None:
    since = read_state(table).snapshot_id
    assert since is not None
    table.delete("day = '2026-01-01'")
    assert list(read_state(table).partitions) == [DAY_2]
    assert find_changed(table, read_state(table), since) == frozenset({DAY_1})


def test_compaction_changes_files_but_no_rows(table: Table) -> None:
    before, since = _fingerprints(table), read_state(table).snapshot_id
    assert since is not None
    compact(table)
    after = _fingerprints(table)
    assert all(after[key] != before[key] for key in (DAY_1, DAY_2))
    assert find_changed(table, read_state(table), since) == frozenset()
    table.append(make_rows(2))
    compact(table)
    assert find_changed(table, read_state(table), since) == frozenset({DAY_2})


@pytest.mark.parametrize("since", [7], ids=["expired"])
def test_changes_since_an_unknown_snapshot_are_unknown(table: Table, since: int) -> None:
    assert find_changed(table, read_state(table), since) is None


def test_a_changed_number_of_buckets_keeps_partitions_apart(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("user_id_bucket")
        update.add_field("user_id", "bucket[4]", "user_id_4")
    table.append(make_rows(2))
    assert list(read_state(table).partitions) == [DAY_1, DAY_2]


def test_files_of_several_specs_are_one_partition(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("day_identity")
        update.add_field("ts", "month", "month")
    table.append(make_rows(2))
    state = read_state(table)
    assert (list(state.partitions), state.dimensions) == ([WHOLE], ())


def test_state_of_an_older_snapshot_stays(table: Table) -> None:
    before = read_state(table)
    table.append(make_rows(3))
    assert read_state(table, before.snapshot_id) == before
