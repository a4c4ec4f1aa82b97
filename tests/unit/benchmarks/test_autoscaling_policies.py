"""Each peer policy does what its documentation says; scenarios hold what they promise."""

from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.autoscaling import peers
from benchmarks.autoscaling.policies import BEST_CONSTANT, OURS, POLICIES
from benchmarks.autoscaling.result_rows import NUM_GPUS
from benchmarks.autoscaling.scenarios import SCENARIOS, Cell, Scenario, cells
from benchmarks.autoscaling.seen import Seen
from benchmarks.autoscaling.simulations import Runner, job_of, run_job, trace_job
from benchmarks.autoscaling.tuning import constant_jobs, find_best_constants
from dataset_operator.simulation.cluster import Cluster
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


def answers(policy: peers.Peer, *asked: Seen) -> list[int]:
    return [policy.want(each) for each in asked]


def test_the_hpa_scales_by_the_ratio_beyond_its_tolerance(cluster: Cluster) -> None:
    assert answers(peers.Hpa(cluster, target=0.8), seen(busy=0.87)) == [10]
    assert answers(peers.Hpa(cluster, target=0.5), seen(busy=0.8)) == [16]
    # At most double, or four more, at a time.
    assert answers(peers.Hpa(cluster, target=0.1), seen(busy=1.0)) == [20]
    assert answers(peers.Hpa(cluster, target=0.1), seen(busy=1.0, ready=2, desired=2)) == [6]


def test_the_hpa_removes_by_the_largest_of_five_minutes(cluster: Cluster) -> None:
    policy = peers.Hpa(cluster, target=0.8)
    got = answers(policy, seen(), *(seen(at=15.0 * i, busy=0.4) for i in range(1, 25)))
    assert got[:20] == [10] * 20
    assert got[-1] == 5


def test_the_hpa_on_idle_gpus_adds_where_they_idle(cluster: Cluster) -> None:
    policy = peers.HpaOnIdleGpus(cluster, target=0.9)
    assert answers(policy, seen(gpu_utilization=0.6)) == [15]
    assert answers(policy, seen(gpu_utilization=None)) == [10]


def test_keda_divides_the_free_places(cluster: Cluster) -> None:
    assert answers(peers.Keda(cluster, target=1.0), seen(free_units=15.0)) == [15]


def test_pi_follows_the_fill_and_remembers_it(cluster: Cluster) -> None:
    policy = peers.QueuePi(cluster, set_point=0.5, gain=8.0, integral_seconds=60.0)
    empty = [seen(at=15.0 * i, fill=0.0) for i in range(5)]
    got = answers(policy, *empty)
    assert got == sorted(got)
    assert got[-1] == 10 + round(4 * 8.0 * 0.5 * 15.0 / 60.0)


def test_dask_divides_occupancy_and_is_slow_to_remove(cluster: Cluster) -> None:
    policy = peers.Dask(cluster, target_seconds=4.0)
    assert answers(policy, seen(free_units=16.0, busy=0.8)) == [12]  # 24 tasks of 2 s in 4 s
    few = seen(free_units=0.0, busy=0.2)
    assert answers(policy, few, few, few) == [10, 10, 8]  # at the third time, by a quarter


def test_rays_autoscaler_adds_for_tasks_and_removes_after_a_minute(cluster: Cluster) -> None:
    assert answers(peers.RayAutoscaler(cluster), seen(free_units=14.0)) == [14]
    assert answers(peers.RayAutoscaler(cluster), seen(free_units=35.0)) == [35]
    policy = peers.RayAutoscaler(cluster, is_conservative=True)
    assert answers(policy, seen(free_units=35.0)) == [20]  # as many pending as there are
    idle = [seen(at=15.0 * i, free_units=2.0, busy=0.5) for i in range(1, 6)]
    assert answers(policy, *idle)[-1] == 5


def test_ray_data_by_use_adds_one_at_a_time_and_releases_after_a_while(cluster: Cluster) -> None:
    policy = peers.RayDataUtilisation(cluster)
    assert answers(policy, seen(busy=0.8), seen(at=15.0, busy=0.5)) == [11, 10]
    got = answers(policy, *(seen(at=15.0 * i, busy=0.5) for i in range(2, 14)))
    assert got == [10] * 10 + [5, 5]  # 180 s after the last request, what was idle for 60 s


def test_ray_data_by_rate_wants_twice_what_is_there_and_only_adds(cluster: Cluster) -> None:
    policy = peers.RayDataRate(cluster)
    assert answers(policy, seen(busy=0.6)) == [20]
    assert answers(policy, seen(busy=0.6, ready=8)) == [10]  # two are on their way
    assert answers(policy, seen(busy=0.4)) == [10]


def test_cachew_climbs_while_batches_come_faster(cluster: Cluster) -> None:
    policy = peers.Cachew(cluster)
    steps = [
        seen(desired=10, ready=10, batch_seconds=1.0),
        seen(desired=11, ready=10, batch_seconds=0.5),  # not there yet
        seen(desired=11, ready=11, batch_seconds=0.9),
        seen(desired=12, ready=12, batch_seconds=3.0),  # thrown away
        seen(desired=12, ready=12, batch_seconds=0.89),
    ]
    assert answers(policy, *steps) == [11, 11, 12, 12, 11]
    held = [seen(desired=11, ready=11, batch_seconds=0.9)] * 20
    assert set(answers(policy, *held)) == {11}
    assert answers(policy, seen(desired=11, ready=11, batch_seconds=1.36)) == [12]  # it opens again


def test_cachew_looks_downwards_where_the_queue_has_grown(cluster: Cluster) -> None:
    policy = peers.Cachew(cluster)
    answers(policy, seen(fill=0.2), seen(desired=11, ready=11, fill=0.2))
    calm = [seen(at=15.0 * i, fill=0.2) for i in range(20)]
    assert answers(policy, *calm, seen(fill=0.31)) == [10] * 20 + [9]
    assert answers(policy, seen(desired=9, ready=9, batch_seconds=1.02)) == [8]
    assert answers(policy, seen(desired=8, ready=8, batch_seconds=1.1)) == [9]


def test_tf_data_service_divides_demand_by_throughput(cluster: Cluster) -> None:
    policy = peers.TfDataService(cluster)
    rows = cluster.given.batch_rows
    assert answers(policy, seen(step_seconds=0.5, worker_rate=rows / 4.5)) == [9]
    # Of a minute: the mean of 0.5 and 1 s.
    assert answers(policy, seen(at=15.0, step_seconds=1.0, worker_rate=rows / 4.5)) == [6]


def test_a_zero_of_a_node_without_nvml_is_a_zero_to_a_peer() -> None:
    for gpu, workers in (("zero", 20), ("absent", 10)):
        cluster = Cluster(
            setting=Setting(rows=1e9, max_workers=40, first_workers=10, gpu=gpu), seed=1
        )
        policy = peers.HpaOnIdleGpus(cluster)
        for _ in range(4):
            cluster.run(cluster.time + 15.0)
            wanted = policy.decide(cluster.read())
        assert wanted == workers


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_lasts_two_hours_and_changes_are_far_apart(scenario: Scenario) -> None:
    for setting in Cell(scenario=scenario, start_seconds=5.0, noise_percent=5).settings():
        rows, seconds = 0.0, 0.0
        ends = [*(phase.from_row for phase in setting.phases[1:]), setting.rows]
        lasted = []
        for phase, end in zip(setting.phases, ends, strict=True):
            step = phase.step_seconds + sum(phase.waits.values())
            lasted.append((end - rows) / setting.batch_rows * step)
            rows = end
        if setting.epoch_steps:
            epochs = setting.rows / setting.batch_rows / setting.epoch_steps
            seconds += epochs * setting.pause_seconds
        assert sum(lasted) + seconds >= 7200 - 1
        assert scenario.name == "ramp" or min(lasted) >= 40 * 60


def test_cells_have_every_delay_and_noise() -> None:
    assert len(SCENARIOS) == len({scenario.name for scenario in SCENARIOS})
    assert len({cell.key for cell in cells()}) == len(SCENARIOS) * 4 * 2
    assert {cell.start_seconds for cell in cells()} == {5, 30, 120, 300}
    assert {cell.noise_percent for cell in cells()} == {5, 20}


@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
def test_every_policy_trains_all_rows(policy: str) -> None:
    settings = {"workers": 9} if policy == BEST_CONSTANT else {}
    found = run_job(job_of(COSTLY, policy, settings, seed=2))
    assert found.has_ended
    assert found.rows >= COSTLY.settings()[0].rows


def test_a_starved_run_is_not_stopped() -> None:
    [cold] = [scenario for scenario in SCENARIOS if scenario.name == "cold start"]
    cell = Cell(scenario=cold, start_seconds=5.0, noise_percent=5)
    found = run_job(job_of(cell, "minReplicas", {}, seed=1))
    assert found.has_ended
    assert found.seconds > 25 * 7200  # one worker of thirty


def test_the_same_seed_gives_equal_results() -> None:
    first, again, other = (run_job(job_of(COSTLY, OURS, {}, seed)) for seed in (2, 2, 3))
    assert first == again != other


def test_experiments_never_exceed_their_quota() -> None:
    [quota] = [scenario for scenario in SCENARIOS if scenario.build_other is not None]
    cell = Cell(scenario=quota, start_seconds=5.0, noise_percent=5)
    traces = trace_job(job_of(cell, OURS, {}, seed=1))
    total = cell.settings()[0].schedulable
    both = list(zip(*(trace.moments for trace in traces), strict=False))
    assert all(mine.ready + other.ready <= total for mine, other in both)
    assert max(mine.ready + other.ready for mine, other in both) == total
    assert any(mine.desired > mine.capacity for mine, _ in both)  # it was refused some


def test_finished_simulations_are_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [job_of(COSTLY, "minReplicas", {}, seed) for seed in (1, 2)]
    first = Runner(processes=1, folder=tmp_path).run(jobs[:1], "one")
    [journal] = tmp_path.iterdir()
    with journal.open("a") as file:
        file.write('[["row cost x2", 30.0')  # as if it had been broken off here
    capsys.readouterr()
    runner = Runner(processes=1, folder=tmp_path)
    assert runner.run(jobs, "both")[jobs[0]] == first[jobs[0]]
    assert "both: 1 runs" in capsys.readouterr().err
    assert runner.num_runs == 2


def test_the_best_constant_costs_least_of_all() -> None:
    seeds, runner = (1, 2), Runner(processes=1)
    [found] = find_best_constants([COSTLY], seeds, runner).values()
    assert found[5] <= found[20] <= found[50]

    def cost(workers: int, price: int) -> float:
        jobs = constant_jobs(COSTLY, workers, seeds)
        ran = runner.run(jobs, "constants").values()
        return fmean(log(measures.cost_per_row(NUM_GPUS, price)) for measures in ran)

    for price, workers in found.items():
        others = range(6, 21)
        assert min(others, key=lambda other: cost(other, price)) == workers
