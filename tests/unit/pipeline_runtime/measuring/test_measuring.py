"""Metrics are the same bit for bit in whatever parts and order their rows come.

Values are compared with direct formulas, those of scikit-learn's functions of the same name.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.measuring.base import Accumulator, Result
from pipeline_runtime.measuring.classification import Auc, Calibration, Confusion, LogLoss
from pipeline_runtime.measuring.columns import Distinct, Mean, Quantiles, TopK
from pipeline_runtime.measuring.custom import Custom
from pipeline_runtime.measuring.encoding import from_bytes, to_bytes
from pipeline_runtime.measuring.exact import sum_exactly, to_float
from pipeline_runtime.measuring.grouping import Grouped
from pipeline_runtime.measuring.groups_of_rows import GroupAuc, Ndcg
from pipeline_runtime.measuring.values import DamagedState, State


class CountRows:
    """A user's accumulator."""

    def init(self) -> int:
        return 0

    def update(self, state: int, table: pa.Table) -> int:
        return state + table.num_rows

    def merge(self, left: int, right: int) -> int:
        return left + right

    def finish(self, state: int) -> dict[str, float]:
        return {"value": state, "half": state / 2}


COUNT_ROWS = Custom(function=f"{__name__}:CountRows", read=("s",))
AUC = Auc(score="s", label="y")
WEIGHTED_AUC = Auc(score="s", label="y", weight="w")
ACCUMULATORS: dict[str, Accumulator] = {
    "auc": AUC,
    "weighted auc": WEIGHTED_AUC,
    "auc of few bits": Auc(score="s", label="y", bits=10),
    "log loss": LogLoss(score="s", label="y"),
    "weighted log loss": LogLoss(score="s", label="y", weight="w"),
    "normalized entropy": LogLoss(score="s", label="y", is_normalized=True),
    "calibration": Calibration(score="s", label="y", weight="w", bins=7),
    "confusion": Confusion(score="s", label="y", weight="w", thresholds=(0.25, 0.5)),
    "mean": Mean(column="x", weight="w"),
    "quantiles": Quantiles(column="x", at=(Fraction(0), Fraction(1, 3), Fraction(1))),
    "distinct": Distinct(column="c"),
    "estimated distinct": Distinct(column="c", limit=3),
    "top": TopK(column="c", k=3, limit=100),
    "top of a sample": TopK(column="c", k=3, limit=2),
    "grouped auc": Grouped(whole=AUC, inner=WEIGHTED_AUC, by=("c",), max_groups=2),
    "few groups": Grouped(whole=AUC, inner=WEIGHTED_AUC, by=("c",), max_groups=2, limit=2),
}
PER_GROUP: dict[str, Accumulator] = {
    "gauc": GroupAuc(score="s", label="y", per="g"),
    "ndcg": Ndcg(score="s", label="x", per="g"),
    "ndcg at 2": Ndcg(score="s", label="x", per="g", k=2),
    "gauc of small groups": GroupAuc(score="s", label="y", per="g", max_group_rows=3),
    "gauc by country": Grouped(
        whole=GroupAuc(score="s", label="y", per="g"),
        inner=GroupAuc(score="s", label="y", per="g"),
        by=("c",),
        max_groups=2,
        limit=3,
    ),
}

SCORES = (
    st.none() | st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, math.nan, 2.0, math.inf]) | st.floats()
)
LABELS = st.none() | st.sampled_from([0, 0, 1, 1, 2])
WEIGHTS = st.none() | st.sampled_from([0.0, 1.0, 0.1, 1e-9, 3e9, -1.0, math.nan, math.inf])
ROWS = st.lists(
    st.tuples(
        SCORES,
        LABELS,
        WEIGHTS,
        st.none() | st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, math.inf]),
        st.none() | st.sampled_from(["de", "fr", "日本", "us", ""]),
        st.none() | st.integers(0, 5),
    ),
    max_size=16,
)


def make_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 6
    types = [pa.float64(), pa.int8(), pa.float64(), pa.float64(), pa.string(), pa.int64()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(dict(zip("sywxcg", arrays, strict=True)))


def pack(accumulator: Accumulator, state: State) -> bytes:
    """Return the bytes of a state, which stand for all of it."""
    content = to_bytes([state])
    (again,) = from_bytes(content, [accumulator.empty()])
    assert to_bytes([again]) == content
    return content


def measure(accumulator: Accumulator, table: pa.Table) -> Result:
    return accumulator.finish(accumulator.update(table))


def test_a_mean_of_huge_values_is_that_of_their_products() -> None:
    rows = [(None, None, 3e9, 1e300, None, None), (None, None, 1e9, -1e300, None, None)]
    found = measure(ACCUMULATORS["mean"], make_table(rows))
    assert found["value"] == pytest.approx(5e299, rel=1e-15)


@pytest.mark.parametrize("name", ACCUMULATORS)
@settings(max_examples=examples(10), deadline=None)
@given(rows=ROWS, data=st.data())
def test_any_parts_in_any_order_give_equal_bits(
    name: str, rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    accumulator = ACCUMULATORS[name]
    owners = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    parts = [[row for row, owner in zip(rows, owners, strict=True) if owner == k] for k in range(4)]
    states = [accumulator.update(make_table(part)) for part in parts]
    states = data.draw(st.permutations([accumulator.empty(), *states]))
    whole = accumulator.merge([accumulator.update(make_table(rows))])
    at_once = accumulator.merge(states)
    left = accumulator.merge(states[:2])
    right = accumulator.merge([states[4], states[2], states[3]])
    nested = accumulator.merge([right, left])
    packed = pack(accumulator, whole)
    assert pack(accumulator, at_once) == pack(accumulator, nested) == packed
    assert repr(accumulator.finish(at_once)) == repr(accumulator.finish(whole))


@pytest.mark.parametrize("name", PER_GROUP)
@settings(max_examples=examples(10), deadline=None)
@given(rows=ROWS, data=st.data())
def test_groups_that_lie_together_may_be_cut_anywhere(
    name: str, rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    accumulator = PER_GROUP[name]
    rows = sorted(rows, key=lambda row: (row[5] is not None, row[5] or 0))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    edges = [0, *cuts, len(rows)]
    parts = [rows[a:b] for a, b in pairwise(edges)]
    states = data.draw(st.permutations([accumulator.update(make_table(part)) for part in parts]))
    merged = accumulator.merge([accumulator.merge(states[:1]), *states[1:]])
    pack(accumulator, merged)
    assert repr(accumulator.finish(merged)) == repr(measure(accumulator, make_table(rows)))


def test_groups_that_do_not_lie_together_are_counted() -> None:
    table = pa.table({"s": [0.1, 0.2] * 6, "y": [0, 1] * 6, "g": [0, 1, 1, 2, 2, 3] * 2})
    accumulator = PER_GROUP["gauc"]
    parts = [accumulator.update(table.slice(start, 6)) for start in (0, 6)]
    assert accumulator.finish(accumulator.merge(parts))["scatteredGroups"] == 2 * 2
    assert accumulator.finish(parts[0])["scatteredGroups"] == 0


def make_scores(seed: int, size: int, *, ties: bool) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    scores = random.beta(2, 5, size)
    scores = np.round(scores, 2) if ties else scores
    labels = (random.random(size) < scores).astype(np.int8)
    return scores, labels, random.gamma(2, 1, size)


def find_auc(scores: Any, labels: Any, weights: Any) -> float:
    """Return the area under the ROC curve, by the trapezoidal rule over its points."""
    distinct = np.unique(scores)[::-1]
    true, false = [0.0], [0.0]
    order = np.argsort(scores)
    ordered, positives = scores[order], weights[order] * labels[order]
    negatives = weights[order] * (1 - labels[order])
    places = np.searchsorted(ordered, distinct)
    above = np.concatenate([np.cumsum(positives[::-1])[::-1], [0.0]])
    also = np.concatenate([np.cumsum(negatives[::-1])[::-1], [0.0]])
    true += (above[places] / positives.sum()).tolist()
    false += (also[places] / negatives.sum()).tolist()
    return float(np.trapezoid(true, false))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_auc_is_near_that_of_the_scores_and_within_its_bounds(
    ties: bool, is_weighted: bool
) -> None:
    scores, labels, weights = make_scores(1, 200_000, ties=ties)
    table = pa.table({"s": scores, "y": labels, "w": weights})
    result = measure(WEIGHTED_AUC if is_weighted else AUC, table)
    expected = find_auc(scores, labels, weights if is_weighted else np.ones(len(scores)))
    assert result["value"] == pytest.approx(expected, abs=1e-6)
    assert result["lower"] - 1e-12 <= expected <= result["upper"] + 1e-12
    assert result["rows"] == len(scores)
    rates = np.array(result["roc"])
    assert rates[0].tolist() == [0, 0]
    assert rates[-1].tolist() == [1, 1]
    assert np.trapezoid(rates[:, 1], rates[:, 0]) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_log_loss_is_that_of_all_rows(is_weighted: bool) -> None:
    scores, labels, weights = make_scores(2, 100_000, ties=False)
    scores[:2] = [0.0, 1.0]
    weights = weights if is_weighted else np.ones(len(scores))
    table = pa.table({"s": scores, "y": labels == 1, "w": weights})
    clipped = np.clip(scores, np.finfo(float).eps, 1 - np.finfo(float).eps)
    losses = -np.where(labels, np.log(clipped), np.log(1 - clipped))
    expected = math.fsum(losses * weights) / math.fsum(weights)
    weight = "w" if is_weighted else None
    result = measure(LogLoss(score="s", label="y", weight=weight), table)
    assert result["value"] == pytest.approx(expected, abs=1e-12)
    rate = math.fsum(weights[labels == 1]) / math.fsum(weights)
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    normalized = LogLoss(score="s", label="y", weight=weight, is_normalized=True)
    assert measure(normalized, table)["value"] == pytest.approx(expected / entropy, abs=1e-12)


def test_calibration_compares_scores_with_labels() -> None:
    table = pa.table({"s": [0.1, 0.2, 0.9, 1.0, 0.95], "y": [0, 1, 1, 1, None]})
    result = measure(Calibration(score="s", label="y", bins=2), table)
    assert result["value"] == pytest.approx(2.2 / 3)
    assert (result["meanScore"], result["meanLabel"]) == (pytest.approx(0.55), 0.75)
    assert result["expectedCalibrationError"] == pytest.approx((0.7 + 0.1) / 4)
    assert [line["weight"] for line in result["bins"]] == [2, 2]
    assert (result["rows"], result["leftOut"]) == (4, {"label": 1})


def test_a_score_at_a_threshold_is_positive() -> None:
    table = pa.table({"s": [0.2, 0.5, 0.5, 0.7], "y": [0, 0, 1, 1]})
    (line,) = measure(Confusion(score="s", label="y", thresholds=(0.5,)), table)["thresholds"]
    assert (line["truePositives"], line["falsePositives"]) == (2, 1)
    assert (line["falseNegatives"], line["trueNegatives"]) == (0, 1)
    assert (line["precision"], line["recall"]) == (pytest.approx(2 / 3), 1)


@pytest.mark.parametrize(
    ("labels", "value"),
    [([], None), ([0, 0], None), ([1, 1], None), ([None, 2], None), ([0, 1], 0.5)],
    ids=["no row", "no positive", "no negative", "no label", "one pair in one bucket"],
)
def test_auc_of_one_class_is_unknown(labels: list[int | None], value: float | None) -> None:
    table = pa.table({"s": [0.5] * len(labels), "y": pa.array(labels, pa.int64())})
    assert measure(AUC, table)["value"] == value
    assert measure(GroupAuc(score="s", label="y", per="y"), table)["value"] is None


def test_gauc_is_the_mean_of_users_weighted_by_their_rows() -> None:
    random = np.random.default_rng(3)
    users = np.repeat(np.arange(300), random.integers(1, 30, 300))
    scores, labels, _ = make_scores(3, len(users), ties=True)
    result = measure(
        GroupAuc(score="s", label="y", per="g"),
        pa.table({"s": scores, "y": labels, "g": users}),
    )
    rows = {u: users == u for u in range(300)}
    known = {u: m for u, m in rows.items() if 0 < labels[m].sum() < m.sum()}
    areas = {u: find_auc(scores[m], labels[m], np.ones(m.sum())) for u, m in known.items()}
    expected = sum(areas[u] * m.sum() for u, m in known.items()) / sum(
        m.sum() for m in known.values()
    )
    assert result["value"] == pytest.approx(expected, abs=1e-12)
    assert (result["measuredGroups"], result["leftOutGroups"]) == (len(known), 300 - len(known))


@pytest.mark.parametrize("k", [None, 1, 3])
def test_ndcg_is_the_mean_of_requests(k: int | None) -> None:
    random = np.random.default_rng(4)
    requests = np.repeat(np.arange(200), random.integers(1, 12, 200))
    scores = random.integers(0, 5, len(requests)) / 4
    labels = random.integers(0, 3, len(requests)).astype(float)
    found = []
    for request in range(200):
        mask = requests == request
        gains, places = labels[mask], scores[mask]
        discounts = 1 / np.log2(np.arange(len(gains)) + 2)
        discounts[k or len(gains) :] = 0
        mean_gains = np.array([gains[places == place].mean() for place in places])
        ideal = float((np.sort(gains)[::-1] * discounts).sum())
        if ideal:
            ranked = mean_gains[np.argsort(-places, kind="stable")]
            found.append(float((ranked * discounts).sum()) / ideal)
    table = pa.table({"s": scores, "x": labels, "g": requests})
    result = measure(Ndcg(score="s", label="x", per="g", k=k), table)
    assert result["value"] == pytest.approx(np.mean(found), abs=1e-12)
    assert result["measuredGroups"] == len(found)


def test_a_group_with_too_many_rows_is_left_out() -> None:
    table = pa.table({"s": [0.1, 0.2, 0.3, 0.4], "y": [0, 1, 0, 1], "g": [1, 1, 1, 2]})
    result = measure(GroupAuc(score="s", label="y", per="g", max_group_rows=2), table)
    assert (result["largeGroups"], result["measuredGroups"], result["leftOutGroups"]) == (
        1,
        0,
        1,
    )


@settings(max_examples=examples(100), deadline=None)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_sums_are_rounded_once(values: list[float]) -> None:
    exact = sum(map(Fraction, values), Fraction(0))
    try:
        expected = float(exact)
    except OverflowError:
        expected = math.inf if exact > 0 else -math.inf
    assert to_float(sum_exactly(np.array(values, dtype=np.float64))) == expected


def test_a_weighted_mean_is_exact() -> None:
    table = pa.table({"x": [1e16, 1.0, -1e16, None], "w": [1.0, 2.0, 1.0, 5.0]})
    assert measure(Mean(column="x", weight="w"), table)["value"] == 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, 1, 2], [1, 2, 3]),
        ([8192, -8192, 0], [-8192, 0, 8192]),
        ([], [None, None, None]),
    ],
    ids=["integers", "largest exact integer", "no row"],
)
def test_quantiles_of_small_integers_are_exact(
    values: list[int], expected: list[float | None]
) -> None:
    table = pa.table({"x": pa.array(values, pa.int64())})
    result = measure(Quantiles(column="x", at=(Fraction(0), Fraction(1, 2), Fraction(1))), table)
    assert [line["value"] for line in result["quantiles"]] == expected


def test_quantiles_are_near_those_of_numpy() -> None:
    values = np.random.default_rng(5).normal(size=10_000)
    shares = [Fraction(1, 100), Fraction(1, 2), Fraction(999, 1000)]
    result = measure(Quantiles(column="x", at=tuple(shares)), pa.table({"x": values}))
    expected = np.quantile(values, [float(s) for s in shares], method="inverted_cdf")
    found = [line["value"] for line in result["quantiles"]]
    assert found == pytest.approx(expected.tolist(), rel=2**-12)


def test_distinct_values_are_counted_exactly_or_estimated() -> None:
    few = pa.table({"c": ["a", "b", "a", None]})
    assert measure(Distinct(column="c"), few) == {
        "rows": 3,
        "leftOut": {"column": 1},
        "value": 2,
        "relativeStandardError": 0,
    }
    many = pa.table({"c": np.arange(1_000_000) // 2})
    result = measure(Distinct(column="c"), many)
    assert result["value"] == pytest.approx(500_000, rel=4 * result["relativeStandardError"])


def test_the_most_frequent_values_are_named() -> None:
    column = pa.array(["a", "b", "a", None, "c", "b", "a"]).dictionary_encode()
    result = measure(TopK(column="c", k=2, limit=10), pa.table({"c": column}))
    assert result["top"] == [{"value": "a", "rows": 3}, {"value": "b", "rows": 2}]
    assert result["isComplete"]
    assert not measure(TopK(column="c", k=2, limit=2), pa.table({"c": column}))["isComplete"]


def test_rare_groups_are_together_in_other() -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "c": ["a", "a", "b", None]})
    mean = Mean(column="x")
    result = measure(Grouped(whole=mean, inner=mean, by=("c",), max_groups=1), table)
    assert result["value"] == 2.5
    assert [(g["group"], g["value"]) for g in result["groups"]] == [(["a"], 1.5)]
    assert result["other"]["value"] == 3.5
    assert result["groupsAreTop"]
    few = Grouped(whole=mean, inner=mean, by=("c",), max_groups=5, limit=2)
    result = measure(few, table)
    assert not result["groupsAreTop"]
    assert sum(g["rows"] for g in [*result["groups"], result["other"]]) == 4


def test_a_user_s_accumulator_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_metrics")
    module.CountRows = CountRows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_metrics", module)
    custom = Custom(function="my_metrics:CountRows", read=("s",))
    parts = [custom.update(pa.table({"s": [1.0] * n})) for n in (2, 3)]
    merged = custom.merge([custom.empty(), *parts])
    assert custom.finish(merged) == {
        "rows": 5,
        "leftOut": {},
        "value": 5,
        "results": {"half": 2.5},
    }


@pytest.mark.parametrize("name", [*ACCUMULATORS, *PER_GROUP])
@settings(max_examples=examples(10), deadline=None)
@given(rows=ROWS, data=st.data())
def test_damaged_bytes_are_refused_or_a_state(
    name: str, rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    accumulator = (ACCUMULATORS | PER_GROUP)[name]
    content = bytearray(to_bytes([accumulator.update(make_table(rows))]))
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] = data.draw(st.integers(0, 255))
    else:
        del content[place:]
    try:
        (state,) = from_bytes(bytes(content), [accumulator.empty()])
    except DamagedState:
        return
    accumulator.finish(accumulator.merge([state]))
