"""Output and errors of the commands for a cluster, built from documents alone."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from facts import assert_all_told, assert_told

from dataset_operator import api
from dataset_operator.cli.artifacts import locate
from dataset_operator.cli.configuration import load_settings
from dataset_operator.cli.describe import build_pod_rows, build_summary
from dataset_operator.cli.get import _print, build_row
from dataset_operator.cli.logs import choose_attempt
from dataset_operator.cli.next_steps import advise
from dataset_operator.cli.printing import format_age
from dataset_operator.cli.run_lists import print_runs
from dataset_operator.cli.scale import build_request, check_request
from dataset_operator.errors import UserError
from dataset_operator.headline import find_headline
from dataset_operator.shapes import parse_status
from pipeline_runtime.config import API_VERSION, KIND, ExperimentStatus
from pipeline_runtime.formatting import format_age_seconds

UID = "0f3c6c1e-1111-2222-3333-444455556666"


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    since = "2026-01-01T00:00:00Z"
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def experiment(*conditions: dict[str, str], **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "clicks", "namespace": "team", "uid": UID},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, "backoffLimit": 2},
        "status": {"conditions": list(conditions), **status},
    }


def begun(run: int) -> dict[str, Any]:
    """Return the fields that every status with a run has."""
    return {"run": run, "runHash": "abc", "startTime": "2026-01-01T00:00:00Z"}


def summarize(document: dict[str, Any]) -> dict[str, str]:
    return dict(build_summary(document, parse_status(document["status"])))


RUN: dict[str, Any] = {
    "experiment": "clicks",
    "run": "20260101T000000Z-0123456789abcdef",
    "phase": "Complete",
    "startedAt": "2026-01-01T00:00:00+00:00",
    "summary": {"run": {"seconds": 90.4}, "seeds": {"training": 3}},
}


@pytest.mark.parametrize(
    ("storage_root", "uri"),
    [
        pytest.param(None, "s3://team/experiments/clicks/", id="as recorded"),
        pytest.param("file:///here", "file:///here/experiments/clicks/", id="from here"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_runs_are_listed_from_the_store(
    storage_root: str | None, uri: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def list_runs(place: str) -> list[dict[str, Any]]:
        asked.append(place)
        return [RUN, {**RUN, "phase": "Unfinished", "summary": None}]

    started = experiment(artifactsUri="s3://team/experiments/clicks/", **begun(1))
    print_runs(list_runs, [started, experiment()], storage_root, as_json=as_json)
    shown = capsys.readouterr().out
    assert asked == [uri]
    if as_json:
        assert [each["namespace"] for each in json.loads(shown)] == ["team", "team"]
    else:
        first, second = shown.splitlines()[1:]
        assert first.split()[:6] == ["team", "clicks", RUN["run"], "Complete", "90s", "3"]
        assert second.split()[3] == "Unfinished"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),  # the clocks differ
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172_799, "47h"),
        (172_800, "2d"),
    ],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert format_age_seconds(seconds) == text


def test_the_age_is_unknown_without_a_time() -> None:
    now = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    assert format_age("2026-01-01T00:00:00Z", now) == "5m"
    assert format_age(None, now) == "unknown"


READY = condition("ClusterReady", "True", "PodsReady")
WAITING = condition("ClusterReady", "False", "WaitingForPods")
VALID = condition("Accepted", "True", "ValidSpec")


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        pytest.param([VALID], "ValidSpec", id="accepted, nothing else yet"),
        pytest.param([VALID, WAITING], "WaitingForPods", id="pods are missing"),
        pytest.param(
            [VALID, READY, condition("Training", "True", "Running")], "Running", id="it trains"
        ),
        pytest.param(
            [VALID, READY, condition("Writing", "True", "Running")], "Running", id="it writes"
        ),
        pytest.param(
            [VALID, WAITING, condition("Training", "False", "Retrying")],
            "WaitingForPods",
            id="the next attempt waits for pods",
        ),
        pytest.param(
            [VALID, READY, condition("Training", "False", "SuspendedBySpec")],
            "PodsReady",
            id="it was resumed, and no attempt has begun",
        ),
        pytest.param(
            [READY, condition("Accepted", "False", "InvalidSpec")], "InvalidSpec", id="a bad edit"
        ),
        pytest.param(
            [WAITING, condition("Failed", "True", "DeadlineExceeded")],
            "DeadlineExceeded",
            id="it failed",
        ),
    ],
)
def test_the_headline_is_the_most_important_condition(
    conditions: list[dict[str, str]], reason: str
) -> None:
    headline = find_headline(parse_status({"conditions": conditions}))
    assert headline is not None
    assert headline.reason == reason


def test_there_is_no_headline_before_the_first_pass() -> None:
    assert find_headline(ExperimentStatus()) is None


def test_advice_names_the_experiment_and_the_command() -> None:
    waiting = experiment(condition("Suspended", "True", api.SUSPENDED_BY_SPEC))
    assert "lastmile resume clicks" in advise(waiting, parse_status(waiting["status"]))


def test_advice_without_a_status_is_to_check_the_operator() -> None:
    assert "operator" in advise(experiment(), ExperimentStatus())


def test_rows_have_the_crds_columns_and_empty_unknown_cells() -> None:
    document = experiment(
        phase="Training",
        gpus=4,
        dataWorkers={"currentReplicas": 3, "desiredReplicas": 5},
        trainer={"gpuUtilizationPercent": 93, "progressPercent": 40},
    )
    assert build_row(document)[:-1] == [
        *("team", "clicks", "Training", 4, 3, 5, 93, None, 40),
        *(None, None, None, None),
    ]


def test_rows_of_a_scoring_have_rate_and_estimated_time() -> None:
    document = experiment(
        phase="Writing",
        trainer={"samplesPerSecond": "12300", "estimatedRemaining": "45m"},
        output={"rows": 1_234_567},
        usage={"cost": "27.50", "currency": "EUR"},
    )
    assert build_row(document)[-5:-1] == [1_234_567, "12,300", "45m", "27.50 EUR"]


def test_the_summary_has_the_table_that_is_written() -> None:
    document = experiment(
        READY,
        condition("Writing", "True", "Running"),
        phase="Writing",
        trainer={"progressPercent": 40, "samplesPerSecond": "250"},
        output={"rows": 1_234_567, "files": 3, "bytes": 4096},
    )
    document["spec"]["output"] = {"parquet": {"uri": "kept/"}}
    summary = summarize(document)
    assert_told(summary["Writing"], "… 40 … 250 …")
    assert_told(summary["Table"], "… 1,234,567 … 3 … 4,096 …")
    assert "Training" not in summary


def test_the_summary_has_phase_run_workers_and_training() -> None:
    document = experiment(
        READY,
        condition("Training", "True", "Running", "attempt 2\ntrains"),
        phase="Training",
        **begun(1),
        attempt=2,
        failures=1,
        dataWorkers={"readyReplicas": 2, "desiredReplicas": 4},
        trainer={
            "progressPercent": 40,
            "estimatedRemainingSeconds": 600,
            "samplesPerSecond": "18000.5",
            "metrics": [{"name": "loss", "value": "0.31"}],
        },
    )
    facts = {
        "Experiment": "team/clicks",
        "Age": "unknown",
        "Phase": "Training: attempt 2 trains",
        "Next": "… lastmile logs clicks -f",
        "Run": "1 … abc … attempt 2 … failures 1",
        "Workers": "2 … 4",
        "Training": "40 … 10m … 18,000",
        "  loss": "0.31",
    }
    told = summarize(document)
    assert [*told] == [*facts]
    assert_all_told([*told.values()], [*facts.values()])


def test_the_summary_has_usage_and_cost() -> None:
    used = {"gpuSeconds": 36_000, "gpuMeasuredSeconds": 18_000, "gpuIdleSeconds": 900}
    bill = {"cost": "27.50", "currency": "EUR"}
    told = summarize(experiment(usage={**used, "dataWorkerSeconds": 90_000, **bill}))
    assert_told(told["Used"], "10.0 … 5% … 25.0 … 27.50 EUR")
    told = summarize(experiment(usage={"gpuSeconds": 36_000, "gpuMeasuredSeconds": 0}))
    assert_told(told["Used"], "10.0 … 0.0")
    assert "%" not in told["Used"]  # the idle share is not known


def test_the_cost_column_appears_only_with_costs(capsys: pytest.CaptureFixture[str]) -> None:
    _print([experiment(), experiment(usage={"cost": "27.50", "currency": "EUR"})], {}, None)
    header, *rows = capsys.readouterr().out.splitlines()
    assert "COST" in header
    assert ["27.50 EUR" in row for row in rows] == [False, True]
    _print([experiment()], {}, None)
    shown = capsys.readouterr().out
    assert all(name not in shown for name in ("COST", "ROWS", "ETA"))


def pod(name: str, *, ready: bool, waiting: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    return {
        "metadata": {"name": name, "labels": {api.ROLE_LABEL: "data-workers"}},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"ready": ready, "state": state}],
        },
    }


def test_unready_pods_come_first_with_their_reason() -> None:
    rows = build_pod_rows([pod("a", ready=True), pod("b", ready=False, waiting="ErrImagePull")])
    assert [row[:4] for row in rows] == [
        ("b", "data-workers", "no", "ErrImagePull"),
        ("a", "data-workers", "yes", "Running"),
    ]


def test_pods_that_do_not_fit_are_counted() -> None:
    rows = build_pod_rows([pod(f"p{index:02d}", ready=True) for index in range(15)])
    assert [row[0] for row in rows[-2:]] == ["p11", "and 3 more"]


@pytest.mark.parametrize(
    ("spec", "root", "uri"),
    [
        ({}, None, "s3://written/down/clicks/"),
        ({}, "/mnt/b", "/mnt/b/experiments/clicks/"),
        ({"storage": {"root": "s3://own/"}}, "s3://b/team", "s3://b/team/experiments/clicks/"),
        ({"artifacts": {"uri": "s3://other/x"}}, "s3://b", "s3://other/x/clicks/"),
    ],
)
def test_artifacts_are_located_by_status_spec_or_option(
    spec: dict[str, Any], root: str | None, uri: str
) -> None:
    document = experiment(artifactsUri="s3://written/down/clicks/", **begun(2))
    document["spec"] |= spec
    assert locate(document, root) == (uri, "0f3c6c1e-2")


def test_artifacts_of_a_spec_that_newer_rules_refuse_are_found() -> None:
    document = experiment(artifactsUri="s3://written/down/clicks/", **begun(2))
    document["spec"]["head"] = {"template": {"spec": {"hostNetwork": True}}}
    assert locate(document, "/mnt/b") == ("/mnt/b/experiments/clicks/", "0f3c6c1e-2")


def test_artifacts_are_refused_before_the_first_run() -> None:
    with pytest.raises(UserError, match="clicks"):
        locate(experiment(), None)


@pytest.mark.parametrize(
    ("status", "wanted", "message"),
    [
        ({}, None, "attempt"),
        ({"attempt": 2}, 3, r"\b2\b"),
    ],
)
def test_logs_of_a_missing_attempt_are_refused(
    status: dict[str, Any], wanted: int | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        choose_attempt(experiment(**status), wanted)


def scalable(**workers: Any) -> dict[str, Any]:
    document = experiment(rayClusterName="clicks-0f3c6", dataWorkers=workers)
    document["spec"]["dataWorkers"] = {"maxReplicas": 5}
    return document


def test_every_scale_command_is_a_new_request() -> None:
    assert check_request(scalable(desiredReplicas=2), 5) == 2
    first, second = (build_request(5)["metadata"]["annotations"] for _ in range(2))
    assert first.keys() == second.keys() == {api.SCALE_ANNOTATION}
    assert first != second


def test_scaling_during_a_drain_counts_staying_workers() -> None:
    assert check_request(scalable(desiredReplicas=5, drainingTo=3), 5) == 3


@pytest.mark.parametrize("wanted", [0, 6])
def test_scaling_keeps_within_the_bounds(wanted: int) -> None:
    with pytest.raises(UserError) as caught:
        check_request(scalable(desiredReplicas=2), wanted)
    assert_told(str(caught.value), f"… minReplicas … 1 … maxReplicas … 5 … {wanted}")


def test_scaling_without_a_cluster_is_refused() -> None:
    with pytest.raises(UserError, match="clicks"):
        check_request(experiment(dataWorkers={"desiredReplicas": 2}), 3)


def test_every_problem_of_the_settings_names_its_field(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "runtimeImge: x\nrunAsUser: 0\nresources: {head: {frobs: {}}}\n"
        "network: {apiServerCidrs: [10.0.0.1/28], nameServers: [kube]}\n"
    )

    with pytest.raises(UserError) as caught:
        load_settings(file, {})

    expected = [
        f"{file}: runtimeImage: … --runtime-image",
        f"{file}: resources.head.frobs: ",
        f"{file}: network.apiServerCidrs[0]: … '10.0.0.1/28'",
        f"{file}: network.nameServers[0]: … KubeDns … kube",
        f"{file}: network.nameServers[0]: … kube",
        f"{file}: runAsUser: … 1 … 0",
        f"{file}: runtimeImge: … runtimeImage",
    ]
    assert_all_told(str(caught.value).splitlines(), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [("- a", "mapping"), ("a: [", "YAML")],
)
def test_a_file_without_settings_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        load_settings(file, {})


def test_options_override_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("runtimeImage: old\nstorageRoot: s3://b/\n")

    settings = load_settings(file, {"runtimeImage": "new", "storageRoot": None})

    assert (settings.runtime_image, settings.storage_root) == ("new", "s3://b/")
