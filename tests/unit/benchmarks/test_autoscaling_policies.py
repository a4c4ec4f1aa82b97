"""Each peer policy does what its documentation says; scenarios hold what they promise."""

from typing import Any

import pytest

from benchmarks.autoscaling import peers
from benchmarks.autoscaling.peers import Seen
from benchmarks.autoscaling.policies import OURS, POLICIES, Constant
from benchmarks.autoscaling.scenarios import SCENARIOS, Cell, Scenario, cells_of
from benchmarks.autoscaling.simulations import simulate_cell
from benchmarks.harness.errors import BenchmarkError
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.loop import simulate_together
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
        "free_units": 16.0,
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


def test_rays_autoscaler_adds_for_tasks_and_removes_after_a_minute(cluster: Cluster) -> None:
    policy = peers.RayAutoscaler(cluster)
    assert answers(policy, seen(free_units=14.0)) == [14]
    assert answers(policy, seen(free_units=35.0)) == [20]  # as many pending as there are
    idle = [seen(at=15.0 * i, free_units=2.0, busy=0.5) for i in range(1, 6)]
    assert answers(policy, *idle)[-1] == 5


def test_a_scenario_has_a_cell_for_every_delay_and_noise() -> None:
    assert len(SCENARIOS) == len({scenario.name for scenario in SCENARIOS})
    cells = {(cell.start_seconds, cell.noise_percent) for cell in cells_of(SCENARIOS[0])}
    assert cells == {(start, noise) for start in (5, 30, 120, 300) for noise in (5, 20)}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_trains_all_rows(policy: str) -> None:
    found = simulate_cell(COSTLY, policy, seed=2)
    assert found.rows >= COSTLY.settings()[0].rows


def test_a_policy_that_starves_the_trainers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    [cold] = [scenario for scenario in SCENARIOS if scenario.name == "cold start"]
    cell = Cell(scenario=cold, start_seconds=5.0, noise_percent=5)
    monkeypatch.setitem(POLICIES, "one", lambda _: Constant(1))  # of thirty
    with pytest.raises(BenchmarkError, match="must train all rows of 'cold start'"):
        simulate_cell(cell, "one", seed=1)


def test_the_same_seed_gives_equal_results() -> None:
    first, again, other = (simulate_cell(COSTLY, OURS, seed) for seed in (2, 2, 3))
    assert first == again != other


def test_experiments_never_exceed_their_quota() -> None:
    [quota] = [scenario for scenario in SCENARIOS if scenario.other is not None]
    cell = Cell(scenario=quota, start_seconds=5.0, noise_percent=5)
    traces = simulate_together(cell.settings(), POLICIES[OURS], seed=1)
    total = cell.settings()[0].schedulable
    both = list(zip(*(trace.moments for trace in traces), strict=False))
    assert all(mine.ready + other.ready <= total for mine, other in both)
    assert max(mine.ready + other.ready for mine, other in both) == total
    assert any(mine.desired > mine.capacity for mine, _ in both)  # it was refused some
