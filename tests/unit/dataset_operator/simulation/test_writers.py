"""The autoscaling policy where the data workers store the rows of a table themselves."""

from dataclasses import replace

import pytest
from lastmile_policy import Lastmile

from dataset_operator.autoscaling import Decision, Sample
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.setting import Phase, Setting

# Each worker stores 1,000 rows per second, in chunks of 4 s.
WRITERS = Setting(
    rows=1e12,
    phases=(Phase(step_seconds=0.0, row_seconds=1e-3),),
    is_unbounded=True,
    batch_rows=4096.0,
    unit_rows=4096.0,
    min_workers=1,
    first_workers=1,
)
# The store takes as much as ten workers write.
PLATEAU = replace(WRITERS, storage_rows_per_second=10_000.0)


def write(setting: Setting, seed: int, seconds: float) -> list[tuple[Sample, Decision]]:
    cluster = Cluster(setting=setting, seed=seed)
    law = Lastmile(cluster)
    while cluster.time < seconds:
        cluster.run(cluster.time + PERIOD_SECONDS)
        wanted = law.decide(cluster.read())
        if wanted != cluster.desired:
            cluster.request(wanted)
    return law.log


def find_numbers(log: list[tuple[Sample, Decision]]) -> list[int]:
    """Return the requested numbers of workers, without repetitions."""
    wanted = [decision.desired for _, decision in log]
    return [n for before, n in zip([0, *wanted], wanted, strict=False) if n != before]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [24, 64])
def test_workers_that_help_are_doubled_up_to_the_most(seed: int, most: int) -> None:
    log = write(replace(WRITERS, max_workers=most), seed, 2400.0)
    expected = [n for n in (1, 2, 4, 8, 16, 32) if n < most]
    assert find_numbers(log) == [*expected, most]
    assert log[40][1].desired == most  # after ten minutes
    last = log[-1][1]
    assert last.limited is not None
    assert last.limited.reason == "TooManyReplicas"
    assert all(decision.bottleneck is None for _, decision in log)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("read_share", [0.4, 0.6])
def test_growth_ends_at_the_plateau_of_the_store(seed: int, read_share: float) -> None:
    log = write(replace(PLATEAU, read_share=read_share), seed, 3300.0)
    numbers = find_numbers(log)
    peak = max(numbers)
    assert peak <= 24
    up, down = numbers[: numbers.index(peak)], numbers[numbers.index(peak) :]
    # One ascent and one descent; half an hour later, a tenth more is tried once.
    assert up == sorted(up)
    descent = down[: down.index(10) + 1]
    assert descent == sorted(descent, reverse=True)
    assert down[len(descent) :] in ([], [11, 10])
    assert log[-1][1].recommended.reason == "SaturationPointReached"
    assert all(decision.bottleneck is None for _, decision in log)


@pytest.mark.parametrize("seed", range(3))
def test_a_plateau_beyond_the_most_is_not_reached(seed: int) -> None:
    log = write(replace(PLATEAU, max_workers=8), seed, 2400.0)
    assert find_numbers(log)[-1] == 8
    last = log[-1][1]
    assert last.limited is not None
    assert last.limited.reason == "TooManyReplicas"


@pytest.mark.parametrize("seed", range(3))
def test_chunks_longer_than_a_window_find_the_plateau_too(seed: int) -> None:
    log = write(replace(PLATEAU, batch_rows=40960.0, unit_rows=40960.0), seed, 5400.0)
    assert 9 <= log[-1][1].desired <= 11


def test_lost_metrics_change_nothing() -> None:
    cluster = Cluster(setting=WRITERS, seed=0)
    law = Lastmile(cluster)
    cluster.request(4)
    for _ in range(20):
        cluster.run(cluster.time + PERIOD_SECONDS)
        assert law.decide(replace(cluster.read(), trainer=None)) == 4
