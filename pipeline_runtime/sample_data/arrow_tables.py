"""Turns the drawn arrays of a chunk into Arrow tables: the schema, the nulls, the spam table.

Owns column names, types and null shares. `impressions` and `labels` run before it, `file_layout`
lays its tables out in files. Columns of the user are built once a request and repeated by `take`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.sample_data.impressions import (
    CHUNK_ROWS,
    DAY_SECONDS,
    DEVICES,
    NUM_CATEGORIES,
    NUM_DENSE,
    ChunkKey,
    Impressions,
    Requests,
    draw_impressions,
    draw_requests,
)
from pipeline_runtime.sample_data.labels import Outcomes, draw_outcomes
from pipeline_runtime.sample_data.population import (
    COUNTRIES,
    NUM_CLUSTERS,
    NUM_USER_DENSE,
    SPAM_REASONS,
    BoolArray,
    Histories,
    Int64Array,
    Population,
    build_generator,
    build_histories,
)

FIRST_DAY: Final = date(2026, 1, 1)
ROW_ID_COLUMN: Final = "_lastmile_row_id"  # the identity that tables written by Lastmile carry
LIST_COLUMNS: Final = ("user_sequence", "user_sequence_actions")

# Nulls are missing at random: labels are made from the value that is hidden. Those of user columns
# are the user's, in disjoint bands of one number, so that all of a user's rows agree.
USER_NULL_SHARES: Final = {"user_country": 0.02, "dense_03": 0.05, "dense_05": 0.10}
ROW_NULL_SHARES: Final = {
    "dense_09": 0.05,
    "dense_12": 0.08,
    "dense_17": 0.02,
    "cat_00": 0.03,
    "cat_06": 0.05,
    "cat_11": 0.10,
    "cat_14": 0.02,
    "saves": 0.03,
}

_SECOND_MICROSECONDS: Final = 1_000_000
_CHUNK_STREAM: Final = 2  # the first number after the seed; `population` uses 1
_REQUEST_ID_DAY_SHIFT: Final = 40  # request_id = day << 40 | the request's first row in the day

_Number = TypeVar("_Number", np.int64, np.int8)


def build_schema() -> pa.Schema:
    """The columns of a file of impressions, in order; `day` is in the folder's name."""
    return pa.schema(
        [
            (ROW_ID_COLUMN, pa.int64()),
            ("request_id", pa.int64()),
            ("timestamp", pa.timestamp("us")),
            ("user_id", pa.int64()),
            ("user_country", pa.string()),
            ("user_age_days", pa.int32()),
            ("device", pa.string()),
            ("user_sequence", pa.list_(pa.int64())),
            ("user_sequence_actions", pa.list_(pa.int8())),
            ("item_id", pa.int64()),
            ("position", pa.int8()),
            *((name_dense(index), pa.float32()) for index in range(NUM_DENSE)),
            *((_name_category(index), pa.int64()) for index in range(NUM_CATEGORIES)),
            ("clicked", pa.bool_()),
            ("saves", pa.int8()),
            ("conversion_delay_hours", pa.float32()),
            ("dwell_seconds", pa.float32()),
        ]
    )


def build_chunk(
    population: Population, key: ChunkKey, columns: Collection[str] | None = None
) -> pa.Table:
    """Return the `CHUNK_ROWS` rows of a chunk; the caller cuts off those past the day's end.

    Args:
        columns: names of columns to build; all if absent. Histories take most of the time.
    """
    rng = build_generator(population.seed, _CHUNK_STREAM, key.day, key.index)
    requests = draw_requests(rng, population, key)
    impressions = draw_impressions(rng, population, requests)
    outcomes = draw_outcomes(rng, population, requests, impressions)
    masks = {name: rng.random(CHUNK_ROWS) < share for name, share in ROW_NULL_SHARES.items()}
    schema = build_schema()
    names = [name for name in schema.names if columns is None or name in columns]
    arrays = {
        **_repeat(_build_user_columns(population, requests, key), impressions.request_N),
        **_build_impression_columns(impressions, key, masks),
        **_build_outcome_columns(outcomes, masks),
    }
    if not set(LIST_COLUMNS).isdisjoint(names):
        arrays |= _build_history_columns(population, requests, key)
    chosen = pa.schema([schema.field(name) for name in names])
    return pa.Table.from_arrays([arrays[name] for name in names], schema=chosen)


def build_spam_table(population: Population) -> pa.Table:
    """Every spam user, by id, with the reason; many of them are in no row of a small sample."""
    user_ids = np.sort(population.spam_ids)
    reasons = take_names(SPAM_REASONS, user_ids % len(SPAM_REASONS))
    return pa.table({"user_id": pa.array(user_ids), "reason": reasons})


def build_day_name(day: int) -> str:
    """The value of the partition column `day`, as 2026-01-01 for day 0."""
    return (FIRST_DAY + timedelta(days=day)).isoformat()


def name_dense(index: int) -> str:
    return f"dense_{index:02d}"


def _name_category(index: int) -> str:
    return f"cat_{index:02d}"


def _build_user_columns(
    population: Population, requests: Requests, key: ChunkKey
) -> dict[str, pa.Array]:
    users = requests.user_ids
    masks = build_user_masks(population, users)
    names = [name_dense(index) for index in range(NUM_USER_DENSE)]
    dense = zip(names, population.dense_UD[users].T, strict=True)
    request_ids = (key.day << _REQUEST_ID_DAY_SHIFT) + key.first_row_in_day + requests.first_rows
    return {
        "request_id": pa.array(request_ids),
        "user_id": pa.array(users),
        "user_country": take_names(COUNTRIES, population.country_U[users], masks["user_country"]),
        "user_age_days": pa.array(population.age_days_U[users] + np.int32(key.day)),
        "device": take_names(DEVICES, requests.devices, requests.is_device_null),
        **{name: pa.array(values, mask=masks.get(name)) for name, values in dense},
    }


def _build_history_columns(
    population: Population, requests: Requests, key: ChunkKey
) -> dict[str, pa.Array]:
    days = key.day + requests.seconds / DAY_SECONDS
    histories = build_histories(population, requests.user_ids, days)
    lengths = np.repeat(np.diff(histories.offsets), requests.sizes)
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)]))
    lists = (
        pa.array(_repeat_ragged(histories.item_ids_E, histories, requests)),
        pa.array(_repeat_ragged(histories.actions_E, histories, requests)),
    )
    arrays = [pa.ListArray.from_arrays(offsets, values) for values in lists]
    return dict(zip(LIST_COLUMNS, arrays, strict=True))


def _repeat_ragged(
    flat: npt.NDArray[_Number], histories: Histories, requests: Requests
) -> npt.NDArray[_Number]:
    """Each request's part as often as it has rows; 2 to 3 times faster than `take` on lists."""
    bounds = pairwise(histories.offsets.tolist())
    parts: list[npt.NDArray[_Number]] = []
    for (start, stop), size in zip(bounds, requests.sizes.tolist(), strict=True):
        parts += [flat[start:stop]] * size
    return np.concatenate(parts)


def build_user_masks(population: Population, user_ids: Int64Array) -> dict[str, BoolArray]:
    chance = population.missing_U[user_ids]
    low, masks = 0.0, {}
    for name, share in USER_NULL_SHARES.items():
        masks[name] = (chance >= low) & (chance < low + share)
        low += share
    return masks


def _build_impression_columns(
    impressions: Impressions, key: ChunkKey, masks: dict[str, BoolArray]
) -> dict[str, pa.Array]:
    items = impressions.item_ids_N
    categories = [items % NUM_CLUSTERS, items // NUM_CLUSTERS, *impressions.context_DN]
    features = {
        **{name_dense(NUM_USER_DENSE + i): v for i, v in enumerate(impressions.dense_DN)},
        **{_name_category(i): v for i, v in enumerate(categories)},
    }
    return {
        ROW_ID_COLUMN: pa.array(key.first_row + np.arange(CHUNK_ROWS)),
        "timestamp": _build_timestamps(impressions, key),
        "item_id": pa.array(items),
        "position": pa.array(impressions.position_N.astype(np.int8)),
        **{name: pa.array(values, mask=masks.get(name)) for name, values in features.items()},
    }


def _build_timestamps(impressions: Impressions, key: ChunkKey) -> pa.Array:
    midnight = np.datetime64(build_day_name(key.day), "us")
    since_midnight = (impressions.seconds_N * _SECOND_MICROSECONDS).astype("timedelta64[us]")
    return pa.array(midnight + since_midnight)


def _build_outcome_columns(outcomes: Outcomes, masks: dict[str, BoolArray]) -> dict[str, pa.Array]:
    delays = outcomes.conversion_delay_hours_N.astype(np.float32)
    dwell = outcomes.dwell_seconds_N.astype(np.float32)
    return {
        "clicked": pa.array(outcomes.clicked_N),
        "saves": pa.array(outcomes.saves_N, mask=masks["saves"]),
        "conversion_delay_hours": pa.array(delays, mask=np.isnan(delays)),
        "dwell_seconds": pa.array(dwell, mask=np.isnan(dwell)),
    }


def _repeat(columns: dict[str, pa.Array], request_N: Int64Array) -> dict[str, pa.Array]:
    indices = pa.array(request_N)
    return {name: column.take(indices) for name, column in columns.items()}


def take_names(
    names: Sequence[str], indices: npt.NDArray[np.integer], mask: BoolArray | None = None
) -> pa.Array:
    return pa.array(names).take(pa.array(indices, mask=mask))
