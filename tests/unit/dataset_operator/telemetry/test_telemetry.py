"""The operator's log lines and metrics, and its check that its watch is alive."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import pytest
from clocks import Clock
from facts import assert_told
from prometheus_client import generate_latest

from dataset_operator.errors import KubeRefused
from dataset_operator.scheduling.passes import Done, Trigger
from dataset_operator.settings import Prices
from dataset_operator.telemetry.freshness import DEAD_SECONDS, compare_forever, find_staleness
from dataset_operator.telemetry.log_records import JsonFormatter, TextFormatter, bind
from dataset_operator.telemetry.metrics import OperatorMetrics, parse_request
from dataset_operator.telemetry.watched import Follow, Watched

CLICKS = ("team", "clicks")


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    since = "2026-11-21T00:00:00Z"
    words = {"type": kind, "status": status, "reason": reason, "message": message}
    return words | {"lastTransitionTime": since}


def experiment(version: int, phase: str = "Pending", reason: str = "WaitingForPods") -> Any:
    ready = condition("ClusterReady", "False", reason, "0 of 1 head ready")
    return {
        "metadata": {"namespace": "team", "name": "clicks", "resourceVersion": str(version)},
        "status": {"phase": phase, "attempt": 3, "conditions": [ready]},
    }


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("kube", logging.WARNING, "", 1, "it takes %d s", (5,), None)
    made.created = 1_700_000_000.5
    made.__dict__.update(extra)
    return made


def test_json_lines_have_the_fields_of_their_object() -> None:
    bound = copy_context()
    bound.run(bind, namespace="team", experiment="clicks", attempt=None)

    line = bound.run(JsonFormatter().format, record(reason="KubeUnavailable"))

    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "warning",
        "logger": "kube",
        "message": "it takes 5 s",
        "namespace": "team",
        "experiment": "clicks",
        "reason": "KubeUnavailable",
    }


def test_fields_of_a_record_override_bound_fields() -> None:
    bound = copy_context()
    bound.run(bind, namespace="team", experiment="clicks")

    line = bound.run(JsonFormatter().format, record(experiment="other"))

    assert json.loads(line)["experiment"] == "other"


def test_an_exception_is_one_field_of_one_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        made = record(exc_info=sys.exc_info())

    line = JsonFormatter().format(made)

    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: first\nsecond")


@pytest.mark.parametrize(
    ("extra", "end"),
    [
        pytest.param({}, "WARNING it takes 5 s", id="about nothing"),
        pytest.param(
            {"namespace": "team", "experiment": "clicks", "attempt": 2, "reason": "JobFailed"},
            "WARNING team/clicks (attempt 2, JobFailed): it takes 5 s",
            id="about an attempt",
        ),
        pytest.param({"reason": "Gone"}, "WARNING (Gone): it takes 5 s", id="a reason alone"),
    ],
)
def test_text_lines_begin_with_their_object(extra: dict[str, object], end: str) -> None:
    assert TextFormatter().format(record(**extra)).endswith(f" {end}")


def test_a_listed_version_that_never_comes_means_a_dead_watch() -> None:
    clock = Clock()
    watched = Watched(clock=clock)
    watched.see(None, experiment(1))
    watched.compare({CLICKS: "1"}, asked=clock.now)
    clock.now += 60
    watched.compare({CLICKS: "2"}, asked=clock.now)
    clock.now += 60
    watched.compare({CLICKS: "3"}, asked=clock.now)  # the time since version 2 counts

    clock.now += DEAD_SECONDS - 60
    assert find_staleness(watched) is None  # just within the limit
    clock.now += 1
    assert_told(str(find_staleness(watched)), "… team/clicks … 121 s")

    watched.see("MODIFIED", experiment(3))
    assert find_staleness(watched) is None


def test_constant_changes_are_not_a_dead_watch() -> None:
    clock = Clock()
    watched = Watched(clock=clock)
    asked = clock.now
    clock.now += 1
    watched.see("MODIFIED", experiment(7))  # during the list request
    watched.compare({CLICKS: "6"}, asked=asked)

    assert watched.find_oldest_missed() is None


@dataclass
class Listed:
    """An API server that lists one experiment in one namespace and refuses the others."""

    open_to: str

    async def list_metadata(self, kind: str, namespace: str) -> AsyncIterator[dict[str, Any]]:
        assert kind == "DatasetExperiment"
        if namespace != self.open_to:
            raise KubeRefused(f"{namespace} is forbidden")
        yield {"namespace": namespace, "name": "clicks", "resourceVersion": "1"}


def test_a_refused_list_does_not_hide_another_dead_watch() -> None:
    watched = Watched(clock=Clock())
    listing = compare_forever(Listed("team"), ["other", "team"], watched, 60.0)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(listing, 0.05))
    missed = watched.find_oldest_missed()
    assert missed is not None
    assert missed[0] == CLICKS


@pytest.mark.parametrize("gone", ["by the watch", "from the list"])
def test_deleted_objects_are_not_waited_for(gone: str) -> None:
    watched = Watched(clock=Clock())
    watched.compare({CLICKS: "1"}, asked=0.0)
    assert watched.find_oldest_missed() is not None

    if gone == "by the watch":
        watched.see("DELETED", experiment(2))
    else:
        watched.compare({}, asked=60.0)

    assert watched.find_oldest_missed() is None


@pytest.mark.parametrize(
    ("metadata", "trigger"),
    [
        pytest.param({}, Trigger.CHANGE, id="a status that somebody else wrote"),
        pytest.param({"finalizers": ["a/b"]}, Trigger.CHANGE, id="a finaliser"),
        pytest.param({"generation": 2}, Trigger.EDIT, id="an edit"),
        pytest.param({"deletionTimestamp": "2026-11-21T00:00:00Z"}, Trigger.EDIT, id="its end"),
        pytest.param({"annotations": {"a": "b"}}, Trigger.EDIT, id="an annotation"),
    ],
)
def test_edits_precede_other_changes(metadata: dict[str, Any], trigger: Trigger) -> None:
    watched, document = Watched(), experiment(1)
    assert watched.see("ADDED", document) is Trigger.EDIT
    document = experiment(2)
    document["metadata"] |= metadata
    assert watched.see("MODIFIED", document) is trigger


GOES_ON: dict[str, Any] = {"trainer": {"progressPercent": 42}, "usage": {"gpuSeconds": 60}}


@pytest.mark.parametrize("event_comes", ["in the pass", "before the answer", "after the pass"])
@pytest.mark.parametrize(
    ("status", "has_news"),
    [
        pytest.param(GOES_ON, False, id="progress"),
        pytest.param({**GOES_ON, "attempt": 4}, True, id="another attempt"),
    ],
)
def test_the_operators_own_progress_write_triggers_no_pass(
    status: dict[str, Any], has_news: bool, event_comes: str
) -> None:
    watched, follow, document = Watched(), Follow(), experiment(1)
    watched.see("ADDED", document)
    with watched.following(*CLICKS, follow):
        watched.record(document)
        if event_comes == "before the answer":
            assert watched.see("MODIFIED", experiment(2)) is None
        watched.record_write(document, {**document["status"], **status}, "2")
        if event_comes == "in the pass":
            assert watched.see("MODIFIED", experiment(2)) is None
    if event_comes == "after the pass":
        assert watched.see("MODIFIED", experiment(2)) is None
    assert follow.has_news is has_news


def test_a_write_cut_by_an_older_crd_triggers_no_pass() -> None:
    watched, follow, document = Watched(), Follow(), experiment(1)
    watched.see("ADDED", document)
    with watched.following(*CLICKS, follow):
        watched.record(document)
        unknown = {**document["status"], "scaleRequest": {"state": "Refused"}}
        watched.record_write(document, unknown, document["metadata"]["resourceVersion"])
    assert not follow.has_news


def test_a_status_write_of_others_triggers_a_pass() -> None:
    watched, follow, document = Watched(), Follow(), experiment(1)
    watched.see("ADDED", document)
    with watched.following(*CLICKS, follow):
        watched.record(document)
        watched.record_write(document, {**document["status"], **GOES_ON}, "2")
        watched.see("MODIFIED", experiment(2))
        assert watched.see("MODIFIED", experiment(3)) is None
    assert follow.has_news


def test_a_late_pass_does_not_restore_a_deleted_experiment() -> None:
    watched, document = Watched(), experiment(1)
    watched.see("ADDED", document)
    with watched.following(*CLICKS, Follow()):
        watched.see("DELETED", document)
        watched.record(document)
    assert list(watched.list_standings()) == []
    another = experiment(2)
    another["metadata"]["uid"] = "another"
    watched.see("ADDED", another)
    watched.record(document)
    assert list(watched.list_standings()) == []


@pytest.mark.parametrize("event", [None, "ADDED", "DELETED"])
def test_relisted_or_deleted_objects_trigger_a_pass(event: str | None) -> None:
    watched = Watched()
    assert watched.see(None, experiment(1)) is Trigger.CHANGE  # there may be thousands
    assert watched.see(event, experiment(1)) is Trigger.CHANGE


def test_the_watch_is_in_sync_after_all_listed_objects() -> None:
    watched = Watched()
    watched.compare({CLICKS: "1"}, asked=watched.clock())
    assert not watched.is_synced

    watched.see(None, experiment(1))
    watched.compare({CLICKS: "1"}, asked=watched.clock())
    assert watched.is_synced


def test_changes_are_logged_once_but_not_the_first_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    watched = Watched()
    watched.see(None, experiment(1))
    watched.record(experiment(1))
    watched.record(experiment(2))
    assert caplog.records == []

    refused = experiment(3, reason="ClusterRefused")
    watched.record_write(experiment(2), refused["status"], "3")
    watched.record(refused)

    [told] = caplog.records
    assert_told(told.getMessage(), "Pending: … ClusterReady … False … 0 of 1 head ready")
    assert (told.__dict__["experiment"], told.__dict__["attempt"]) == ("clicks", 3)


def test_metrics_count_experiments_passes_and_requests() -> None:
    clock = Clock()
    metrics = OperatorMetrics(Watched(clock=clock))
    metrics.watched.see("ADDED", experiment(1))
    metrics.watched.record(experiment(1))
    metrics.watched.record_write(experiment(1), experiment(2, phase="Training")["status"], "2")
    clock.now += 30
    metrics.count_pass(Done("done", None, 0.2, Trigger.CLOCK, 3.0))
    metrics.count_pass(Done("failed", "KubeUnavailable", 30.0, Trigger.EDIT, 0.004))
    metrics.count_request("GET", "/api/v1/namespaces/team/pods", 200, 0.01)

    lines = generate_latest(metrics.registry).decode().splitlines()

    for line in (
        'lastmile_operator_experiments{phase="Pending"} 0.0',
        'lastmile_operator_experiments{phase="Training"} 1.0',
        "lastmile_operator_last_event_age_seconds 30.0",
        'lastmile_operator_reconcile_total{result="done"} 1.0',
        "lastmile_operator_reconcile_seconds_count 2.0",
        'lastmile_operator_queue_seconds_sum{trigger="clock"} 3.0',
        'lastmile_operator_queue_seconds_bucket{le="0.01",trigger="edit"} 1.0',
        'lastmile_operator_queue_seconds_count{trigger="change"} 0.0',
        'lastmile_operator_errors_total{reason="KubeUnavailable"} 1.0',
        'lastmile_operator_api_request_seconds_count{code="200",resource="pods",verb="list"} 1.0',
    ):
        assert line in lines


def test_usage_metrics_last_as_long_as_the_experiment() -> None:
    metrics = OperatorMetrics(Watched(clock=Clock()))
    used = {"gpuSeconds": 7200, "gpuIdleSeconds": 60, "cost": "5.20", "currency": "EUR"}
    document = experiment(1)
    document["status"]["usage"] = used
    metrics.watched.see("ADDED", document)
    metrics.watched.record(document)

    lines = generate_latest(metrics.registry).decode().splitlines()

    labels = 'experiment="clicks",namespace="team"'
    for line in (
        f"lastmile_experiment_gpu_seconds_total{{{labels}}} 7200.0",
        f"lastmile_experiment_gpu_idle_seconds_total{{{labels}}} 60.0",
        f"lastmile_experiment_data_worker_seconds_total{{{labels}}} 0.0",
        'lastmile_experiment_cost{currency="EUR",experiment="clicks",namespace="team"} 5.2',
    ):
        assert line in lines
    metrics.watched.see("DELETED", document)
    assert 'experiment="clicks"' not in generate_latest(metrics.registry).decode()


def training(**status: Any) -> Any:
    """Build a training experiment whose status has every field."""
    document = experiment(2, phase="Training", reason="PodsReady")
    document["spec"] = {"dataWorkers": {"minReplicas": 1, "maxReplicas": 8}}
    document["status"] |= {
        "run": 2,
        "runHash": "abc",
        "failures": 1,
        "rayClusterName": "clicks-2",
        "gpus": 4,
        "startTime": "2026-11-21T00:00:00Z",
        "trainingStartTime": "2026-11-21T00:05:00Z",
        "submission": {"id": "clicks-3", "headPodUid": "h", "time": "2026-11-21T00:08:00Z"},
        "dataWorkers": {
            "currentReplicas": 3,
            "readyReplicas": 2,
            "desiredReplicas": 4,
            "draining": [{"name": "w", "time": "2026-11-21T00:05:00Z"}],
        },
        "trainer": {
            "progressPercent": 40,
            "gpuUtilizationPercent": 95,
            "productionWaitPercent": 0,
        },
        "scaling": {
            "sinceTime": "2026-11-21T00:00:00Z",
            "decisions": [
                {"time": "2026-11-21T00:06:00Z", "before": 4, "after": 2, "reason": "Older"},
                {"time": "2026-11-21T00:07:00Z", "before": 2, "after": 4, "reason": "Newer"},
            ],
        },
    } | status
    document["status"]["conditions"] += [
        condition("Training", "True", "Running"),
        condition("ScalingActive", "Unknown", "Odd"),
    ]
    return document


def told(document: Any) -> dict[str, float]:
    """Return the metrics of the only experiment, without the labels that all share."""
    metrics = OperatorMetrics(Watched(clock=Clock()))
    metrics.watched.see("ADDED", document)
    metrics.watched.record(document)
    found = {}
    for sample in (sample for family in metrics.registry.collect() for sample in family.samples):
        if sample.name.startswith("lastmile_experiment_"):
            more = sorted(item for item in sample.labels.items() if item[1] not in CLICKS)
            words = ",".join(value for _, value in more)
            found[f"{sample.name.removeprefix('lastmile_experiment_')} {words}".strip()] = (
                sample.value
            )
    return found


def test_metrics_report_the_training() -> None:
    midnight = 1_795_219_200.0
    assert told(training()) == {
        "phase Training": 1,
        "condition PodsReady,ClusterReady": 0,
        "condition Running,Training": 1,
        "progress_ratio": 0.4,
        "gpu_utilization_ratio": 0.95,
        "production_wait_ratio": 0,
        "gpus": 4,
        "data_workers current": 3,
        "data_workers ready": 2,
        "data_workers desired": 4,
        "data_workers draining": 1,
        "data_workers_limit min": 1,
        "data_workers_limit max": 8,
        "start_timestamp_seconds": midnight,
        "training_start_timestamp_seconds": midnight + 300,
        "attempt_start_timestamp_seconds": midnight + 480,
        "attempts_total": 3,
        "failed_attempts_total": 1,
        "decision_timestamp_seconds up,Newer": midnight + 420,
    }


def test_ended_experiments_report_no_held_resources() -> None:
    document = training()
    del document["status"]["rayClusterName"], document["status"]["submission"]
    document["status"]["conditions"][1] |= {"status": "False", "reason": "Succeeded"}
    names = {name.partition(" ")[0] for name in told(document)}
    assert names == {
        *("phase", "condition", "attempts_total", "failed_attempts_total"),
        *("start_timestamp_seconds", "training_start_timestamp_seconds"),
    }


def test_an_experiment_has_at_most_thirty_series() -> None:
    used = dict.fromkeys(("gpuSeconds", "gpuMeasuredSeconds", "gpuIdleSeconds"), 1)
    document = training(usage={**used, "dataWorkerSeconds": 1, "cost": "1", "currency": "EUR"})
    kinds = ("Accepted", "ScalingActive", "ScalingLimited", "Suspended", "Complete", "Failed")
    more = [condition(kind, "False", "None") for kind in kinds]
    document["status"]["conditions"] = [*document["status"]["conditions"][:2], *more]
    assert len(told(document)) == 30
    for field in ("rayClusterName", "submission"):
        del document["status"][field]
    document["status"]["conditions"][1]["status"] = "False"  # it does not train
    assert len(told(document)) == 18


@pytest.mark.parametrize("word", ["", "yesterday"])
def test_an_invalid_time_is_not_reported(word: str) -> None:
    decided = [{"time": word, "before": 1, "after": 2, "reason": "Odd"}]
    document = training(startTime=word, scaling={"sinceTime": word, "decisions": decided})
    assert not {"start_timestamp_seconds", "decision"} & {
        n.partition("{")[0] for n in told(document)
    }
    assert "training_start_timestamp_seconds" in told(document)


def test_metrics_exist_before_the_first_pass() -> None:
    prices = Prices(gpu_hour=2.5, data_worker_hour=0.25, currency="EUR")
    metrics = OperatorMetrics(Watched(), prices)
    lines = generate_latest(metrics.registry).decode().splitlines()
    assert 'lastmile_operator_price_per_hour{currency="EUR",resource="gpu"} 2.5' in lines
    assert 'lastmile_operator_reconcile_total{result="defect"} 0.0' in lines
    assert any(line.startswith("lastmile_operator_build_info{version=") for line in lines)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/namespaces/team/pods", ("list", "pods")),
        ("GET", "/api/v1/namespaces/team/pods/clicks-head", ("get", "pods")),
        ("PATCH", "/apis/ray.io/v1/namespaces/team/rayclusters/clicks", ("patch", "rayclusters")),
        ("PUT", "/apis/a.b/v1/namespaces/team/things/x/status", ("update", "things/status")),
        ("GET", "/apis/a.b/v1/things", ("list", "things")),
        ("GET", "/apis/a.b/v1", ("get", "discovery")),
    ],
)
def test_a_request_is_counted_as_kubernetes_counts_it(
    method: str, path: str, expected: tuple[str, str]
) -> None:
    assert parse_request(method, path) == expected


def test_an_object_is_read_again_only_if_it_changed() -> None:
    watched = Watched(clock=Clock())
    watched.see("ADDED", experiment(1))
    watched.record(experiment(1))
    [(_, first)] = watched.list_standings()
    watched.record(experiment(1))
    [(_, second)] = watched.list_standings()
    assert second is first
    written = experiment(2, phase="Training")
    watched.record_write(experiment(1), written["status"], "2")
    [(_, third)] = watched.list_standings()
    watched.record(written)
    [(_, fourth)] = watched.list_standings()
    assert (third.phase, fourth is third) == ("Training", True)
