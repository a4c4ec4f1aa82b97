"""A run that is suspended, resumed, and loses a data worker and its trainer."""

from typing import Any

import pytest
from ordered import check_same, find_last_step, on_cluster, read_last_summary
from stage import MOUNT, Stage, condition

from dataset_operator.api import DATA_WORKERS, TRAINERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # two clusters, one after another


def test_a_run_suspended_resumed_and_robbed_of_pods_trains_on_what_the_undisturbed_one_does(
    stage: Stage, undisturbed: dict[str, Any]
) -> None:
    folder = stage.store.volume / "experiments" / "ordered"
    stage.apply(on_cluster("ordered"))
    stage.until("ordered", lambda found: find_last_step(folder))
    stage.apply(on_cluster("ordered", suspend=True))
    stage.until("ordered", lambda found: condition(found, "Suspended"))
    assert read_last_summary(folder)["run"]["outcome"] == "Interrupted"
    stage.kubectl("wait", "--for=delete", "raycluster", "--all", "--timeout=180s")
    suspended_at = find_last_step(folder)

    stage.apply(on_cluster("ordered"))
    stage.until("ordered", lambda found: condition(found, "Training"))
    stage.lose("ordered", DATA_WORKERS)
    stage.until("ordered", lambda found: find_last_step(folder) > suspended_at)
    stage.lose("ordered", TRAINERS)
    done = stage.until("ordered", lambda found: condition(found, "Complete"))["status"]
    # The worker cost nothing, the trainer an attempt.
    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 3, 1]
    [warning] = stage.warnings("ordered", "Retrying")
    assert warning.startswith("attempt 2 failed (NodeLost)"), warning

    assert done["artifactsUri"] == f"{MOUNT}/experiments/ordered/"
    assert len(list(folder.glob("*/logs/*.log"))) == 3  # of each attempt
    check_same(read_last_summary(folder), undisturbed)
