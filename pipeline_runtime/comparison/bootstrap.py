"""Metrics of models on shared evaluation rows, and a bootstrap of the rows by groups.

`rows` runs before and pairs the rows; `intervals` runs after. A bootstrap draw gives each group a
weight, Poisson distributed with mean 1, which multiplies the weights of its rows. For metrics that
are ratios, as all here, this equals drawing as many groups with replacement (Chamandy et al. 2012,
"Estimating uncertainty for massive data streams"), and needs no gathering of rows. All models get
the same draws, so that the noise that they share cancels in differences.

Legend: N rows, G groups, M models, R draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

AUC = "auc"
LOSS = "loss"
# Whether a larger value is better.
RISES: dict[str, bool] = {AUC: True, LOSS: False}

# With 400 draws, a standard error errs by 3.5 %, which its t quantile of 399 degrees accounts for.
MAX_DRAWS = 400
MIN_DRAWS = 100
# A second of one core draws about this many rows of models, so that a million rows of six models,
# which get the fewest draws, take ten seconds.
_WORK_ROWS = 4e8
# Predictions that draws tell apart. AUCs of 4,096 bins of equally many rows differ from the exact
# ones by less than a thousandth of their noise, and the bins stay in the processor's cache.
_NUM_BINS = 4096
# Draws whose weights are held at once: a matrix of 64 MB for a million groups.
_BLOCK_DRAWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Evaluation rows with the predictions of several models.

    Attributes:
        group_N: number of each row's group, from 0 to G-1.
        label_N: from 0 to 1, or any number if only the loss matters.
        weight_N: weight of each row, at least 0.
        prediction_MN: any score that rises with the label.
        loss_MN: NaN where a model has no loss.
    """

    group_N: Codes
    label_N: Floats
    weight_N: Floats
    prediction_MN: npt.NDArray[np.float32]
    loss_MN: npt.NDArray[np.float32]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.group_N)

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return int(self.group_N.max()) + 1 if self.num_rows else 0

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that these rows can give, the most telling one first."""
        names = []
        label_N = self.label_N[self.weight_N > 0]
        if len(label_N) and label_N.min() >= 0 and label_N.max() <= 1 and np.ptp(label_N) > 0:
            names.append(AUC)
        if self.weight_N.sum() > 0 and np.isfinite(self.loss_MN).all():
            names.append(LOSS)
        return tuple(names)


def measure(rows: ScoredRows, metric: str) -> Floats:
    """Return the metric of each model [M] on all rows."""
    meter = _AucMeter(rows, rows.num_rows) if metric == AUC else _LossMeter(rows)
    value_M: Floats = meter.measure(np.ones((1, rows.num_groups)))[0]
    return value_M


def draw_metric(rows: ScoredRows, metric: str, seed: int = 0) -> Floats:
    """Return the metric of each model in bootstrap draws of the groups [R, M].

    A draw without a metric, such as one without a positive label, is left out.
    """
    random = np.random.default_rng(seed)
    meter = _AucMeter(rows, _NUM_BINS) if metric == AUC else _LossMeter(rows)
    left = count_draws(rows)
    found = []
    while left > 0:
        size = min(left, _BLOCK_DRAWS)
        weight_RG = random.poisson(1.0, (size, rows.num_groups)).astype(np.float64)
        found.append(meter.measure(weight_RG))
        left -= size
    drawn_RM = np.concatenate(found)
    whole_RM: Floats = drawn_RM[np.isfinite(drawn_RM).all(axis=1)]
    return whole_RM


def count_draws(rows: ScoredRows) -> int:
    """Return how many draws are made: fewer where each takes long."""
    work = rows.num_rows * len(rows.prediction_MN)
    return int(np.clip(_WORK_ROWS / max(work, 1), MIN_DRAWS, MAX_DRAWS))


class _LossMeter:
    """Weighted means of the losses, from sums by group."""

    def __init__(self, rows: ScoredRows) -> None:
        def sum_groups(value_N: Floats) -> Floats:
            sums_G: Floats = np.bincount(rows.group_N, value_N, rows.num_groups).astype(np.float64)
            return sums_G

        self._weight_G = sum_groups(rows.weight_N)
        self._loss_GM = np.stack([sum_groups(rows.weight_N * one_N) for one_N in rows.loss_MN], 1)

    def measure(self, weight_RG: Floats) -> Floats:
        """Return the loss of each model for each draw of weights [R, M]."""
        with np.errstate(invalid="ignore"):
            loss_RM: Floats = (weight_RG @ self._loss_GM) / (weight_RG @ self._weight_G)[:, None]
        return loss_RM


class _AucMeter:
    """Areas under the ROC curve, from each row's bin in the order of a model's predictions.

    AUC = Σ_b p_b · (Σ_{a<b} n_a + n_b / 2) ÷ (Σ p · Σ n), with the weights p of positives and n of
    negatives by distinct prediction b (Mann and Whitney's U; ties count half). Labels between 0 and
    1 are shared between p and n, as in the metrics of training.
    """

    def __init__(self, rows: ScoredRows, num_bins: int) -> None:
        self._rows = rows
        self._bin_MN = [_find_bins(one_N, num_bins) for one_N in rows.prediction_MN]

    def measure(self, weight_RG: Floats) -> Floats:
        """Return the AUC of each model for each draw of weights [R, M]."""
        return np.array([self._measure_one(weight_G) for weight_G in weight_RG])

    def _measure_one(self, weight_G: Floats) -> list[float]:
        weight_N = weight_G[self._rows.group_N] * self._rows.weight_N
        positive_N = weight_N * self._rows.label_N
        negative_N = weight_N - positive_N
        pairs = positive_N.sum() * negative_N.sum()
        if not pairs:
            return [np.nan] * len(self._bin_MN)
        return [_count_won(bin_N, positive_N, negative_N) / pairs for bin_N in self._bin_MN]


def _find_bins(prediction_N: npt.NDArray[np.float32], num_bins: int) -> Codes:
    """Return the bin of each row; equal predictions share one, and at most `num_bins` are there."""
    _, place_N, count_B = np.unique(prediction_N, return_inverse=True, return_counts=True)
    if len(count_B) > num_bins:
        first_B = np.cumsum(count_B) - count_B  # rows with a lower prediction
        place_N = (first_B * num_bins // len(prediction_N))[place_N]
    return place_N.astype(np.int64)


def _count_won(bin_N: Codes, positive_N: Floats, negative_N: Floats) -> float:
    positive_B = np.bincount(bin_N, positive_N)
    negative_B = np.bincount(bin_N, negative_N)
    below_B = np.cumsum(negative_B) - negative_B / 2
    return float(positive_B @ below_B)
