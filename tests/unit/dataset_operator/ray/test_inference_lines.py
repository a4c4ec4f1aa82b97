"""The lines about inference workers on a driver's page, which a user's code may write."""

import pytest

from dataset_operator.autoscaling.inference import InferenceCounters
from dataset_operator.observed import Progress
from dataset_operator.ray.runtime_metrics import parse_progress
from dataset_operator.sources.answers import Series, build_page

PAGE = """\
# HELP lastmile_inference_workers Processes that answer.
# TYPE lastmile_inference_workers gauge
lastmile_inference_workers{group="large"} 3
lastmile_inference_waiting_requests{group="large"} 7
lastmile_inference_rows_total{group="large"} 1e6
lastmile_inference_rows_created{group="large"} 1.7e9
lastmile_inference_busy_seconds_total{group="large"} 55.5
"""
TARGET = {"pod": "head"}
LARGE = InferenceCounters(workers=3.0, waiting=7.0, rows=1e6, busy_seconds=55.5)


def test_a_group_is_read() -> None:
    assert parse_progress(PAGE) == Progress(inference={"large": LARGE})


def test_groups_are_read_apart() -> None:
    found = parse_progress(PAGE + PAGE.replace("large", "small"))
    assert found == Progress(inference={"large": LARGE, "small": LARGE})


def test_the_share_of_read_rows_is_read() -> None:
    found = parse_progress("lastmile_progress_ratio 0.375\nlastmile_read_ratio 0.5\n")
    assert found == Progress(ratio=0.375, read_ratio=0.5)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e19", "none", ""])
def test_an_impossible_value_makes_its_group_unknown(value: str) -> None:
    other = PAGE.replace("large", "small")
    found = parse_progress(PAGE.replace("1e6", value) + other)
    assert found == Progress(inference={"small": LARGE})


def test_a_value_that_is_reported_twice_makes_its_group_unknown() -> None:
    assert parse_progress(PAGE + 'lastmile_inference_workers{group="large"} 4\n') is None


def test_endless_groups_are_cut() -> None:
    found = parse_progress("".join(PAGE.replace("large", f"g{index}") for index in range(1000)))
    assert found is not None
    assert len(found.inference) < 50


@pytest.mark.parametrize("target", [{}, {"group": "production"}])
@pytest.mark.parametrize("honors_labels", [True, False])
def test_a_prometheus_keeps_groups_apart(target: dict[str, str], honors_labels: bool) -> None:
    """A platform may label its targets with a group; that label is not the run's own."""
    lines = [line.split() for line in PAGE.splitlines() if not line.startswith("#")]
    label = "group" if honors_labels or not target else "exported_group"
    series = [
        Series(
            metric={"__name__": text.split("{")[0], **TARGET, **target, label: "large"},
            values=[(5.0, value)],
        )
        for text, value in lines
    ]
    progress = {"__name__": "lastmile_progress_ratio", **TARGET, **target}
    series.append(Series(metric=progress, values=[(5.0, "0.5")]))
    assert parse_progress(build_page(series, 0.0)) == Progress(
        ratio=0.5, inference={"large": LARGE}
    )
