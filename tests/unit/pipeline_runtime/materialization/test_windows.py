"""Conditions that choose partitions, against the rows that they keep."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from pipeline_runtime import expressions
from pipeline_runtime.materialization.states import TableState, read_state
from pipeline_runtime.materialization.windows import split_where
from tests.support.tables.days_table import SCHEMA, make_rows

Create = Callable[..., Table]
TYPES = schema_to_pyarrow(SCHEMA, include_field_ids=False)


def _judge(state: TableState, where: str) -> tuple[dict[str, str], list[str]]:
    """Return the conditions that are left of each chosen day, and those on rows."""
    window, others = split_where(expressions.parse(where), state.dimensions, TYPES)
    chosen = window.judge(state.partitions)
    return {key[-4:-2]: text for key, text in chosen.items()}, [each.text for each in others]


def _days(create: Create, *fields: tuple[str, str]) -> TableState:
    table = create(*fields)
    table.append(pa.concat_tables([make_rows(day) for day in (1, 2, 3)]))
    return read_state(table)


@pytest.mark.parametrize(
    ("where", "chosen", "others"),
    [
        ("day = '2026-01-02'", {"02": ""}, []),
        ("day in ('2026-01-01', '2026-01-03')", {"01": "", "03": ""}, []),
        ("day between '2026-01-02' and '2026-02-01'", {"02": "", "03": ""}, []),
        ("day not between '2026-01-02' and '2026-02-01'", {"01": ""}, []),
        ("day is null", {}, []),
        ("day >= '2026-01-03' and label > 1", {"03": ""}, ["label > 1"]),
        (
            "day = '2026-01-03' or label > 1",
            {"01": "", "02": "", "03": ""},
            ["day = '2026-01-03' or label > 1"],
        ),
    ],
)
def test_conditions_on_a_partition_column_choose_partitions(
    create: Create, where: str, chosen: dict[str, str], others: list[str]
) -> None:
    assert _judge(_days(create, ("day", "identity")), where) == (chosen, others)


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("ts >= '2026-01-02'", {"02": "", "03": ""}),
        ("ts > '2026-01-02'", {"02": "ts > '2026-01-02'", "03": ""}),  # not its first moment
        ("ts < '2026-01-02'", {"01": ""}),
        (
            "ts >= '2026-01-01T12:00:00' and ts < '2026-01-02T12:00:00'",
            {"01": "ts >= '2026-01-01T12:00:00'", "02": "ts < '2026-01-02T12:00:00'"},
        ),
        (
            "ts between '2026-01-02' and '2026-01-03'",
            {"02": "", "03": "(ts) <= ('2026-01-03')"},
        ),
    ],
)
def test_conditions_on_hidden_days_keep_what_is_left(
    create: Create, where: str, chosen: dict[str, str]
) -> None:
    assert _judge(_days(create, ("ts", "day")), where) == (chosen, [])


@pytest.mark.parametrize("transform", ["hour", "day", "month", "year"])
def test_a_period_holds_all_of_its_rows(create: Create, transform: str) -> None:
    state = _days(create, ("ts", transform))
    window, others = split_where(
        expressions.parse("ts >= '2026-01-01' and ts < '2027-01-01'"), state.dimensions, TYPES
    )
    assert window.judge(state.partitions) == dict.fromkeys(state.partitions, "")
    assert others == ()


@pytest.mark.parametrize(
    "where", ["ts = '2026-01-02'", "year(ts) = 2026", "label > 1 and user_id < 3"]
)
def test_other_conditions_are_on_rows(create: Create, where: str) -> None:
    chosen, others = _judge(_days(create, ("ts", "day")), where)
    assert len(chosen) == 3
    assert " and ".join(others) == where
