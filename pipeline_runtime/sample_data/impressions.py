"""Draws what was shown: the requests of a chunk, their impressions and the features of those.

Owns the shape of a request, the choice of candidates and the features that are not a user's or an
item's own. `population` runs before it; `labels` (what the users did) and `arrow_tables` after.
A chunk is a fixed number of rows with a random stream of its own, so memory is bounded by a chunk
and a row depends on nothing but the seed, its day, its place in the day and the number of rows in
the day (which sets its time), never on the sizes of files.

Array suffixes: N impressions of a chunk · D columns. Arrays without one are per request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline_runtime.sample_data.population import (
    NUM_CLUSTERS,
    NUM_CREATORS,
    NUM_USER_DENSE,
    BoolArray,
    Float32Array,
    Float64Array,
    Int64Array,
    Population,
    build_item_ids,
    draw_ranks,
    draw_users,
)

CHUNK_ROWS: Final = 4_096  # 7 MB as a table; a divisor of the default row group
DAY_SECONDS: Final = 86_400

MAX_IMPRESSIONS_PER_REQUEST: Final = 40
REQUEST_SIZE_SHAPE: Final = 6.0  # Poisson of a gamma, wider than Poisson: sessions differ in length
REQUEST_SIZE_SCALE: Final = 3.4  # mean 6.0 * 3.4 = 20.4, 20 after the cut at 40
REQUEST_MARGIN_SECONDS: Final = 120  # before midnight: 40 impressions at 3 s end on the same day
IMPRESSION_GAP_SECONDS: Final = 3.0

DEVICES: Final = ("android", "ios", "web", "tablet", "tv")
DEVICE_NULL_SHARE: Final = 0.02

NUM_DENSE: Final = 20  # dense_00 to dense_05 are the user's, the rest the impression's
ITEM_HINT_DENSE: Final = 6  # a noisy reading of the item's quality, as a past click rate would be
ITEM_HINT_SCALE: Final = 0.7  # back to about unit variance
LOGNORMAL_DENSE: Final = 15  # like a price
UNIFORM_DENSE: Final = 16
COUNT_DENSE: Final = 17
COUNT_MEAN: Final = 3.0

# From cat_02 on: independent of the item. cat_00 is the topic, cat_01 the creator of the item.
CONTEXT_CARDINALITIES: Final = (
    *(2, 5, 10, 24, 50, 100, 365),
    *(1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000),
)
NUM_ITEM_CATEGORIES: Final = 2
NUM_CATEGORIES: Final = NUM_ITEM_CATEGORIES + len(CONTEXT_CARDINALITIES)

# An earlier stage retrieved these shares of the candidates for the user's first, second and third
# topic; the rest is any topic.
CANDIDATE_TASTE_SHARES: Final = (0.18, 0.12, 0.08)

_DECIMALS: Final = 2  # exp differs by an ulp between processors: rounding hides it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkKey:
    """A chunk of a day; `first_row` is its first row in the whole log."""

    day: int
    index: int
    first_row: int
    rows_in_day: int

    @property
    def first_row_in_day(self) -> int:
        """The chunk's place in its day."""
        return self.index * CHUNK_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of a chunk, by time."""

    sizes: Int64Array
    first_rows: Int64Array  # within the chunk
    user_ids: Int64Array
    is_spam: BoolArray
    seconds: Float64Array  # since midnight
    devices: Int64Array  # index into DEVICES
    is_device_null: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Impressions:
    """The impressions of a chunk, in the order of its requests."""

    request_N: Int64Array  # index into the requests
    position_N: Int64Array
    seconds_N: Float64Array  # since midnight
    item_ids_N: Int64Array
    dense_DN: Float32Array  # row d is dense_{NUM_USER_DENSE + d}
    context_DN: Int64Array  # row d is cat_{NUM_ITEM_CATEGORIES + d}


def draw_requests(rng: np.random.Generator, population: Population, key: ChunkKey) -> Requests:
    """Requests that hold `CHUNK_ROWS` impressions; time runs evenly through the rows of the day."""
    sizes = _draw_request_sizes(rng)
    first_rows = np.cumsum(sizes) - sizes
    user_ids, is_spam = draw_users(rng, population, len(sizes))
    rows_before = key.first_row_in_day + first_rows + rng.random(len(sizes))
    seconds = rows_before / key.rows_in_day * (DAY_SECONDS - REQUEST_MARGIN_SECONDS)
    return Requests(
        sizes=sizes,
        first_rows=first_rows,
        user_ids=user_ids,
        is_spam=is_spam,
        seconds=np.minimum(seconds, DAY_SECONDS - REQUEST_MARGIN_SECONDS),
        devices=draw_ranks(rng.random(len(sizes)), len(DEVICES), power=2),
        is_device_null=rng.random(len(sizes)) < DEVICE_NULL_SHARE,
    )


def draw_impressions(
    rng: np.random.Generator, population: Population, requests: Requests
) -> Impressions:
    """Draw the items that each request showed, first position first."""
    request = np.repeat(np.arange(len(requests.sizes)), requests.sizes)
    item_ids = _draw_candidates(rng, population, requests.user_ids[request])
    position = np.arange(CHUNK_ROWS) - requests.first_rows[request]
    gaps = IMPRESSION_GAP_SECONDS * (position + rng.random(CHUNK_ROWS))
    return Impressions(
        request_N=request,
        position_N=position,
        seconds_N=requests.seconds[request] + gaps,
        item_ids_N=item_ids,
        dense_DN=_draw_dense(rng, population.quality_I[item_ids]),
        context_DN=_draw_context(rng),
    )


def _draw_request_sizes(rng: np.random.Generator) -> Int64Array:
    """Sizes from 1 to 40 that add up to `CHUNK_ROWS`; the last request is cut short."""
    mean_sizes = rng.gamma(REQUEST_SIZE_SHAPE, REQUEST_SIZE_SCALE, CHUNK_ROWS)
    ends = np.cumsum(np.clip(rng.poisson(mean_sizes), 1, MAX_IMPRESSIONS_PER_REQUEST))
    num_requests = int(np.searchsorted(ends, CHUNK_ROWS)) + 1
    return np.diff(np.minimum(ends[:num_requests], CHUNK_ROWS), prepend=0)


def _draw_candidates(
    rng: np.random.Generator, population: Population, user_ids_N: Int64Array
) -> Int64Array:
    bounds = np.cumsum(CANDIDATE_TASTE_SHARES)
    taste = np.searchsorted(bounds, rng.random(CHUNK_ROWS), side="right")
    is_retrieved = taste < len(bounds)
    liked = population.tastes_UT[user_ids_N, np.where(is_retrieved, taste, 0)]
    clusters = np.where(is_retrieved, liked, rng.integers(0, NUM_CLUSTERS, CHUNK_ROWS))
    return build_item_ids(draw_ranks(rng.random(CHUNK_ROWS), NUM_CREATORS, power=3), clusters)


def _draw_dense(rng: np.random.Generator, quality_N: Float64Array) -> Float32Array:
    dense = rng.standard_normal((NUM_DENSE - NUM_USER_DENSE, CHUNK_ROWS), dtype=np.float32)
    hint = dense[ITEM_HINT_DENSE - NUM_USER_DENSE]
    hint += quality_N.astype(np.float32)
    hint *= np.float32(ITEM_HINT_SCALE)
    price = dense[LOGNORMAL_DENSE - NUM_USER_DENSE]
    price[:] = np.exp(price.astype(np.float64)).round(_DECIMALS)
    dense[UNIFORM_DENSE - NUM_USER_DENSE] = rng.random(CHUNK_ROWS, dtype=np.float32)
    dense[COUNT_DENSE - NUM_USER_DENSE] = rng.poisson(COUNT_MEAN, CHUNK_ROWS)
    return dense


def _draw_context(rng: np.random.Generator) -> Int64Array:
    uniform = rng.random((len(CONTEXT_CARDINALITIES), CHUNK_ROWS))
    uniform *= uniform  # small values are frequent, as ids sorted by use are
    uniform *= np.array(CONTEXT_CARDINALITIES)[:, None]
    return uniform.astype(np.int64)
