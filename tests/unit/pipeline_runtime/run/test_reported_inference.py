"""Counts of inference workers: sums of groups, and the metrics made of them."""

from prometheus_client import CollectorRegistry

from pipeline_runtime.feed.over_ray.model_pool import PoolReading
from pipeline_runtime.run.inference_metrics import InferenceCollector
from pipeline_runtime.run.reported_inference import ReportedInference
from pipeline_runtime.steps.predict.serving_counts import ServingCounts

LABELS = {"group": "large"}


def count(rows: int, waiting: int = 0) -> ServingCounts:
    return ServingCounts(
        num_batches=1, num_rows=rows, busy_seconds=rows / 10, ready_seconds=9.0, num_waiting=waiting
    )


def read_metrics(inference: ReportedInference) -> dict[str, float | None]:
    registry = CollectorRegistry()
    registry.register(InferenceCollector(inference))
    names = ("workers", "waiting_requests", "rows_total", "busy_seconds_total")
    return {name: registry.get_sample_value(f"lastmile_inference_{name}", LABELS) for name in names}


def test_a_lost_worker_and_a_restarted_pool_keep_their_rows() -> None:
    inference = ReportedInference()
    inference.record("large", PoolReading(workers=()))
    assert read_metrics(inference) == {
        "workers": 0,
        "waiting_requests": 0,
        "rows_total": 0,
        "busy_seconds_total": 0,
    }
    both = {"a": count(10, waiting=2), "b": count(20, waiting=3)}
    inference.record("large", PoolReading(workers=("a", "b"), counts=both))
    inference.record("large", PoolReading(workers=("c",), counts={"c": count(5, waiting=1)}))
    assert read_metrics(inference) == {
        "workers": 1,
        "waiting_requests": 1,
        "rows_total": 35,
        "busy_seconds_total": 3.5,
    }


def test_a_group_that_has_ended_keeps_its_counters_alone() -> None:
    inference = ReportedInference()
    inference.record("large", PoolReading(workers=("a",), counts={"a": count(10)}))
    inference.record("large", PoolReading(workers=None))
    assert read_metrics(inference) == {
        "workers": None,
        "waiting_requests": None,
        "rows_total": 10,
        "busy_seconds_total": 1.0,
    }


def test_a_run_without_groups_has_no_metrics_of_them() -> None:
    assert list(InferenceCollector(ReportedInference()).collect()) == []
