"""Counters of the autoscaler from whatever a page may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.autoscaling.signals import Counters, StepTotals
from dataset_operator.ray.scaling_signals import parse_scaling

PAGE = """\
# HELP lastmile_run_rows_total Rows that all trainers took.
# TYPE lastmile_run_rows_total counter
lastmile_run_rows_total 4096.0
lastmile_run_steps_total 32.0
lastmile_run_loop_seconds_total 16.5
lastmile_run_finished_steps_total 31.0
lastmile_run_finished_rows_total 3968.0
lastmile_run_finished_seconds_total 12.0
lastmile_run_wait_seconds_total{stage="production"} 4.0
lastmile_run_wait_seconds_total{stage="collate"} 0.25
lastmile_run_wait_seconds_total{stage="later versions"} 1.0
lastmile_run_worker_seconds_total{state="read"} 12.0
lastmile_run_worker_seconds_total{state="compute"} 8.0
lastmile_run_worker_seconds_total{state="warming"} 10.0
lastmile_run_worker_seconds_total{state="blocked_output"} 2.0
lastmile_run_worker_seconds_total{state="idle"} 1.0
lastmile_run_worker_rows_total 4000.0
lastmile_run_data_workers 3.0
lastmile_run_readers 6.0
lastmile_trainer_rows_total{rank="0"} 1.0
"""
LINES = PAGE.splitlines(keepends=True)


def test_a_page_of_a_driver_is_read() -> None:
    found = parse_scaling(PAGE)
    assert found.trainer is not None
    assert found.workers is not None
    trainer, workers = found.trainer, found.workers
    assert (trainer.rows, trainer.steps, trainer.loop_seconds) == (4096.0, 32.0, 16.5)
    assert trainer.production_seconds == 4.0
    assert trainer.clock == StepTotals(steps=31.0, rows=3968.0, seconds=12.0)
    assert trainer.waits == {"collate": 0.25}
    assert (workers.rows, workers.read_seconds, workers.compute_seconds) == (4000.0, 12.0, 8.0)
    assert (workers.blocked_seconds, workers.idle_seconds, found.readers) == (2.0, 1.0, 6.0)
    assert found.data_workers == 3.0


def test_a_wait_for_inference_workers_is_no_work_of_data_workers() -> None:
    line = 'lastmile_run_worker_seconds_total{state="inference"} 30.0\n'
    workers = parse_scaling(PAGE + line).workers
    assert workers is not None
    assert (workers.read_seconds, workers.compute_seconds) == (12.0, 8.0)
    assert (workers.idle_seconds, workers.inference_seconds) == (1.0, 30.0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rows_total 4096.0", "rows_total NaN"),
        ("rows_total 4096.0", "rows_total -1"),
        ("rows_total 4096.0", "rows_total +Inf"),
        ("rows_total 4096.0", "rows_total many"),
        ("lastmile_run_rows_total 4096.0\n", ""),
        ("lastmile_run_rows_total 4096.0\n", "lastmile_run_rows_total 1\n" * 2),
        ("lastmile_run_rows_total 4096.0", "lastmile_run_rows_total " + "9" * 300),
        ('{stage="production"} 4.0', '{stage="production} 4.0'),
    ],
)
def test_a_counter_that_is_wrong_or_missing_is_not_known_and_never_zero(old: str, new: str) -> None:
    assert old in PAGE
    found = parse_scaling(PAGE.replace(old, new))
    assert found.trainer is None
    assert found.workers is not None  # which was told as ever


@given(st.text())
def test_garbage_is_nothing(text: str) -> None:
    assert parse_scaling(text) == Counters()


@given(
    st.lists(
        st.one_of(
            st.sampled_from(LINES),
            st.text(max_size=40).map(lambda text: f"lastmile_run_{text}\n"),
            st.tuples(st.sampled_from(LINES), st.integers(0, 60), st.characters()).map(
                lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
            ),
        ),
        max_size=200,
    )
)
def test_any_mixture_of_lines_gives_sound_counters_or_none(lines: list[str]) -> None:
    found = parse_scaling("".join(lines))
    for counters in (found.trainer, found.workers):
        if counters is not None:
            names = [n for n in counters.__slots__ if n not in ("waits",)]
            assert all(0.0 <= getattr(counters, name) <= 1e18 for name in names)
