"""Metrics of scored rows, and their variance over bootstrap draws of groups."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_runtime.comparison.bootstrap import AUC, LOSS, ScoredRows, draw_metric, measure


def scored(
    label: list[float],
    prediction: list[float],
    *,
    weight: list[float] | None = None,
    loss: list[float] | None = None,
    group: list[int] | None = None,
) -> ScoredRows:
    return ScoredRows(
        group_N=np.array(range(len(label)) if group is None else group, dtype=np.int64),
        label_N=np.array(label, dtype=np.float64),
        weight_N=np.array([1.0] * len(label) if weight is None else weight),
        prediction_MN=np.array([prediction], dtype=np.float32),
        loss_MN=np.array([prediction if loss is None else loss], dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("rows", "auc"),
    [
        pytest.param(scored([0, 0, 1, 1], [1, 2, 3, 4]), 1.0, id="perfect"),
        pytest.param(scored([1, 1, 0, 0], [1, 2, 3, 4]), 0.0, id="reversed"),
        pytest.param(scored([0, 1, 0, 1], [1, 1, 1, 1]), 0.5, id="ties-count-half"),
        pytest.param(scored([0, 1, 0, 1], [1, 2, 3, 4]), 0.75, id="one-pair-wrong"),
        pytest.param(scored([0, 1, 0, 1], [1, 2, 3, 4], weight=[1, 1, 3, 1]), 5 / 8, id="weights"),
        pytest.param(scored([0, 0.5, 1], [1, 2, 3]), 2.125 / 2.25, id="soft-label"),
    ],
)
def test_auc_is_the_share_of_pairs_in_order(rows: ScoredRows, auc: float) -> None:
    assert measure(rows, AUC) == pytest.approx([auc])


def test_loss_is_the_weighted_mean() -> None:
    rows = scored([0, 1, 1], [0, 0, 0], weight=[1, 2, 0], loss=[1, 4, 99])
    assert measure(rows, LOSS) == pytest.approx([3.0])


@pytest.mark.parametrize(
    ("rows", "metrics"),
    [
        pytest.param(scored([0, 1], [1, 2]), (AUC, LOSS), id="both"),
        pytest.param(scored([0, 0], [1, 2]), (LOSS,), id="one-class"),
        pytest.param(scored([0, 1], [1, 2], weight=[1, 0]), (LOSS,), id="one-class-with-weight"),
        pytest.param(scored([0, 7], [1, 2]), (LOSS,), id="no-class"),
        pytest.param(scored([0, 1], [1, 2], loss=[1, np.nan]), (AUC,), id="no-loss"),
        pytest.param(scored([], []), (), id="no-rows"),
    ],
)
def test_rows_give_the_metrics_that_they_can(rows: ScoredRows, metrics: tuple[str, ...]) -> None:
    assert rows.metrics == metrics


@pytest.mark.parametrize("metric", [AUC, LOSS])
def test_draws_vary_as_new_samples_do(metric: str) -> None:
    """Against the variance over fresh samples of users, each with ten rows that resemble."""

    def sample(random: np.random.Generator) -> ScoredRows:
        users = random.standard_normal(150)
        group = np.repeat(np.arange(150), 10)
        label = (random.random(1500) < 0.3).astype(float)
        score = users[group] + 0.3 * random.standard_normal(1500) + label
        return scored(label.tolist(), score.tolist(), group=group.tolist())

    random = np.random.default_rng(5)
    fresh = np.std([measure(sample(random), metric)[0] for _ in range(300)])
    drawn = np.mean([draw_metric(sample(random), metric).std() for _ in range(5)])
    assert drawn == pytest.approx(fresh, rel=0.15)


def test_draws_without_a_positive_are_left_out() -> None:
    rows = scored([1, 0, 0, 0, 0, 0], [6, 1, 2, 3, 4, 5])
    drawn = draw_metric(rows, AUC)
    assert 0 < len(drawn) < 400
    assert np.isfinite(drawn).all()


def test_bins_of_many_predictions_keep_the_auc() -> None:
    random = np.random.default_rng(1)
    label = (random.random(20_000) < 0.2).astype(float)
    rows = scored(label.tolist(), (random.standard_normal(20_000) + label).tolist())
    assert draw_metric(rows, AUC).mean() == pytest.approx(measure(rows, AUC)[0], abs=1e-3)
