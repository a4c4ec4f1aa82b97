"""A training's progress in the status: rounded, rarely written, and only known values."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import SETTINGS, World, running

from dataset_operator.observed import Progress, WrittenTable
from dataset_operator.plan.progress import build_trainer, format_decimal
from dataset_operator.ray.runtime_metrics import parse_progress

GOING = Progress(
    ratio=0.4256,
    remaining_seconds=119.2,
    samples_per_second=12345.6,
    production_wait_ratio=0.016,
    metrics={"loss": 0.123456789, "auc": 1.0},
)
SHOWN = {
    "progressPercent": 42,
    "estimatedRemainingSeconds": 120,
    "estimatedRemaining": "2m",
    "samplesPerSecond": "12300",
    "productionWaitPercent": 2,
    "metrics": [{"name": "auc", "value": "1"}, {"name": "loss", "value": "0.123457"}],
}
DECIMAL = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"  # status.trainer in the CRD


def trainer(world: World) -> dict[str, Any]:
    shown = dict(world.status.get("trainer", {}))
    shown.pop("lastUpdateTime", None)
    return shown


def test_a_running_training_is_told_in_whole_numbers_and_decimals() -> None:
    world = running()
    world.progress = GOING
    world.step()
    assert trainer(world) == SHOWN


def test_it_is_told_at_most_every_30_seconds() -> None:
    world = running()
    world.progress = GOING
    world.step()
    world.progress = Progress(ratio=0.9)
    decision = world.step(seconds=29)
    assert trainer(world)["progressPercent"] == 42
    assert decision.again_seconds == 1.0
    world.step(seconds=1)
    assert trainer(world)["progressPercent"] == 90


def test_a_training_that_goes_on_costs_one_pass_every_quarter_of_a_minute() -> None:
    world = running()
    began, passes, again = world.now, 0, world.step().again_seconds
    while (world.now - began).total_seconds() < 600:
        assert again is not None
        passes += 1
        world.progress = Progress(ratio=passes / 1000, samples_per_second=float(passes))
        again = world.step(seconds=again).again_seconds
    assert passes <= 600 / 15 + 1


def test_what_shows_no_change_is_not_written() -> None:
    world = running(SETTINGS.model_copy(update={"autoscale": False}))
    world.progress = GOING
    world.step()
    before = copy.deepcopy(world.status)
    world.progress = Progress(ratio=0.4299)
    world.step(seconds=60)
    assert world.status == before


def test_what_is_not_known_stays_as_it_was() -> None:
    world = running()
    world.progress = GOING
    world.step()
    world.progress = None
    world.step(seconds=60)
    world.progress = Progress(production_wait_ratio=0.5)
    world.step(seconds=60)
    assert trainer(world) == SHOWN | {"productionWaitPercent": 50}


def test_a_complete_run_is_at_100_percent_with_its_last_values_and_is_written_no_more() -> None:
    world = running()
    world.progress = GOING
    world.step()
    world.end_job("SUCCEEDED")
    world.step(seconds=1)
    assert world.condition("Complete") == ("True", "Succeeded")
    whole = {
        "progressPercent": 100,
        "estimatedRemainingSeconds": 0,
        "estimatedRemaining": "0s",
    }
    assert trainer(world) == SHOWN | whole
    before = copy.deepcopy(world.status)
    world.step(seconds=3600)
    assert world.status == before


def test_the_end_alone_is_100_percent() -> None:
    # The last row has been read; the last evaluation and checkpoint have not been made.
    assert build_trainer(Progress(ratio=1.0)).to_document() == {"progressPercent": 99}


def test_a_failed_attempt_leaves_its_last_values() -> None:
    world = running()
    world.progress = GOING
    world.step()
    world.end_job("FAILED", exit_code=1)
    world.step(seconds=60)
    assert trainer(world) == SHOWN


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12345.6, "12300"), (0.000123456, "0.000123"), (1e20, "1e+20"), (-2.5, "-2.5")],
)
def test_decimals_have_the_digits_that_count(value: float, text: str) -> None:
    assert format_decimal(value, 3) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_a_decimal_that_the_api_server_takes(value: float) -> None:
    text = format_decimal(value, 6)
    assert len(text) <= 32
    assert pytest.approx(value, rel=1e-5, abs=1e-300) == float(text)


PAGE = """
# HELP lastmile_progress_ratio Share of the run that is done.
# TYPE lastmile_progress_ratio gauge
lastmile_progress_ratio 0.5
lastmile_samples_per_second 1e+03
lastmile_trainer_rows_total{rank="0"} 7.0
lastmile_training_metric{name="loss"} 0.25
lastmile_training_metric{name="an \\"odd\\" one"} 2
python_gc_objects_collected_total{generation="0"} 11.0
"""


def test_a_page_of_metrics_is_read() -> None:
    assert parse_progress(PAGE) == Progress(
        ratio=0.5, samples_per_second=1000.0, metrics={"loss": 0.25, 'an "odd" one': 2.0}
    )


TABLE_PAGE = """
lastmile_output_rows 1.5e+06
lastmile_output_files 3.0
lastmile_output_bytes 9007199254740991
lastmile_output_phase{phase="Spooling"} 0.0
lastmile_output_phase{phase="Merging"} 1.0
lastmile_output_rows_per_second 250.5
"""


def test_the_numbers_of_a_table_are_read() -> None:
    table = WrittenTable(phase="Merging", rows=1_500_000, files=3, num_bytes=2**53 - 1)
    assert parse_progress(TABLE_PAGE) == Progress(samples_per_second=250.5, table=table)


@pytest.mark.parametrize(
    "line",
    [
        "lastmile_output_rows NaN",
        "lastmile_output_rows -1",
        "lastmile_output_bytes 9007199254740992",
        "lastmile_output_files 1e300",
        'lastmile_output_phase{phase="Exploding"} 1',
        'lastmile_output_phase{phase="Merging"} 0.5',
        "lastmile_output_phase 1",
        "lastmile_output_partitions 2147483648",
        "lastmile_output_complete_partitions -1",
        "lastmile_progress_ratio NaN",
        "lastmile_progress_ratio 1.5",
        "lastmile_progress_ratio -0.1",
        "lastmile_progress_ratio half",
        "lastmile_progress_ratio",
        'lastmile_progress_ratio{a="b',
        "lastmile_estimated_remaining_seconds +Inf",
        "lastmile_samples_per_second 1e300",  # more than the CRD's integers hold
        "lastmile_samples_per_second 1" + "0" * 400,
        "lastmile_training_metric 1",
        'lastmile_training_metric{name=""} 1',
        'lastmile_training_metric{name="' + "x" * 65 + '"} 1',
        'lastmile_training_metric{name="loss"} NaN',
        "lastmile_training_metric{" + 'a="b",' * 10_000 + "} 1",
        "lastmile_read_snapshot_info 1",
        'lastmile_read_snapshot_info{catalog="lake",table="db.t",snapshot_id="5"} 0',
        'lastmile_read_snapshot_info{catalog="lake",table="db.t",snapshot_id=""} 1',
        'lastmile_read_snapshot_info{catalog="lake",table="t",snapshot_id="5"} 1',
        'lastmile_read_snapshot_info{catalog="lake",table="db.t",snapshot_id="1e5"} 1',
        f'lastmile_read_snapshot_info{{catalog="lake",table="db.t",snapshot_id="{2**63}"}} 1',
        f'lastmile_read_snapshot_info{{catalog="lake",table="db.{"t" * 510}",snapshot_id="5"}} 1',
        'lastmile_materialization_info{catalog="lake",table="db.t",state="Hit"} 1',  # no counts
        "lastmile_materialization_partitions 3",
        "<html>",
        "",
    ],
)
def test_a_line_that_cannot_be_is_passed_over(line: str) -> None:
    assert parse_progress(line) is None
    good = parse_progress(f"{line}\nlastmile_progress_ratio 0.5\n")
    assert good == Progress(ratio=0.5)


def test_no_more_than_16_metrics_are_taken() -> None:
    page = "".join(f'lastmile_training_metric{{name="m{index}"}} 1\n' for index in range(1000))
    progress = parse_progress(page)
    assert progress is not None
    assert len(progress.metrics) == 16


NAMES = st.sampled_from(
    [
        "lastmile_progress_ratio",
        "lastmile_estimated_remaining_seconds",
        "lastmile_samples_per_second",
        "lastmile_production_wait_ratio",
        "lastmile_training_metric",
        "lastmile_output_rows",
        "lastmile_output_phase",
    ]
)
LINES = st.lists(
    st.one_of(
        st.text(),
        st.builds("{} {}".format, NAMES, st.one_of(st.floats(), st.integers(), st.text())),
        st.builds("{}{{name={!r}}} {}".format, NAMES, st.text(), st.floats()),
        st.builds("{}{{phase={!r}}} {}".format, NAMES, st.text(), st.sampled_from([0, 1, 2])),
        st.builds("{}{}".format, NAMES, st.text(alphabet='{}"\\=, \t1e#nai')),
    ),
    max_size=8,
)


@given(LINES)
def test_whatever_a_page_says_gives_a_status_that_the_api_server_takes(lines: list[str]) -> None:
    progress = parse_progress("\n".join(lines))
    shown = build_trainer(progress or Progress()).to_document()
    assert 0 <= shown.get("progressPercent", 0) <= 100
    assert 0 <= shown.get("productionWaitPercent", 0) <= 100
    assert 0 <= shown.get("estimatedRemainingSeconds", 0) < 2**53
    values = [shown.get("samplesPerSecond", "0")]
    values += [metric["value"] for metric in shown.get("metrics", [])]
    assert all(re.fullmatch(DECIMAL, value) for value in values)
    assert all(0 < len(metric["name"]) <= 64 for metric in shown.get("metrics", []))
