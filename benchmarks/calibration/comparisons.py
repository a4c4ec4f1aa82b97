"""Comparisons of variants by the product's own statistics, each on a log of its own.

In an A/A comparison both variants are the same and have seeds of their own, so any verdict is a
false positive. For the power, the other variant trains on a part of the rows. Two naive ways are
applied to the same trainings: unpaired means, as a tracker's table of runs suggests, and a
bootstrap of the rows for one training of each variant, which leaves out the noise of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from benchmarks.calibration.trainings import LABEL, Log, Scores, make_log, train
from pipeline_runtime.comparison.bootstrap import ScoredRows, draw_metric, measure
from pipeline_runtime.comparison.intervals import CONFIDENCE, MIN_SEEDS
from pipeline_runtime.comparison.judging import Arm, judge_rows
from pipeline_runtime.measuring.student import find_t

# Shares of the training rows that the other variant trains on, for the power.
KEPT_SHARES: Final = (0.6, 0.54, 0.48, 0.42, 0.36)
POWER_SEEDS: Final = (3, 5)
# Logs of power comparisons are others than those of A/A comparisons.
_POWER_LOGS: Final = 1_000_000
# Seeds of the other variant; a variant that differs at all has noise of its own.
_OTHER_SEEDS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The outcome of a comparison in one metric.

    Attributes:
        kept_share: share of the rows that the other variant trained on; 1 in A/A comparisons.
        found: True if there is a verdict, and not that fewer rows are better.
        unpaired: True if the interval of unpaired means leaves out 0.
        unpaired_width: width of that interval, relative to that of `compare`.
        rows_alone: True if the bootstrap interval of the first seed's difference leaves out 0.
    """

    kept_share: float
    seeds: int
    metric: str
    difference: float
    found: bool
    unpaired: bool
    unpaired_width: float
    rows_alone: bool


def compare_equal(index: int, num_rows: int) -> list[Compared]:
    """Compare variants that are the same, on a log of their own."""
    torch.set_num_threads(1)
    log = make_log(index, num_rows)
    first = [train(log, seed) for seed in range(MIN_SEEDS)]
    second = [train(log, _OTHER_SEEDS + seed) for seed in range(MIN_SEEDS)]
    return list(_compare(log, first, second, kept_share=1.0))


def compare_kept(index: int, num_rows: int) -> list[Compared]:
    """Compare with variants that train on each share of the rows, by each number of seeds."""
    torch.set_num_threads(1)
    log = make_log(_POWER_LOGS + index, num_rows)
    most = max(POWER_SEEDS)
    first = [train(log, seed) for seed in range(most)]
    found: list[Compared] = []
    for share in KEPT_SHARES:
        second = [train(log, _OTHER_SEEDS + seed, kept_share=share) for seed in range(most)]
        for number in POWER_SEEDS:
            found += _compare(log, first[:number], second[:number], kept_share=share)
    return found


def _compare(
    log: Log, first: Sequence[Scores], second: Sequence[Scores], *, kept_share: float
) -> Iterator[Compared]:
    models = [*first, *second]
    rows = ScoredRows(
        group_N=log.user_N,
        label_N=log.evaluation[LABEL].to_numpy().astype(np.float64),
        weight_N=np.ones(log.evaluation.num_rows),
        prediction_MN=np.stack([prediction_N for prediction_N, _ in models]),
        loss_MN=np.stack([loss_N for _, loss_N in models]),
    )
    number = len(first)
    arms = [Arm(label=label, seeds=tuple(range(number))) for label in "AB"]
    parts = [slice(number), slice(number, None)]
    for metric in judge_rows(arms, rows):
        [difference] = metric.differences
        assert difference.high is not None, "there are at least three seeds"
        value_M, drawn_RM = measure(rows, metric.name), draw_metric(rows, metric.name)
        normal = find_t(CONFIDENCE, len(drawn_RM) - 1)
        # Each mean has the noise of its seeds, and that of the rows, as if the rows were others.
        unpaired = normal * math.sqrt(
            sum(
                value_M[part].var(ddof=1) / number + drawn_RM[:, part].mean(axis=1).var(ddof=1)
                for part in parts
            )
        )
        alone = normal * float((drawn_RM[:, number] - drawn_RM[:, 0]).std(ddof=1))
        is_found = difference.verdict != "Inconclusive"
        yield Compared(
            kept_share=kept_share,
            seeds=number,
            metric=metric.name,
            difference=difference.value,
            found=is_found if kept_share == 1.0 else difference.verdict == "Worse",
            unpaired=bool(abs(difference.value) > unpaired),
            unpaired_width=unpaired / (difference.high - difference.value),
            rows_alone=bool(abs(value_M[number] - value_M[0]) > alone),
        )
