"""The users and items behind the sample data: who is active, who likes what, who is a spammer.

Owns everything that holds for a user or an item over all days, the history of a user included, and
the one function that turns a seed into random numbers. `options` runs before it; `impressions`
draws requests from it. Nothing here depends on the number of rows, so a user is the same person in
a sample of ten thousand rows and of a hundred million.

Array suffixes: U users (index = user_id, 0 unused) · I items (index = item_id) · K clusters ·
T tastes · R requests · E events of all histories in a row (ragged).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
UInt64Array = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]

NUM_USERS: Final = 200_000
NUM_SPAM_USERS: Final = 4_000  # 2 % of the users
SPAM_REQUEST_SHARE: Final = 0.05  # spammers are 2.6 times as busy as others
SPAM_REASONS: Final = ("bot_traffic", "click_farm", "stolen_account")

NUM_CLUSTERS: Final = 32  # topics: item_id % NUM_CLUSTERS
NUM_CREATORS: Final = 4_096  # item_id // NUM_CLUSTERS, from 1; a creator has one item a topic
ITEM_TABLE_SIZE: Final = (NUM_CREATORS + 1) * NUM_CLUSTERS  # ids below NUM_CLUSTERS: never used
CREATOR_QUALITY_WEIGHT: Final = 0.8  # with the next: variance 0.64 + 0.36 = 1
ITEM_QUALITY_WEIGHT: Final = 0.6

TASTE_AFFINITIES: Final = (1.0, 0.6, 0.3)  # to a user's first, second and third topic; else 0
HISTORY_TASTE_SHARES: Final = (0.30, 0.20, 0.10)  # of the history; the rest is any topic

NUM_USER_DENSE: Final = 6
LOGNORMAL_USER_DENSE: Final = 5  # dense_05 is a skewed count, as activity counters are
MIN_SEQUENCE_LENGTH: Final = 100
MAX_SEQUENCE_LENGTH: Final = 200
MAX_EVENTS_PER_DAY: Final = 60
MIN_EVENTS_PER_DAY: Final = 4
MAX_AGE_DAYS: Final = 2_000  # of the oldest account on the first day

COUNTRIES: Final = ("US", "BR", "IN", "DE", "GB", "FR", "MX", "JP", "CA", "IT", "ES", "NL")

_POPULATION_STREAM: Final = 1  # the first number after the seed; `impressions` uses 2
_DECIMALS: Final = 3  # exp and log differ by an ulp between processors: rounding hides it


class Action(IntEnum):
    """A user's action on an item of the history."""

    VIEW = 0
    CLICK = 1
    SAVE = 2
    SHARE = 3
    HIDE = 4


# Of 256 events; liked topics draw clicks and saves, others views and hides.
_LIKED_ACTIONS: Final = np.repeat(np.array(list(Action), np.int8), (96, 88, 48, 20, 4))
_OTHER_ACTIONS: Final = np.repeat(np.array(list(Action), np.int8), (192, 28, 8, 4, 24))


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Tables of users and items; the same for every chunk of one seed."""

    seed: int
    genuine_ids: Int64Array  # busiest first
    spam_ids: Int64Array  # busiest first
    tastes_UT: Int8Array
    dense_UD: Float32Array
    country_U: Int8Array  # index into COUNTRIES
    age_days_U: npt.NDArray[np.int32]  # on the first day
    sequence_length_U: Int64Array
    events_per_day_U: Float64Array
    missing_U: (
        Float64Array  # uniform in [0, 1): a user column is null where this is below its share
    )
    quality_I: Float64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """The histories of some requests, most recent event first: request r has E[offsets[r]:]."""

    offsets: npt.NDArray[np.int32]
    item_ids_E: Int64Array
    actions_E: Int8Array


def build_generator(seed: int, *stream: int) -> np.random.Generator:
    """Random numbers of one stream of the seed; streams are independent of one another."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *stream])))


def build_population(seed: int) -> Population:
    """Draws every user and item of a seed; 15 MB."""
    rng = build_generator(seed, _POPULATION_STREAM)
    ids = rng.permutation(np.arange(1, NUM_USERS + 1, dtype=np.int64))
    num_rows = NUM_USERS + 1
    return Population(
        seed=seed,
        genuine_ids=ids[NUM_SPAM_USERS:],
        spam_ids=ids[:NUM_SPAM_USERS],
        tastes_UT=_draw_tastes(rng, num_rows),
        dense_UD=_draw_user_dense(rng, num_rows),
        country_U=draw_ranks(rng.random(num_rows), len(COUNTRIES), power=2).astype(np.int8),
        age_days_U=rng.integers(0, MAX_AGE_DAYS, num_rows, dtype=np.int32),
        sequence_length_U=rng.integers(MIN_SEQUENCE_LENGTH, MAX_SEQUENCE_LENGTH + 1, num_rows),
        events_per_day_U=rng.uniform(MIN_EVENTS_PER_DAY, MAX_EVENTS_PER_DAY, num_rows),
        missing_U=rng.random(num_rows),
        quality_I=_draw_item_quality(rng),
    )


def draw_ranks(uniform: Float64Array, size: int, *, power: int) -> Int64Array:
    """Ranks below `size` of which the small are frequent: P(rank) ~ rank^(1/power - 1), Zipf-like.

    Made of products only, which every processor rounds alike.
    """
    skewed = uniform.copy()
    for _ in range(power - 1):
        skewed *= uniform
    skewed *= size
    return skewed.astype(np.int64)


def draw_users(
    rng: np.random.Generator, population: Population, num_requests: int
) -> tuple[Int64Array, BoolArray]:
    """The user of each request, and whether that is a spammer."""
    is_spam = rng.random(num_requests) < SPAM_REQUEST_SHARE
    uniform = rng.random(num_requests)
    genuine = population.genuine_ids[draw_ranks(uniform, len(population.genuine_ids), power=2)]
    spam = population.spam_ids[draw_ranks(uniform, len(population.spam_ids), power=2)]
    return np.where(is_spam, spam, genuine), is_spam


def build_item_ids(creator_ranks: Int64Array, clusters: Int64Array) -> Int64Array:
    """Item ids of creators (0 the most popular) and topics; popular ids are spread over the range.

    An odd factor permutes the numbers below a power of two.
    """
    creators = 1 + (creator_ranks * 1_597 + 811) % NUM_CREATORS
    return creators * NUM_CLUSTERS + clusters


def build_affinity(
    population: Population, user_ids: Int64Array, item_ids: Int64Array
) -> Float64Array:
    """Return each user's affinity to the topic of the item, 0 to 1, as in the history."""
    likes = population.tastes_UT[user_ids] == (item_ids % NUM_CLUSTERS).astype(np.int8)[:, None]
    return np.asarray(likes @ np.array(TASTE_AFFINITIES))


def build_histories(
    population: Population,
    user_ids_R: Int64Array,
    days_R: Float64Array,
    lengths_R: Int64Array | None = None,
) -> Histories:
    """Return the last events of each user at a time, in days since the first day began.

    Event n of a user is a hash of seed, user and n, so two requests of one user an hour apart share
    all but the events in between, whichever chunk they are in.

    Args:
        lengths_R: number of events of each history; the user's own, 100 to 200, if absent.
    """
    lengths = population.sequence_length_U[user_ids_R] if lengths_R is None else lengths_R
    ends = np.cumsum(lengths)
    starts = ends - lengths
    newest = count_events(population, user_ids_R, days_R)
    counters = np.repeat(newest + starts, lengths) - np.arange(ends[-1])
    users = np.repeat(user_ids_R, lengths)
    bits = _hash_events(population.seed, users, counters)
    items, is_liked = _pick_history_items(population, users, bits)
    return Histories(
        offsets=np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)]),
        item_ids_E=items,
        actions_E=_pick_actions(bits, is_liked),
    )


def count_events(
    population: Population, user_ids_R: Int64Array, days_R: Float64Array
) -> Int64Array:
    """Return the number of each user's newest event at a time, in days as `build_histories`."""
    events = MAX_SEQUENCE_LENGTH + population.events_per_day_U[user_ids_R] * days_R
    return events.astype(np.int64)


def _draw_tastes(rng: np.random.Generator, num_rows: int) -> Int8Array:
    """Distinct topics: NUM_CLUSTERS is a power of two, so steps of an odd width do not meet."""
    first = rng.integers(0, NUM_CLUSTERS, num_rows)
    step = 1 + 2 * rng.integers(0, NUM_CLUSTERS // 2, num_rows)
    tastes = [(first + index * step) % NUM_CLUSTERS for index in range(len(TASTE_AFFINITIES))]
    return np.stack(tastes, axis=1).astype(np.int8)


def _draw_user_dense(rng: np.random.Generator, num_rows: int) -> Float32Array:
    dense = rng.standard_normal((num_rows, NUM_USER_DENSE), dtype=np.float32)
    skewed = np.exp(dense[:, LOGNORMAL_USER_DENSE].astype(np.float64))
    dense[:, LOGNORMAL_USER_DENSE] = skewed.round(_DECIMALS)
    return dense


def _draw_item_quality(rng: np.random.Generator) -> Float64Array:
    creators = np.repeat(rng.standard_normal(NUM_CREATORS + 1), NUM_CLUSTERS)
    own = rng.standard_normal(ITEM_TABLE_SIZE)
    return CREATOR_QUALITY_WEIGHT * creators + ITEM_QUALITY_WEIGHT * own


def _hash_events(seed: int, user_ids: Int64Array, counters: Int64Array) -> UInt64Array:
    """64 even bits for each event: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    key = np.uint64(np.random.SeedSequence([seed]).generate_state(1, np.uint64)[0])
    bits = (user_ids.astype(np.uint64) << np.uint64(32)) + counters.astype(np.uint64)
    bits *= np.uint64(0x9E3779B97F4A7C15)
    bits ^= key
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _take_bits(bits: UInt64Array, *, first: int, width: int) -> Int64Array:
    mask = np.uint64((1 << width) - 1)
    return ((bits >> np.uint64(first)) & mask).astype(np.int64)


def _pick_history_items(
    population: Population, user_ids: Int64Array, bits: UInt64Array
) -> tuple[Int64Array, BoolArray]:
    """Bits 0-15 choose the taste, 16-20 a topic for the rest, 32-55 the creator."""
    choice = _take_bits(bits, first=0, width=16) / 2.0**16
    taste = np.searchsorted(np.cumsum(HISTORY_TASTE_SHARES), choice, side="right")
    is_liked = taste < len(HISTORY_TASTE_SHARES)
    liked_cluster = population.tastes_UT[user_ids, np.where(is_liked, taste, 0)].astype(np.int64)
    cluster = np.where(is_liked, liked_cluster, _take_bits(bits, first=16, width=5))
    creators = draw_ranks(_take_bits(bits, first=32, width=24) / 2.0**24, NUM_CREATORS, power=3)
    return build_item_ids(creators, cluster), is_liked


def _pick_actions(bits: UInt64Array, is_liked: BoolArray) -> Int8Array:
    """Bits 56-63 choose the action."""
    choice = _take_bits(bits, first=56, width=8)
    return np.where(is_liked, _LIKED_ACTIONS[choice], _OTHER_ACTIONS[choice])
