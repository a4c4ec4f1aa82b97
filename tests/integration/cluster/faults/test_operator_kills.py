"""Operators are killed at random moments, and every experiment comes to its end all the same."""

import asyncio
import json
import os
import secrets
import time
from pathlib import Path

import pytest
from killed_stage import ACTS, live_through

from benchmarks.harness.report import Beginning
from dataset_operator.api import EXPERIMENT_LABEL
from tools.cluster.box import Box

KILLS = int(os.environ.get("LASTMILE_KILLS", "30"))
# Kinds of what an operator and KubeRay make for an experiment.
CHILDREN = "rayclusters,secrets,configmaps,networkpolicies,poddisruptionbudgets,services,pods"
GONE_SECONDS = 60.0  # the garbage collector's
SECONDS_A_KILL = 30  # far more than each takes

pytestmark = [pytest.mark.usefixtures("played"), pytest.mark.timeout(300 + SECONDS_A_KILL * KILLS)]


@pytest.fixture
def seed() -> int:
    """Return the seed of everything random, and print it for a failure."""
    seed = int(os.environ.get("LASTMILE_SEED") or secrets.randbelow(10**6))
    print(f"LASTMILE_SEED={seed} LASTMILE_KILLS={KILLS}")
    return seed


def check_nothing_is_left(box: Box, namespace: str) -> None:
    """Fail unless all objects of experiments are deleted with them."""
    labelled = ("get", CHILDREN, "-n", namespace, "-l", EXPERIMENT_LABEL, "-o", "name")
    deadline = time.monotonic() + GONE_SECONDS
    while left := box.kubectl(*labelled).split():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_however_often_the_operator_is_killed(
    box: Box, namespace: str, seed: int
) -> None:
    beginning = Beginning()
    outcome = asyncio.run(live_through(box, namespace, seed=seed, kills=KILLS))
    print(outcome)
    assert outcome.kills >= KILLS
    assert outcome.doubled == []
    assert set(outcome.acts) == set(ACTS)
    check_nothing_is_left(box, namespace)
    if folder := os.environ.get("LASTMILE_RESULTS"):
        circumstances = beginning.describe("kills", ()) | {"command": "make test-nightly"}
        found = {"version": 1, "benchmark": "kills", "seed": seed, **outcome.describe()}
        text = json.dumps(circumstances | found, indent=1)
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "kills.json").write_text(text + "\n")


@pytest.mark.slow
def test_an_api_server_that_answers_badly_costs_nothing_but_time(
    box: Box, namespace: str, seed: int
) -> None:
    outcome = asyncio.run(live_through(box, namespace, seed=seed, faulty_share=0.05))
    print(outcome)
    assert len(outcome.faults) > 3
    assert outcome.doubled == []
    check_nothing_is_left(box, namespace)
