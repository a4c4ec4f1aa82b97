"""The rows of the Iceberg sample: the impressions, and the tables that are joined to them.

Owns which column lies in which table, and the layout of each table: partitions, buckets, order.
`arrow_tables` runs before it and draws the impressions; `lake` writes the tables after it. The
click model uses columns of all three tables, so a model without the joins ranks worse.

Array suffix: R users of a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline_runtime.sample_data.arrow_tables import (
    FIRST_DAY,
    build_chunk,
    build_schema,
    build_user_masks,
    name_dense,
    take_names,
)
from pipeline_runtime.sample_data.impressions import ChunkKey
from pipeline_runtime.sample_data.population import (
    COUNTRIES,
    NUM_USER_DENSE,
    NUM_USERS,
    SPAM_REASONS,
    Int64Array,
    Population,
    build_generator,
    build_histories,
    count_events,
)

KEY: Final = "user_id"
DAY: Final = "day"
# Users without a row in `user_features`: those whose `missing_U` is at least this. Spam users have
# one, since their row says that they are spam.
FEATURES_SHARE: Final = 0.98
ACTIVE_SHARE: Final = 0.8  # of the log's users, on each day: the others have no row in user_actions

_ACTIVITY_STREAM: Final = 3  # the first number after the seed; `arrow_tables` uses 2
_USER_COLUMNS: Final = (
    *("user_country", "user_age_days", "user_sequence", "user_sequence_actions"),
    *(name_dense(index) for index in range(NUM_USER_DENSE)),
)
_IMPRESSION_COLUMNS: Final = tuple(n for n in build_schema().names if n not in _USER_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """Layout of a table: partitioned by bucket of `user_id` and perhaps by day, sorted in files.

    Attributes:
        has_days: partitioned by day too, whose value is the column `day`.
        sort_by: columns by which the rows of each file are sorted, ascending.
    """

    name: str
    num_buckets: int
    has_days: bool
    sort_by: tuple[str, ...]


# Unequal numbers of buckets, as tables of different teams have them; their greatest common
# divisors are 2 and 4.
IMPRESSIONS: Final = SampleTable(
    name="impressions", num_buckets=8, has_days=True, sort_by=(KEY, "request_id", "position")
)
USER_FEATURES: Final = SampleTable(
    name="user_features", num_buckets=6, has_days=False, sort_by=(KEY,)
)
USER_ACTIONS: Final = SampleTable(
    name="user_actions", num_buckets=12, has_days=True, sort_by=(KEY,)
)
LAYOUTS: Final = (IMPRESSIONS, USER_FEATURES, USER_ACTIONS)


def build_impressions(population: Population, key: ChunkKey) -> pa.Table:
    """Return the rows of a chunk without the columns of the user; see `build_chunk`."""
    return _widen(build_chunk(population, key, _IMPRESSION_COLUMNS), key.day)


def build_user_features(population: Population) -> pa.Table:
    """Return one row per user, without 2 % of the genuine users."""
    is_spam = np.zeros(NUM_USERS + 1, dtype=bool)
    is_spam[population.spam_ids] = True
    has_row = (population.missing_U < FEATURES_SHARE) | is_spam
    users = np.flatnonzero(has_row[1:]) + 1
    masks = build_user_masks(population, users)
    names = [name_dense(index) for index in range(NUM_USER_DENSE)]
    dense = zip(names, population.dense_UD[users].T, strict=True)
    country = take_names(COUNTRIES, population.country_U[users], masks["user_country"])
    columns = {
        KEY: pa.array(users),
        "user_country": country,
        "user_age_days": pa.array(population.age_days_U[users]),
        **{name: pa.array(values, mask=masks.get(name)) for name, values in dense},
        "spam_reason": take_names(SPAM_REASONS, users % len(SPAM_REASONS), ~is_spam[users]),
    }
    return pa.table(columns)


def build_user_actions(population: Population, users: Int64Array, day: int) -> pa.Table:
    """Return the actions of a day's active users in the 24 hours before the day began.

    Args:
        users: ids of the users of the log; a fifth of them is inactive and has no row.
        day: counted from 0, as in the impressions.
    """
    rng = build_generator(population.seed, _ACTIVITY_STREAM, day)
    active = users[rng.random(NUM_USERS + 1)[users] < ACTIVE_SHARE]
    days = np.full(len(active), float(day))
    lengths = count_events(population, active, days) - count_events(population, active, days - 1)
    found = build_histories(population, active, days, lengths)
    offsets = pa.array(found.offsets)
    items = pa.ListArray.from_arrays(offsets, pa.array(found.item_ids_E))
    actions = pa.ListArray.from_arrays(offsets, pa.array(found.actions_E.astype(np.int32)))
    rows = pa.table({KEY: active, "recent_items": items, "recent_actions": actions})
    return _widen(rows, day)


def to_date(day: int) -> date:
    """Return the date of a day that is counted from 0."""
    return FIRST_DAY + timedelta(days=day)


def _widen(table: pa.Table, day: int) -> pa.Table:
    """Return the table with its day, and 32 bits where it has 8: Iceberg has no smaller integer."""
    for index, field in enumerate(table.schema):
        if field.type == pa.int8():
            wide = table.column(index).cast(pa.int32())
            table = table.set_column(index, field.name, wide)
    days = pa.repeat(pa.scalar(to_date(day), pa.date32()), table.num_rows)
    return table.append_column(DAY, days)
