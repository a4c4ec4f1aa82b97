"""The advice whether keeping the rows of `materialize` pays."""

from __future__ import annotations

import pytest

from pipeline_runtime.run.advising import Advice


@pytest.mark.parametrize(
    ("without", "with_table", "keep", "runs"),
    [
        pytest.param(10.0, 1.0, 12.0, 2, id="second-run"),
        pytest.param(10.0, 1.0, 9.0, 1, id="equal-in-the-first-run"),
        pytest.param(30.0, 3.0, 12.0, 1, id="many-epochs"),
        pytest.param(2.0, 2.0, 1.0, None, id="no-cheaper-to-read"),
        pytest.param(1.0, 2.0, 0.0, None, id="dearer-to-read"),
        pytest.param(2.0, 1.0, 0.0, 1, id="free"),
    ],
)
def test_keeping_pays_once_its_cost_is_saved(
    without: float, with_table: float, keep: float, runs: int | None
) -> None:
    advice = Advice(
        without_seconds=without,
        with_seconds=with_table,
        keep_seconds=keep,
        epochs=1,
        sample_rows=100,
    )
    assert advice.pays_after_runs == runs
    assert len(list(advice.explain())) == 3
