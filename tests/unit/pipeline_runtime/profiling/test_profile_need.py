"""The needed data workers and the bottleneck, from given measurements."""

from typing import Any

import pytest
from facts import assert_told

from pipeline_runtime.config import ExperimentSpec, parse_experiment
from pipeline_runtime.pipeline import Pipeline
from pipeline_runtime.profiling.document import Measured, Need, Reading, StepCost, Trainer
from pipeline_runtime.profiling.need import find_binding, plan_need


def make_spec(**cluster: Any) -> ExperimentSpec:
    document = Pipeline.read_parquet("t/").document("needs")
    return parse_experiment({**document, "spec": {**document["spec"], **cluster}}).spec


def measured(median: float, low: float | None = None, high: float | None = None) -> Measured:
    return Measured(median=median, low=low or median, high=high or median, times=3)


def workers(lowest: int, highest: int, **resources: Any) -> dict[str, Any]:
    return {
        "minReplicas": lowest,
        "maxReplicas": highest,
        "resources": {"requests": resources} if resources else {},
    }


@pytest.mark.parametrize(
    ("intake", "reader", "cluster", "needed"),
    [
        pytest.param(900, 1000, {}, 1, id="less than one reader is one data worker"),
        pytest.param(
            # 4,000 · 1.075 = 4,300 samples per second, and each reader makes 1,075: exactly four
            *(4000, 1075, {"dataWorkers": workers(1, 9, cpu=1)}, 4),
            id="headroom included, rounded exactly",
        ),
        pytest.param(
            *(4000, 1074, {"dataWorkers": workers(1, 9, cpu=1)}, 5), id="a part of one is one more"
        ),
        pytest.param(4000, 1074, {}, 2, id="four CPUs per data worker by default"),
        pytest.param(
            *(4000, 1100, {"trainers": {"replicas": 3, "gpusPerReplica": 2}}, 6),
            id="every rank takes as much",
        ),
    ],
)
def test_data_workers_needed(
    intake: float, reader: float, cluster: dict[str, Any], needed: int
) -> None:
    assert plan_need(make_spec(**cluster), measured(intake), measured(reader)).workers == needed


def test_the_spread_follows_that_of_the_measurements() -> None:
    spec = make_spec(dataWorkers=workers(1, 50, cpu=1))
    need = plan_need(spec, measured(1000, 800, 1200), measured(100, 80, 110))
    assert (need.workers_low, need.workers, need.workers_high) == (8, 11, 17)


def test_waiting_is_the_unmet_share_of_the_demand() -> None:
    spec = make_spec(dataWorkers=workers(2, 5, cpu=1))
    need = plan_need(spec, measured(1000), measured(100))
    assert need.waiting_at_min == pytest.approx(0.8)
    assert need.waiting_at_max == pytest.approx(0.5)
    assert need.supply(2) == 200


@pytest.mark.parametrize(
    ("resources", "cpus"),
    [
        pytest.param({}, 4, id="the operator's default"),
        pytest.param({"requests": {"cpu": 8}}, 8, id="the request"),
        pytest.param({"requests": {"cpu": 2}, "limits": {"cpu": 3}}, 3, id="the limit first"),
        pytest.param({"requests": {"cpu": "1500m"}}, 2, id="a part of a CPU counts as one"),
        pytest.param({"requests": {"memory": "8Gi"}}, 4, id="memory says nothing of CPUs"),
    ],
)
def test_readers_of_a_data_worker(resources: dict[str, Any], cpus: int) -> None:
    assert make_spec(dataWorkers={"resources": resources}).data_workers.num_readers == cpus


def make_need(waiting: float = 0.0, *, demand: float = 1000) -> Need:
    """Build a need of at most ten data workers, at which trainers wait this share of time."""
    reader = demand * (1 - waiting) / 10 if waiting else demand
    return plan_need(
        make_spec(dataWorkers=workers(1, 10, cpu=1)), measured(demand), measured(reader)
    )


def make_trainer(**shares: float) -> Trainer:
    shares = {"batching": 0.0, "collate": 0.0, "transfer": 0.0, **shares}
    return Trainer(
        device="cpu",
        entrypoint="a:b",
        batch_rows=8,
        batch_bytes_per_sample=4,
        batches=64,
        roofline=measured(2000),
        intake=measured(1000),
        step_seconds=0.1,
        fixed_seconds=None,
        model_ratio=1 - sum(shares.values()),
        **{f"{name}_ratio": share for name, share in shares.items()},
    )


def make_reading(waiting: float = 0.0) -> Reading:
    return Reading(
        columns=1,
        rows_per_second=measured(1000),
        waiting_ratio=waiting,
        stored_bytes_per_row=1,
        decoded_bytes_per_row=1,
    )


def make_steps(read_share: float) -> tuple[StepCost, ...]:
    shares = {"read": read_share, "derive": 1 - read_share}
    return tuple(
        StepCost(
            kind=kind,
            path="",
            label="",
            rows_in=10,
            rows_out=10,
            microseconds_per_row=measured(share),
            share=share,
            bytes_per_row=8,
        )
        for kind, share in shares.items()
    )


@pytest.mark.parametrize(
    ("need", "trainer", "reading", "read_share", "what", "reason"),
    [
        pytest.param(
            *(make_need(), make_trainer(), make_reading(), 0.5, "model", "model"),
            id="the model",
        ),
        pytest.param(
            *(make_need(), make_trainer(collate=0.3, batching=0.3), make_reading(), 0.5),
            *("collate", "60 %"),
            id="tensors",
        ),
        pytest.param(
            *(make_need(), make_trainer(transfer=0.6), make_reading(), 0.5, "transfer", "60 %"),
            id="copies",
        ),
        pytest.param(
            *(make_need(0.5), make_trainer(), make_reading(), 0.4, "dataWorkers"),
            "10 … 500 … 1 k … derive … 60 %",
            id="data workers at their maximum",
        ),
        pytest.param(
            *(make_need(0.5), make_trainer(), make_reading(0.9), 0.8, "storage"),
            "72 % … storage",
            id="storage",
        ),
    ],
)
def test_bottleneck(
    need: Need, trainer: Trainer, reading: Reading, read_share: float, what: str, reason: str
) -> None:
    binding = find_binding(need, trainer, reading, make_steps(read_share))
    assert binding.what == what
    assert_told(binding.reason.replace("\u00a0", " "), f"… {reason}")
    assert binding.samples_per_second == min(need.demand, need.supply(need.max_workers))
