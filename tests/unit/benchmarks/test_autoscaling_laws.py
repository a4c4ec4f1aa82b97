"""Each peer's law does what its documentation says; the benchmark runs, and judges what it ran."""

from typing import Any

import pytest

from benchmarks.autoscaling import peers
from benchmarks.autoscaling.command import run
from benchmarks.autoscaling.jobs import job_of, run_job
from benchmarks.autoscaling.judging import judge
from benchmarks.autoscaling.policies import BEST_CONSTANT, LATENCY_ORACLE, OURS, POLICIES
from benchmarks.autoscaling.scenarios import SCENARIOS, Cell, cells
from benchmarks.autoscaling.seen import Seen
from dataset_operator.simulation.plant import Cluster
from dataset_operator.simulation.setting import Setting

COSTLY = Cell(scenario=SCENARIOS[3], start_seconds=30.0, noise_percent=20)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(setting=Setting(rows=1e9, max_workers=40), seed=1)


def seen(**changes: Any) -> Seen:
    plain: dict[str, Any] = {
        "at": 0.0,
        "desired": 10,
        "ready": 10,
        "busy": 0.8,
        "rate": 1000.0,
        "batch_seconds": 1.0,
        "step_seconds": 0.8,
        "wait_share": 0.2,
        "worker_rate": 100.0,
        "fill": 0.5,
        "free_units": 16.0,
        "unit_seconds": 2.0,
        "gpu_utilization": 0.9,
    }
    return Seen(**(plain | changes))


def answers(law: peers.Peer, *asked: Seen) -> list[int]:
    return [law.want(each) for each in asked]


def test_the_hpa_scales_by_the_ratio_beyond_its_tolerance(cluster: Cluster) -> None:
    assert answers(peers.Hpa(cluster, target=0.8), seen(busy=0.87)) == [10]
    assert answers(peers.Hpa(cluster, target=0.5), seen(busy=0.8)) == [16]
    # At most double, or four more, at a time.
    assert answers(peers.Hpa(cluster, target=0.1), seen(busy=1.0)) == [20]
    assert answers(peers.Hpa(cluster, target=0.1), seen(busy=1.0, ready=2, desired=2)) == [6]


def test_the_hpa_removes_by_the_largest_of_five_minutes(cluster: Cluster) -> None:
    law = peers.Hpa(cluster, target=0.8)
    got = answers(law, seen(), *(seen(at=15.0 * i, busy=0.4) for i in range(1, 25)))
    assert got[:20] == [10] * 20
    assert got[-1] == 5


def test_the_hpa_on_idle_gpus_adds_where_they_idle(cluster: Cluster) -> None:
    law = peers.HpaOnIdleGpus(cluster, target=0.9)
    assert answers(law, seen(gpu_utilization=0.6)) == [15]
    assert answers(law, seen(gpu_utilization=None)) == [10]


def test_keda_asks_for_a_worker_for_so_many_free_places(cluster: Cluster) -> None:
    assert answers(peers.Keda(cluster, target=1.0), seen(free_units=15.0)) == [15]


def test_pi_follows_the_fill_and_remembers_it(cluster: Cluster) -> None:
    law = peers.QueuePi(cluster, set_point=0.5, gain=8.0, integral_seconds=60.0)
    empty = [seen(at=15.0 * i, fill=0.0) for i in range(5)]
    got = answers(law, *empty)
    assert got == sorted(got)
    assert got[-1] == 10 + round(4 * 8.0 * 0.5 * 15.0 / 60.0)


def test_dask_divides_occupancy_and_is_slow_to_remove(cluster: Cluster) -> None:
    law = peers.Dask(cluster, target_seconds=4.0)
    assert answers(law, seen(free_units=16.0, busy=0.8)) == [12]  # 24 tasks of 2 s in 4 s
    few = seen(free_units=0.0, busy=0.2)
    assert answers(law, few, few, few) == [10, 10, 8]  # at the third time, by a quarter


def test_rays_autoscaler_adds_for_tasks_and_removes_after_a_minute(cluster: Cluster) -> None:
    law = peers.RayAutoscaler(cluster)
    assert answers(law, seen(free_units=14.0)) == [14]
    idle = [seen(at=15.0 * i, free_units=2.0, busy=0.5) for i in range(1, 6)]
    assert answers(law, *idle)[-1] == 5


def test_ray_data_by_use_adds_one_at_a_time(cluster: Cluster) -> None:
    law = peers.RayDataUtilisation(cluster)
    assert answers(law, seen(busy=0.8), seen(busy=0.5)) == [11, 10]


def test_ray_data_by_rate_wants_twice_the_rate_and_only_adds(cluster: Cluster) -> None:
    law = peers.RayDataRate(cluster)
    assert answers(law, seen(rate=1000.0, worker_rate=100.0)) == [20]
    assert answers(law, seen(rate=100.0, busy=0.6)) == [10]
    assert answers(law, seen(rate=1000.0, busy=0.4)) == [10]


def test_cachew_climbs_while_batches_come_faster(cluster: Cluster) -> None:
    law = peers.Cachew(cluster)
    steps = [
        seen(desired=10, ready=10, batch_seconds=1.0),
        seen(desired=11, ready=11, batch_seconds=0.9),
        seen(desired=12, ready=12, batch_seconds=0.89),
    ]
    assert answers(law, *steps) == [11, 12, 11]
    held = [seen(desired=11, ready=11, batch_seconds=0.9)] * 19
    assert set(answers(law, *held)) == {11}
    worse = seen(desired=11, ready=11, batch_seconds=1.5)
    assert answers(law, worse, worse) == [11, 12]  # it opens again, then climbs


def test_tf_data_service_divides_demand_by_throughput(cluster: Cluster) -> None:
    law = peers.TfDataService(cluster)
    rows = cluster.given.batch_rows
    assert answers(law, seen(step_seconds=0.5, worker_rate=rows / 4.5)) == [9]


def test_all_that_the_design_asks_for_is_there() -> None:
    assert len(SCENARIOS) == len({scenario.name for scenario in SCENARIOS})
    assert len(cells()) == len(SCENARIOS) * 4 * 2
    for scenario in SCENARIOS:
        setting = scenario.build()
        rows, seconds = 0.0, 0.0
        ends = [*(phase.from_row for phase in setting.phases[1:]), setting.rows]
        for phase, end in zip(setting.phases, ends, strict=True):
            step = phase.step_seconds + sum(phase.waits.values())
            seconds += (end - rows) / setting.batch_rows * step
            rows = end
        if setting.epoch_steps:
            epochs = setting.rows / setting.batch_rows / setting.epoch_steps
            seconds += epochs * setting.pause_seconds
        assert seconds >= 7200 - 1, scenario.name
    assert {OURS, LATENCY_ORACLE, BEST_CONSTANT} <= {policy.name for policy in POLICIES}


@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
def test_every_law_trains_all_rows(policy: str) -> None:
    settings = {"workers": 9} if policy == BEST_CONSTANT else {}
    found = run_job(job_of(COSTLY, policy, settings, seed=2))
    assert found.has_ended
    assert found.rows >= COSTLY.setting().rows


def test_the_same_seed_gives_the_same() -> None:
    first, again, other = (run_job(job_of(COSTLY, OURS, {}, seed)) for seed in (2, 2, 3))
    assert first == again != other


@pytest.mark.slow
def test_the_benchmark_runs_and_judges() -> None:
    chosen = [cell for cell in cells() if cell.scenario.name in ("steady", "row cost x2")]
    rows, num_runs = run(chosen[:1] + chosen[-1:], range(1, 3))
    assert num_runs == 2 * len(POLICIES) * 2
    assert {row.policy for row in rows} == {policy.name for policy in POLICIES}
    oracle = [row for row in rows if row.policy == LATENCY_ORACLE]
    assert all(row.worker_hours_ratio == 1.0 and row.idle_excess_share == 0.0 for row in oracle)
    bars = judge(rows)
    assert all(0 <= bar.num_met <= bar.num_cells for bar in bars)
