"""One screen says why the number of data workers is what it is, and what would change it."""

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from trained import Trained, trained
from world import SETTINGS, running

from dataset_operator import api
from dataset_operator.autoscaling import decision as law
from dataset_operator.cli.describe import build_summary, wrap_line
from dataset_operator.cli.workers import explain_workers
from dataset_operator.observed import format_time

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEED = (
    "trainers would take 700 rows a second, a busy worker makes 120: 5.8 workers (5.1 to 6.6), 7 "
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
            **({} if scaling is None else {"scaling": scaling}),
        },
    }


def told(document: dict[str, Any]) -> dict[str, str]:
    return {label.strip(): text for label, text in explain_workers(document, NOW)}


STARVED = "if trainers wait for rows 2% of their time or more, and need more than 6; at most 12"
SPARE = "if fewer would do for a whole 5m; never fewer than 2"
# conditions; the beginning of why; what it takes for more; for fewer
REASONS: dict[str, tuple[list[dict[str, str]], str, str, str]] = {
    law.DESIRED_WITHIN_RANGE: (
        limited(law.DESIRED_WITHIN_RANGE, status="False"),
        "it is what the trainers need: trainers would take 700 rows",
        STARVED,
        SPARE,
    ),
    law.TOO_MANY_REPLICAS: (
        limited(law.TOO_MANY_REPLICAS, "14 wanted, dataWorkers.maxReplicas is 12"),
        "more are needed than there may be: 14 wanted, dataWorkers.maxReplicas is 12",
        "raise dataWorkers.maxReplicas, now 12: it is taken at once",
        SPARE,
    ),
    law.TOO_FEW_REPLICAS: (
        limited(law.TOO_FEW_REPLICAS, "1 would do, dataWorkers.minReplicas is 2"),
        "fewer would do than there must be: 1 would do",
        STARVED,
        "lower dataWorkers.minReplicas, now 2: it is taken at once",
    ),
    law.SCALE_UP_LIMIT: (
        limited(law.SCALE_UP_LIMIT, f"{NEED}; first 6, until they are seen to help"),
        "more are needed, step by step: trainers would take",
        "by itself, once these are seen to help and autoscaling.scaleUp lets it",
        SPARE,
    ),
    law.SCALE_UP_STABILIZED: (
        limited(law.SCALE_UP_STABILIZED, "9 wanted, 6 at some time of the last 60 s"),
        "more are needed, but not for long enough yet: 9 wanted",
        "once they were needed for autoscaling.scaleUp.stabilizationWindowSeconds",
        SPARE,
    ),
    law.SCALE_DOWN_LIMIT: (
        limited(law.SCALE_DOWN_LIMIT, "3 would do; scaleDown.policies allow 5 now"),
        "fewer would do, step by step: 3 would do",
        STARVED,
        "by itself, as fast as autoscaling.scaleDown.policies allow",
    ),
    law.SCALE_DOWN_STABILIZED: (
        limited(law.SCALE_DOWN_STABILIZED, "4 would do, 6 at some time of the last 300 s"),
        "fewer would do, but not for long enough yet: 4 would do",
        STARVED,
        "by itself, once fewer would have done for a whole 5m",
    ),
    law.UNSCHEDULABLE: (
        limited(law.UNSCHEDULABLE, "3 of 9 workers do not start"),
        "more are needed, but pods do not start: 3 of 9 workers do not start",
        "asked for again after a pause; add nodes, raise a quota or ask for less",
        SPARE,
    ),
    law.KNEE_REACHED: (
        limited(law.KNEE_REACHED, "more than 6 workers brought no more rows (900 a second)"),
        "more bring no more rows: more than 6 workers brought no more rows",
        "once so many could bring more rows, as when rows become cheaper",
        SPARE,
    ),
    api.BOTTLENECK_ELSEWHERE: (
        limited(api.BOTTLENECK_ELSEWHERE, "Model: GPUs are 60% busy though rows are there"),
        "more workers would not help: Model: GPUs are 60% busy",
        "not before that is cured",
        SPARE,
    ),
    law.METRICS_UNKNOWN: (
        [condition("ScalingActive", "False", law.METRICS_UNKNOWN, "the number stays")],
        "what the trainers need is not known for 7m: the number stays",
        "once the metrics are back; pods that are lost are replaced all the same",
        "once the metrics are back; pods that are lost are replaced all the same",
    ),
    law.SCALING_DISABLED: (
        [condition("ScalingActive", "False", law.SCALING_DISABLED, "both are 6")],
        "the spec turns scaling off for 7m: both are 6",
        "with a higher dataWorkers.maxReplicas, or autoscaling.scaleUp not Disabled",
        "with a lower dataWorkers.minReplicas, or scaleDown not Disabled",
    ),
}


@pytest.mark.parametrize(("conditions", "why", "more", "fewer"), REASONS.values(), ids=REASONS)
def test_every_reason_says_what_it_means_and_what_would_change_it(
    conditions: list[dict[str, str]], why: str, more: str, fewer: str
) -> None:
    words = told(experiment(conditions))
    assert words["Workers"] == "6 of 6 ready, may be 2 to 12"
    assert words["why"].startswith(why)
    change = words.get("change")
    assert (words.get("more", change), words.get("fewer", change)) == (more, fewer)


def test_there_is_no_reason_of_the_law_without_its_sentence() -> None:
    source = inspect.getsource(law).split("class RateLimit")[0]
    names = [line.split(" = ")[0] for line in source.splitlines() if ' = "' in line]
    assert len(names) > 10
    assert {getattr(law, name) for name in names} - REASONS.keys() == {law.VALID_METRIC_FOUND}


def test_without_autoscaling_it_says_who_sets_the_number() -> None:
    words = told(experiment([]))
    assert "settings turn scaling off" in words["why"]
    assert words["change"] == "lastmile scale clicks --data-workers N, from 2 to 12"


def test_at_its_beginning_the_law_says_what_it_waits_for() -> None:
    words = told(experiment([], scaling={"since": before(seconds=20)}))
    assert "20 steps" in words["why"]
    assert "more" not in words


def test_before_it_trains_nothing_scales() -> None:
    document = experiment([])
    document["status"]["conditions"][0] |= {"status": "False", "reason": "Submitted"}
    assert "nothing scales before it trains" in told(document)["why"]


@pytest.mark.parametrize(
    ("wanted", "more", "fewer"),
    [
        (12, "raise dataWorkers.maxReplicas, now 12: it is taken at once", SPARE),
        (2, STARVED.replace("than 6", "than 2"), "lower dataWorkers.minReplicas, now 2: it is "),
    ],
    ids=["as many as there may be", "as few as there must be"],
)
def test_at_a_bound_that_bound_is_what_is_in_the_way(wanted: int, more: str, fewer: str) -> None:
    words = told(experiment(limited(law.DESIRED_WITHIN_RANGE, status="False"), wanted=wanted))
    assert words["more"] == more
    assert words["fewer"].startswith(fewer)


def test_the_window_is_the_specs() -> None:
    document = experiment(limited(law.SCALE_DOWN_STABILIZED))
    document["spec"]["autoscaling"] = {"scaleDown": {"stabilizationWindowSeconds": 600}}
    assert told(document)["fewer"] == "by itself, once fewer would have done for a whole 10m"


def test_a_run_that_follows_its_gpus_is_explained_by_them() -> None:
    document = experiment(limited(law.DESIRED_WITHIN_RANGE, "GPUs are 96% busy", status="False"))
    rules = {"signal": "GpuUtilization", "targetGpuUtilizationPercent": 90}
    document["spec"]["autoscaling"] = rules
    words = told(document)
    assert words["more"].startswith("if the GPUs are less than 90% busy")
    assert words["fewer"].startswith("if the GPUs stay 90% busy with fewer")


def test_a_knee_says_when_more_are_tried_again() -> None:
    knee = {"replicas": 6, "until": format_time(NOW + timedelta(minutes=20)), "rowsPerSecond": "9"}
    words = told(experiment(limited(law.KNEE_REACHED), scaling={"knee": knee}))
    assert words["more"].endswith("as when rows become cheaper, or in 20m")


def test_a_worker_on_a_lost_node_is_told() -> None:
    victims = [{"name": "clicks-3", "time": "2026-01-01T00:00:00Z", "lost": True}]
    words = told(experiment(limited(law.SCALE_DOWN_LIMIT), draining=victims, drainingTo=4))
    assert words["lost"] == "clicks-3: replaced, though not gone yet"
    assert "leaving" not in words


def test_a_drain_that_is_under_way_is_told_with_its_deadline() -> None:
    victims = [{"name": f"p{index}", "time": before(seconds=30)} for index in range(2)]
    words = told(experiment(limited(law.SCALE_DOWN_LIMIT), draining=victims, drainingTo=4))
    assert words["leaving"] == "2 hand over what they hold, and go (at most 90s more); 4 stay"
    assert "more than 4" in words["more"]


def test_the_latest_changes_are_told_with_the_waits_that_they_rest_on() -> None:
    changes = [
        {"time": before(minutes=50), "before": 1, "after": 2},
        {"time": before(minutes=30), "before": 2, "after": 4},
        {"time": before(minutes=9), "before": 4, "after": 7, "inputs": {"productionShare": "0.18"}},
        {"time": before(minutes=3), "before": 7, "after": 6, "inputs": {"productionShare": "0"}},
    ]
    words = told(experiment(limited(law.SCALE_DOWN_LIMIT), scaling={"decisions": changes}))
    assert words["changed"] == (
        "7 → 6 3m ago, when trainers waited 0%; "
        "4 → 7 9m ago, when trainers waited 18%; "
        "2 → 4 30m ago"
    )


def test_of_a_finished_run_nothing_is_explained() -> None:
    document = experiment([])
    document["status"] |= {"completionTime": before(minutes=1)}
    assert list(told(document)) == ["Workers"]


def test_all_of_it_fits_on_one_screen() -> None:
    changes = [
        {"time": before(minutes=i), "before": 4, "after": 7, "inputs": {"productionShare": "0.18"}}
        for i in range(30, 20, -1)
    ]
    victims = [{"name": f"p{index}", "time": before(seconds=30)} for index in range(2)]
    longest = limited(law.SCALE_UP_LIMIT, f"{NEED}; first 6, until they are seen to help")
    document = experiment(longest, draining=victims, scaling={"decisions": changes})
    document["status"] |= {
        "run": 1,
        "runHash": "0123456789abcdef",
        "trainer": {"progressPercentage": 40, "samplesPerSecond": "18000.5"},
        "usage": {"gpuSeconds": 36_000, "dataWorkerSeconds": 90_000, "cost": "27.50"},
    }
    lines = [
        line
        for label, value in build_summary(document)
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
    return {label.strip(): t for label, t in explain_workers(document, run.world.now)}


def test_what_the_operator_writes_is_what_is_explained() -> None:
    run = trained(demand=350.0)
    words = run_and_tell(run, 300)
    assert words["Workers"].startswith("4 of 4 ready")
    assert words["changed"].startswith("2 → 4 ")
    assert "trainers would take 350 rows a second" in words["why"]
    run.demand = 100.0
    assert run_and_tell(run, 200)["why"].startswith("fewer would do, but not for long enough yet")


def test_an_operator_without_autoscaling_is_known_by_what_it_writes() -> None:
    world = running(SETTINGS.model_copy(update={"autoscale": False}))
    words = {label.strip(): text for label, text in explain_workers(world.document, world.now)}
    assert "settings turn scaling off" in words["why"]
