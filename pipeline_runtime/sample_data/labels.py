"""Draws what users did with the impressions: clicks, saves, conversions and dwell.

Owns the model behind the labels and its weights. `impressions` runs before it, `arrow_tables`
after. The model does not know the day, so what is learned on some days holds on the others. Spam
users click at random: rows of theirs only hurt training.

Array suffix: N impressions of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline_runtime.sample_data.impressions import (
    CHUNK_ROWS,
    NUM_ITEM_CATEGORIES,
    Impressions,
    Requests,
)
from pipeline_runtime.sample_data.population import (
    NUM_USER_DENSE,
    BoolArray,
    Float64Array,
    Int8Array,
    Population,
    build_affinity,
)

# Logits. Set by trial so that 5 to 8 % of the rows are clicked and the best possible AUC is a
# little above 0.8: docs/sample-data.md has the measured values.
BASE_LOGIT: Final = -3.3
DENSE_LOGITS: Final = {0: 0.45, 7: 0.50, 8: 0.40, 9: -0.35}  # by number of the dense column
CURVED_DENSE: Final = 10  # enters by 1 - x²: a linear model does not see it
CURVED_LOGIT: Final = 0.25
QUALITY_LOGIT: Final = 0.55  # of an item, variance 1
AFFINITY_LOGIT: Final = 1.7  # of user and topic, 0 to 1
POSITION_LOGIT: Final = -0.30  # of log(1 + position)
SURFACE_CATEGORY: Final = 4  # cat_04, 10 values
SURFACE_LOGITS: Final = (0.0, 0.3, -0.3, 0.15, -0.15, 0.4, -0.4, 0.2, -0.2, 0.0)

SPAM_CLICK_SHARE: Final = 0.15  # of what spam users see, whatever it is
SAVE_SHARE_OF_CLICKS: Final = 0.22
SAVE_SHARE_WITHOUT_CLICK: Final = 0.05  # times the click's probability
SECOND_SAVE_SHARE: Final = 0.25  # of those that save
THIRD_SAVE_SHARE: Final = 0.05
CONVERSION_SHARE_OF_CLICKS: Final = 0.30
CONVERSION_DELAY_MEAN_HOURS: Final = 20.0
DWELL_MEDIAN_SECONDS: Final = 18.0
SPAM_DWELL_MEDIAN_SECONDS: Final = 1.5
DWELL_LOG_SPREAD: Final = 0.8  # standard deviation of the logarithm

_DECIMALS: Final = 2  # exp and log differ by an ulp between processors: rounding hides it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The labels of a chunk; NaN stands for no conversion, no click."""

    clicked_N: BoolArray
    saves_N: Int8Array
    conversion_delay_hours_N: Float64Array
    dwell_seconds_N: Float64Array


def build_click_shares(
    population: Population, requests: Requests, impressions: Impressions
) -> Float64Array:
    """The probability of a click on each impression: no model ranks better than this does."""
    logits = _build_logits(population, requests, impressions)
    is_spam = requests.is_spam[impressions.request_N]
    return np.where(is_spam, SPAM_CLICK_SHARE, 1.0 / (1.0 + np.exp(-logits)))


def draw_outcomes(
    rng: np.random.Generator,
    population: Population,
    requests: Requests,
    impressions: Impressions,
) -> Outcomes:
    """Draw the outcome of each impression."""
    click_shares = build_click_shares(population, requests, impressions)
    is_spam = requests.is_spam[impressions.request_N]
    clicked = rng.random(CHUNK_ROWS) < click_shares
    return Outcomes(
        clicked_N=clicked,
        saves_N=_draw_saves(rng, clicked, click_shares),
        conversion_delay_hours_N=_draw_delays(rng, clicked & ~is_spam),
        dwell_seconds_N=_draw_dwell(rng, clicked, is_spam),
    )


def _build_logits(
    population: Population, requests: Requests, impressions: Impressions
) -> Float64Array:
    user_ids = requests.user_ids[impressions.request_N]
    items = impressions.item_ids_N
    curved = _get_dense(population, requests, impressions, CURVED_DENSE)
    surface = impressions.context_DN[SURFACE_CATEGORY - NUM_ITEM_CATEGORIES]
    logits: Float64Array = BASE_LOGIT + np.array(SURFACE_LOGITS)[surface]
    for column, weight in DENSE_LOGITS.items():
        logits += weight * _get_dense(population, requests, impressions, column)
    logits += CURVED_LOGIT * (1.0 - curved * curved)
    logits += QUALITY_LOGIT * population.quality_I[items]
    logits += AFFINITY_LOGIT * build_affinity(population, user_ids, items)
    logits += POSITION_LOGIT * np.log1p(impressions.position_N)
    return logits


def _get_dense(
    population: Population, requests: Requests, impressions: Impressions, column: int
) -> Float64Array:
    if column >= NUM_USER_DENSE:
        return np.asarray(impressions.dense_DN[column - NUM_USER_DENSE], np.float64)
    by_request = population.dense_UD[requests.user_ids, column]
    return np.asarray(by_request[impressions.request_N], np.float64)


def _draw_saves(
    rng: np.random.Generator, clicked_N: BoolArray, click_shares_N: Float64Array
) -> Int8Array:
    shares = np.where(clicked_N, SAVE_SHARE_OF_CLICKS, SAVE_SHARE_WITHOUT_CLICK * click_shares_N)
    first, more = rng.random((2, CHUNK_ROWS))
    counts = 1 + (more < SECOND_SAVE_SHARE).astype(np.int8) + (more < THIRD_SAVE_SHARE)
    return np.where(first < shares, counts, 0).astype(np.int8)


def _draw_delays(rng: np.random.Generator, can_convert_N: BoolArray) -> Float64Array:
    is_converted = can_convert_N & (rng.random(CHUNK_ROWS) < CONVERSION_SHARE_OF_CLICKS)
    hours = CONVERSION_DELAY_MEAN_HOURS * rng.standard_exponential(CHUNK_ROWS)
    return np.where(is_converted, hours.round(_DECIMALS), np.nan)


def _draw_dwell(
    rng: np.random.Generator, clicked_N: BoolArray, is_spam_N: BoolArray
) -> Float64Array:
    median = np.where(is_spam_N, SPAM_DWELL_MEDIAN_SECONDS, DWELL_MEDIAN_SECONDS)
    seconds = median * np.exp(DWELL_LOG_SPREAD * rng.standard_normal(CHUNK_ROWS))
    return np.where(clicked_N, seconds.round(_DECIMALS), np.nan)
