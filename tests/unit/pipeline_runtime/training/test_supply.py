"""The meter of the supply, which turns the ranks' totals into values of the history."""

from dataclasses import asdict
from typing import Any

import pytest
from rank_snapshots import build_snapshot

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.monitor import RankSnapshot
from pipeline_runtime.report import TimeShares
from pipeline_runtime.run.training.totals import time_shares
from pipeline_runtime.training.supply import SUPPLY_SECONDS, SupplyMeter


def rank(number: int, waited: Waited, **usage: Any) -> RankSnapshot:
    return build_snapshot(number, WorkerUsage(**usage), waited=asdict(waited))


def test_shares_cover_the_time_since_the_last_entry() -> None:
    meter = SupplyMeter()
    first = meter.measure([rank(0, Waited(compute=4, production=3, collate=1, paused=2))], 100.0)
    assert first["wait_share"] == pytest.approx(0.4)
    assert first["busy_share"] == pytest.approx(0.4)
    second = meter.measure([rank(0, Waited(compute=13, production=4, collate=1, paused=2))], 110.0)
    assert second["wait_share"] == pytest.approx(0.1)
    assert second["busy_share"] == pytest.approx(0.9)
    assert second["unix_seconds"] == 110.0


def test_ranks_are_added_and_readers_counted_once() -> None:
    ranks = [
        rank(1, Waited(compute=2, production=8), ready=4, workers=2),
        rank(0, Waited(compute=6, production=4), ready=3, workers=2),
    ]
    found = SupplyMeter().measure(ranks, 0.0)
    assert found["wait_share"] == pytest.approx(0.6)
    assert found["busy_share"] == pytest.approx(0.4)
    assert (found["readers"], found["data_workers"]) == (4, 2)


def test_the_waiting_of_a_run_has_one_definition() -> None:
    ranks = [rank(0, Waited(compute=6, production=4, paused=3, batching=1, transfer=2))]
    found = SupplyMeter().measure(ranks, 0.0)
    whole = TimeShares(**time_shares(ranks))
    assert found["wait_share"] == pytest.approx(whole.waited)
    assert found["busy_share"] == pytest.approx(whole.compute)


def test_values_are_measured_at_intervals() -> None:
    meter, ranks = SupplyMeter(), [rank(0, Waited(compute=6))]
    assert meter.measure(ranks, 0.0)
    assert meter.measure(ranks, SUPPLY_SECONDS - 0.1) == {}
    assert meter.measure(ranks, SUPPLY_SECONDS)


def test_unknown_values_are_left_out() -> None:
    assert SupplyMeter().measure([], 0.0) == {}
    before_the_first_batch = rank(0, Waited())
    assert SupplyMeter().measure([before_the_first_batch], 5.0) == {"unix_seconds": 5.0}
