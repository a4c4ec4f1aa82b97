"""Metrics of a score and a label that is 0 or 1: AUC, log-loss, calibration, confusion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.measuring.base import (
    NO_ROWS,
    MergesValues,
    Result,
    describe_rows,
    list_columns,
    read_columns,
)
from pipeline_runtime.measuring.exact import (
    Floats,
    Ints,
    divide,
    split_weights,
    sum_by_bin,
    sum_exactly,
    to_exact,
    to_float,
)
from pipeline_runtime.measuring.values import Histogram, State, Sums

# Points of a curve in a report: more are not seen.
_MAX_POINTS = 200
_SIGN_BIT = np.uint32(1 << 31)
# Probabilities are kept this far from 0 and 1, as scikit-learn's `log_loss` does.
_EPSILONS = {pa.float16(): 2.0**-10, pa.float32(): 2.0**-23}
_EPSILON = 2.0**-52

# Of the scores of a histogram: the first and last in a bucket.
_Points: TypeAlias = list[list[float]]


def find_buckets(scores_N: Floats, bits: int) -> Ints:
    """Return the first bits of float32 scores, in an order that is that of the scores."""
    with np.errstate(over="ignore"):
        patterns_N = scores_N.astype(np.float32).view(np.uint32)
    ordered_N = np.where(patterns_N & _SIGN_BIT, ~patterns_N, patterns_N | _SIGN_BIT)
    return (ordered_N >> np.uint32(32 - bits)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Auc(MergesValues):
    """The area under the ROC curve, from a histogram of the scores of each label.

    The histogram's buckets are the first `bits` bits of the score as a float32. Rows of one bucket
    count as ties. So the area of the scores themselves lies between `lower` and `upper`.

    Attributes:
        has_curve: whether the result has the points of the curve.
    """

    score: str
    label: str
    weight: str | None = None
    bits: int = 20
    has_curve: bool = True

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.score, self.label, self.weight)

    def empty(self) -> State:
        return {"rows": NO_ROWS, "scores": Histogram.empty(1 << self.bits, 2)}

    def update(self, table: pa.Table) -> State:
        read = read_columns(table, score=self.score, label=self.label, weight=self.weight)
        buckets_N = find_buckets(read["score"], self.bits)
        labels_N = read["label"].astype(np.int64)
        empty = Histogram.empty(1 << self.bits, 2)
        if self.weight is None:
            histogram = empty.count(buckets_N, labels_N)
        else:
            histogram = empty.add(buckets_N, labels_N, split_weights(read["weight"]))
        return {"rows": read.counts(), "scores": histogram}

    def finish(self, state: State) -> Result:
        rows, histogram = state["rows"], state["scores"]
        assert isinstance(rows, Sums)
        assert isinstance(histogram, Histogram)
        negatives, positives = histogram.list_amounts()
        below = wins = ties = 0
        curve = [(0, 0)]  # weights of negatives and positives below a score
        for negative, positive in zip(negatives, positives, strict=True):
            wins += positive * below
            ties += positive * negative
            below += negative
            curve.append((below, curve[-1][1] + positive))
        pairs = below * sum(positives)
        result = describe_rows(rows) | {
            "value": divide(2 * wins + ties, 2 * pairs) if pairs else None,
            "lower": divide(wins, pairs) if pairs else None,
            "upper": divide(wins + ties, pairs) if pairs else None,
            "positives": to_amount(sum(positives)),
            "negatives": to_amount(below),
        }
        return result | ({"roc": _thin_roc(curve)} if pairs and self.has_curve else {})


def to_amount(units: int) -> float:
    """Return an amount of a histogram as a number."""
    return divide(units, 1 << 32)


def _thin_roc(curve: list[tuple[int, int]]) -> _Points:
    """Return [false positive rate, true positive rate] from the highest threshold down."""
    negatives, positives = curve[-1]
    points = [
        [divide(negatives - below, negatives), divide(positives - also, positives)]
        for below, also in reversed(curve)
    ]
    kept, last = [points[0]], points[0]
    for point in points[1:-1]:  # points at an equal distance along the curve
        if abs(point[0] - last[0]) + abs(point[1] - last[1]) >= 2 / _MAX_POINTS:
            kept.append(point)
            last = point
    return [*kept, points[-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLoss(MergesValues):
    """The mean negative logarithm of the probability of the label; see sklearn's `log_loss`.

    Attributes:
        is_normalized: divide it by the entropy of the mean label (He et al., "Practical lessons
            from predicting clicks on ads at Facebook", 2014).
    """

    score: str
    label: str
    weight: str | None = None
    is_normalized: bool = False

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.score, self.label, self.weight)

    def empty(self) -> State:
        return {"rows": NO_ROWS, "sums": Sums((0, 0, 0))}

    def update(self, table: pa.Table) -> State:
        read = read_columns(
            table, score=self.score, label=self.label, weight=self.weight, is_probability=True
        )
        epsilon = _EPSILONS.get(table.schema.field(self.score).type, _EPSILON)
        scores_N = np.clip(read["score"], epsilon, 1 - epsilon)
        is_positive = read["label"] == 1
        # Arrow's logarithm is that of libm, whose result depends on the number alone. Numpy's may
        # differ between the first and the last elements of an array.
        chosen_N = np.where(is_positive, scores_N, 1 - scores_N)
        losses_N = np.asarray(pc.negate(pc.ln(pa.array(chosen_N))))
        if self.weight is None:
            num_rows, num_positive = len(losses_N), int(is_positive.sum())
            sums = (sum_exactly(losses_N), to_exact(num_rows), to_exact(num_positive))
        else:
            weights_N = read["weight"]
            sums = (
                sum_exactly(losses_N * weights_N),
                sum_exactly(weights_N),
                sum_exactly(weights_N[is_positive]),
            )
        return {"rows": read.counts(), "sums": Sums(sums)}

    def finish(self, state: State) -> Result:
        rows, sums = state["rows"], state["sums"]
        assert isinstance(rows, Sums)
        assert isinstance(sums, Sums)
        loss, weight, positive = sums.numbers
        result = describe_rows(rows) | {"value": None, "meanLabel": None}
        if not weight:
            return result
        mean, rate = divide(loss, weight), divide(positive, weight)
        if not self.is_normalized:
            return result | {"value": mean, "meanLabel": rate}
        entropy = -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)
        value = mean / entropy if entropy else None
        return result | {"value": value, "meanLabel": rate, "logLoss": mean}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(MergesValues):
    """The mean score divided by the mean label, and the same by score: the reliability curve."""

    score: str
    label: str
    weight: str | None = None
    bins: int = 10

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.score, self.label, self.weight)

    def empty(self) -> State:
        none = Sums((0,) * self.bins)
        return {"rows": NO_ROWS, "weights": none, "scores": none, "labels": none}

    def update(self, table: pa.Table) -> State:
        read = read_columns(
            table, score=self.score, label=self.label, weight=self.weight, is_probability=True
        )
        scores_N, labels_N = read["score"], read["label"]
        weights_N = np.ones_like(scores_N) if self.weight is None else read["weight"]
        bins_N = np.minimum((scores_N * self.bins).astype(np.int64), self.bins - 1)
        return {
            "rows": read.counts(),
            "weights": Sums(sum_by_bin(weights_N, bins_N, self.bins)),
            "scores": Sums(sum_by_bin(weights_N * scores_N, bins_N, self.bins)),
            "labels": Sums(sum_by_bin(weights_N * labels_N, bins_N, self.bins)),
        }

    def finish(self, state: State) -> Result:
        rows, *sums = (state[name] for name in ("rows", "weights", "scores", "labels"))
        assert isinstance(rows, Sums)
        weights, scores, labels = (s.numbers for s in sums if isinstance(s, Sums))
        weight, score, label = sum(weights), sum(scores), sum(labels)
        error = sum(abs(s - y) for s, y in zip(scores, labels, strict=True))
        return describe_rows(rows) | {
            "value": divide(score, label) if label else None,
            "meanScore": divide(score, weight) if weight else None,
            "meanLabel": divide(label, weight) if weight else None,
            "expectedCalibrationError": divide(error, weight) if weight else None,
            "bins": [
                {
                    "from": index / self.bins,
                    "to": (index + 1) / self.bins,
                    "weight": to_float(w),
                    "meanScore": divide(s, w),
                    "meanLabel": divide(y, w),
                }
                for index, (w, s, y) in enumerate(zip(weights, scores, labels, strict=True))
                if w
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion(MergesValues):
    """The rows of each label that a threshold takes for positive: those at or above it.

    Attributes:
        thresholds: in ascending order.
    """

    score: str
    label: str
    thresholds: tuple[float, ...]
    weight: str | None = None

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.score, self.label, self.weight)

    def empty(self) -> State:
        return {"rows": NO_ROWS, "scores": Histogram.empty(len(self.thresholds) + 1, 2)}

    def update(self, table: pa.Table) -> State:
        read = read_columns(table, score=self.score, label=self.label, weight=self.weight)
        reached_N = np.searchsorted(np.array(self.thresholds), read["score"], side="right")
        labels_N = read["label"].astype(np.int64)
        weights_N = np.ones_like(read["score"]) if self.weight is None else read["weight"]
        empty = Histogram.empty(len(self.thresholds) + 1, 2)
        histogram = empty.add(reached_N.astype(np.int64), labels_N, split_weights(weights_N))
        return {"rows": read.counts(), "scores": histogram}

    def finish(self, state: State) -> Result:
        rows, histogram = state["rows"], state["scores"]
        assert isinstance(rows, Sums)
        assert isinstance(histogram, Histogram)
        negatives, positives = (
            dict(zip(histogram.buckets_B.tolist(), amounts, strict=True))
            for amounts in histogram.list_amounts()
        )
        lines = []
        for index, threshold in enumerate(self.thresholds):
            true = sum(n for reached, n in positives.items() if reached > index)
            false = sum(n for reached, n in negatives.items() if reached > index)
            missed, rejected = sum(positives.values()) - true, sum(negatives.values()) - false
            lines.append(
                {
                    "threshold": threshold,
                    "truePositives": to_amount(true),
                    "falsePositives": to_amount(false),
                    "falseNegatives": to_amount(missed),
                    "trueNegatives": to_amount(rejected),
                    "precision": divide(true, true + false) if true + false else None,
                    "recall": divide(true, true + missed) if true + missed else None,
                }
            )
        return describe_rows(rows) | {"value": None, "thresholds": lines}
