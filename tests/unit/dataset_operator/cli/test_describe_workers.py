"""One screen says why the number of data workers is what it is, and what would change it."""

import inspect
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from facts import assert_all_told, assert_told
from trained import Trained, trained
from world import SETTINGS, running

from dataset_operator import api
from dataset_operator.autoscaling import interface as law
from dataset_operator.cli.describe import build_summary, wrap_line
from dataset_operator.cli.workers import explain_workers
from dataset_operator.documents import format_time
from dataset_operator.shapes import parse_status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEED = (
    "trainers would take 700 rows per second, a busy worker makes 120: 5.8 workers (5.1 to 6.6), 7 "
    "with 7.5% headroom; trainers wait 18.2% of their time"
)
TRAINS = {"type": "Training", "status": "True", "reason": "Running", "message": "attempt 1 trains"}


def before(**ago: float) -> str:
    return format_time(NOW - timedelta(**ago))


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    since = before(minutes=7)
    said = {"type": kind, "status": status, "reason": reason, "message": message}
    return {**said, "lastTransitionTime": since}


def limited(reason: str, message: str = NEED, status: str = "True") -> list[dict[str, str]]:
    known = condition("ScalingActive", "True", "ValidMetricFound", "demand is measured")
    return [known, condition("ScalingLimited", status, reason, message)]


def experiment(
    conditions: list[dict[str, str]], *, wanted: int = 6, scaling: Any = None, **workers: Any
) -> dict[str, Any]:
    numbers = {"currentReplicas": wanted, "readyReplicas": wanted, "desiredReplicas": wanted}
    return {
        "metadata": {"name": "clicks", "namespace": "team"},
        "spec": {"dataWorkers": {"minReplicas": 2, "maxReplicas": 12}},
        "status": {
            "conditions": [{**TRAINS, "lastTransitionTime": before(hours=1)}, *conditions],
            "dataWorkers": numbers | workers,
            **({} if scaling is None else {"scaling": {"sinceTime": before(hours=1)} | scaling}),
        },
    }


def explain(document: dict[str, Any], now: datetime) -> Iterator[tuple[str, str]]:
    return explain_workers(document, parse_status(document["status"]), now)


def told(document: dict[str, Any]) -> dict[str, str]:
    return {label.strip(): text for label, text in explain(document, NOW)}


STARVED = "… 2% … 6 … 12"
SPARE = "… 5m … 2"
# conditions; facts of why; of what it takes for more; for fewer
REASONS: dict[str, tuple[list[dict[str, str]], str, str, str]] = {
    law.DESIRED_WITHIN_RANGE: (
        limited(law.DESIRED_WITHIN_RANGE, status="False"),
        "… trainers would take 700 rows",
        STARVED,
        SPARE,
    ),
    law.TOO_MANY_REPLICAS: (
        limited(law.TOO_MANY_REPLICAS, "14 wanted, dataWorkers.maxReplicas is 12"),
        "… 14 wanted, dataWorkers.maxReplicas is 12",
        "… dataWorkers.maxReplicas … 12",
        SPARE,
    ),
    law.TOO_FEW_REPLICAS: (
        limited(law.TOO_FEW_REPLICAS, "1 would do, dataWorkers.minReplicas is 2"),
        "… 1 would do",
        STARVED,
        "… dataWorkers.minReplicas … 2",
    ),
    law.SCALE_UP_LIMIT: (
        limited(law.SCALE_UP_LIMIT, f"{NEED}; first 6, until they are seen to help"),
        "… trainers would take",
        "… autoscaling.scaleUp",
        SPARE,
    ),
    law.SCALE_UP_STABILIZED: (
        limited(law.SCALE_UP_STABILIZED, "9 wanted, 6 at some time of the last 60 s"),
        "… 9 wanted",
        "… autoscaling.scaleUp.stabilizationWindowSeconds",
        SPARE,
    ),
    law.SCALE_DOWN_LIMIT: (
        limited(law.SCALE_DOWN_LIMIT, "3 would do; scaleDown.policies allow 5 now"),
        "… 3 would do",
        STARVED,
        "… autoscaling.scaleDown.policies",
    ),
    law.SCALE_DOWN_STABILIZED: (
        limited(law.SCALE_DOWN_STABILIZED, "4 would do, 6 at some time of the last 300 s"),
        "… 4 would do",
        STARVED,
        "by itself, once fewer would have done for a whole 5m",
    ),
    law.UNSCHEDULABLE: (
        limited(law.UNSCHEDULABLE, "3 of 9 workers do not start"),
        "… 3 of 9 workers do not start",
        "… quota",
        SPARE,
    ),
    law.SATURATION_POINT_REACHED: (
        limited(
            law.SATURATION_POINT_REACHED,
            "more than 6 workers brought no more rows (900 per second)",
        ),
        "… more than 6 workers brought no more rows",
        "… rows",
        SPARE,
    ),
    api.BOTTLENECK_ELSEWHERE: (
        limited(api.BOTTLENECK_ELSEWHERE, "Model: GPUs are 60% busy though rows are there"),
        "… Model: GPUs are 60% busy",
        "…",
        SPARE,
    ),
    law.METRICS_UNKNOWN: (
        [condition("ScalingActive", "False", law.METRICS_UNKNOWN, "the number stays")],
        "… 7m … the number stays",
        "… metrics",
        "… metrics",
    ),
    law.SCALING_DISABLED: (
        [condition("ScalingActive", "False", law.SCALING_DISABLED, "both are 6")],
        "… 7m … both are 6",
        "… dataWorkers.maxReplicas … scaleUp",
        "… dataWorkers.minReplicas … scaleDown",
    ),
}


@pytest.mark.parametrize(("conditions", "why", "more", "fewer"), REASONS.values(), ids=REASONS)
def test_every_reason_says_what_it_means_and_what_would_change_it(
    conditions: list[dict[str, str]], why: str, more: str, fewer: str
) -> None:
    words = told(experiment(conditions))
    assert re.findall(r"\d+", words["Workers"]) == ["6", "6", "2", "12"]
    assert_told(words["why"], why)
    change = words.get("change", "")
    assert_told(words.get("more", change), more)
    assert_told(words.get("fewer", change), fewer)


def test_there_is_no_reason_of_the_law_without_its_sentence() -> None:
    source = inspect.getsource(law).split("class RateLimit")[0]
    names = [line.split(" = ")[0] for line in source.splitlines() if ' = "' in line]
    assert len(names) > 10
    assert {getattr(law, name) for name in names} - REASONS.keys() == {law.VALID_METRIC_FOUND}
    own = {
        told(experiment(conditions))["why"].replace(conditions[-1]["message"], "")
        for conditions, *_ in REASONS.values()
    }
    assert len(own - {""}) == len(REASONS)


def test_without_autoscaling_it_says_who_sets_the_number() -> None:
    words = told(experiment([]))
    assert "settings" in words["why"]
    assert_told(words["change"], "lastmile scale clicks --data-workers N … 2 … 12")


def test_at_its_beginning_the_law_says_what_it_waits_for() -> None:
    words = told(experiment([], scaling={"sinceTime": before(seconds=20)}))
    assert "20 steps" in words["why"]
    assert "more" not in words


def test_before_it_trains_nothing_scales() -> None:
    document = experiment([])
    document["status"]["conditions"][0] |= {"status": "False", "reason": "Submitted"}
    words = told(document)
    assert "train" in words["why"]
    assert "more" not in words


@pytest.mark.parametrize(
    ("wanted", "more", "fewer"),
    [
        (12, "… dataWorkers.maxReplicas … 12", SPARE),
        (2, "… 2% … 2 … 12", "… dataWorkers.minReplicas … 2"),
    ],
    ids=["as many as there may be", "as few as there must be"],
)
def test_at_a_bound_that_bound_is_what_is_in_the_way(wanted: int, more: str, fewer: str) -> None:
    words = told(experiment(limited(law.DESIRED_WITHIN_RANGE, status="False"), wanted=wanted))
    assert_told(words["more"], more)
    assert_told(words["fewer"], fewer)


def test_the_window_is_the_specs() -> None:
    document = experiment(limited(law.SCALE_DOWN_STABILIZED))
    document["spec"]["autoscaling"] = {"scaleDown": {"stabilizationWindowSeconds": 600}}
    assert "10m" in told(document)["fewer"]


def test_a_run_that_follows_its_gpus_is_explained_by_them() -> None:
    document = experiment(limited(law.DESIRED_WITHIN_RANGE, "GPUs are 96% busy", status="False"))
    rules = {"signal": "GpuUtilization", "targetGpuUtilizationPercent": 90}
    document["spec"]["autoscaling"] = rules
    words = told(document)
    assert_told(words["more"], "… GPU … 90%")
    assert_told(words["fewer"], "… GPU … 90%")


def test_a_saturation_point_says_when_more_are_tried_again() -> None:
    point = {
        "replicas": 6,
        "untilTime": format_time(NOW + timedelta(minutes=20)),
        "rowsPerSecond": "9",
    }
    words = told(
        experiment(limited(law.SATURATION_POINT_REACHED), scaling={"saturationPoint": point})
    )
    assert "20m" in words["more"]


def test_a_worker_on_a_lost_node_is_told() -> None:
    victims = [{"name": "clicks-3", "time": "2026-01-01T00:00:00Z", "lost": True}]
    words = told(experiment(limited(law.SCALE_DOWN_LIMIT), draining=victims, drainingTo=4))
    assert "clicks-3" in words["lost"]
    assert "leaving" not in words


def test_a_drain_that_is_under_way_is_told_with_its_deadline() -> None:
    victims = [{"name": f"p{index}", "time": before(seconds=30)} for index in range(2)]
    words = told(experiment(limited(law.SCALE_DOWN_LIMIT), draining=victims, drainingTo=4))
    assert_told(words["leaving"], "2 … 90s … 4")
    assert "4" in words["more"]


def test_the_latest_changes_are_told_with_the_waits_that_they_rest_on() -> None:
    changes = [
        {"time": before(minutes=50), "before": 1, "after": 2, "reason": "DesiredWithinRange"},
        {"time": before(minutes=30), "before": 2, "after": 4, "reason": "DesiredWithinRange"},
        {
            "time": before(minutes=9),
            "before": 4,
            "after": 7,
            "reason": "DesiredWithinRange",
            "inputs": [{"name": "productionShare", "value": "0.18"}],
        },
        {
            "time": before(minutes=3),
            "before": 7,
            "after": 6,
            "reason": "ScaleDownLimit",
            "inputs": [{"name": "productionShare", "value": "0"}],
        },
    ]
    words = told(experiment(limited(law.SCALE_DOWN_LIMIT), scaling={"decisions": changes}))
    expected = ["7 → 6 … 3m … 0%", "4 → 7 … 9m … 18%", "2 → 4 … 30m"]
    assert_all_told(words["changed"].split("; "), expected)


def test_of_a_finished_run_nothing_is_explained() -> None:
    document = experiment([])
    document["status"] |= {"completionTime": before(minutes=1)}
    assert list(told(document)) == ["Workers"]


def test_all_of_it_fits_on_one_screen() -> None:
    changes = [
        {
            "time": before(minutes=i),
            "before": 4,
            "after": 7,
            "reason": "DesiredWithinRange",
            "inputs": [{"name": "productionShare", "value": "0.18"}],
        }
        for i in range(30, 20, -1)
    ]
    victims = [{"name": f"p{index}", "time": before(seconds=30)} for index in range(2)]
    longest = limited(law.SCALE_UP_LIMIT, f"{NEED}; first 6, until they are seen to help")
    document = experiment(longest, draining=victims, scaling={"decisions": changes})
    document["status"] |= {
        "run": 1,
        "runHash": "0123456789abcdef",
        "startTime": before(hours=1),
        "trainer": {"progressPercent": 40, "samplesPerSecond": "18000.5"},
        "usage": {"gpuSeconds": 36_000, "dataWorkerSeconds": 90_000, "cost": "27.50"},
    }
    lines = [
        line
        for label, value in build_summary(document, parse_status(document["status"]))
        for line in wrap_line(label, value, 80).splitlines()
    ]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert lines[-1].startswith("Used:")


def run_and_tell(run: Trained, seconds: float) -> dict[str, str]:
    run.run(seconds)
    status = run.world.status
    for found in status["conditions"]:
        assert found["reason"] in REASONS or found["type"] not in ("ScalingLimited",)
    document = {**run.world.document, "spec": {"dataWorkers": {"minReplicas": 2}}}
    return {label.strip(): t for label, t in explain(document, run.world.now)}


def test_what_the_operator_writes_is_what_is_explained() -> None:
    run = trained(demand=350.0)
    words = run_and_tell(run, 300)
    assert re.findall(r"\d+", words["Workers"])[:2] == ["4", "4"]
    assert words["changed"].startswith("2 → 4 ")
    assert "350" in words["why"]
    run.demand = 100.0
    words = run_and_tell(run, 200)
    [limit] = [c for c in run.world.status["conditions"] if c["type"] == "ScalingLimited"]
    assert limit["reason"] == law.SCALE_DOWN_STABILIZED
    assert limit["message"] in words["why"]


def test_an_operator_without_autoscaling_is_known_by_what_it_writes() -> None:
    world = running(SETTINGS.model_copy(update={"autoscale": False}))
    words = {label.strip(): text for label, text in explain(world.document, world.now)}
    assert "settings" in words["why"]


@pytest.mark.parametrize("reason", [law.TOO_MANY_REPLICAS, law.SATURATION_POINT_REACHED])
def test_writers_are_not_explained_by_trainers(reason: str) -> None:
    document = experiment(limited(reason, "the numbers"), wanted=12)
    document["spec"]["output"] = {"parquet": {"uri": "kept/"}}
    document["status"]["conditions"][0] |= {"type": "Writing"}
    lines = told(document)
    assert "the numbers" in lines["why"]
    assert "trainers" not in "".join(lines.values())
