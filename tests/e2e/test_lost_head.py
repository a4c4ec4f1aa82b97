"""A run that loses its head: the processes of the whole Ray cluster begin again."""

from typing import Any

import pytest
from ordered import check_same, find_last_step, on_cluster, read_last_summary
from stage import Stage, condition

from dataset_operator.api import HEAD

# Minutes: trainers and data workers notice after a while that the head they knew is gone.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_run_that_loses_its_head_trains_on_what_the_undisturbed_one_does(
    stage: Stage, undisturbed: dict[str, Any]
) -> None:
    folder = stage.store.volume / "experiments" / "headless"
    stage.apply(on_cluster("headless"))
    stage.until("headless", lambda found: find_last_step(folder))
    stage.lose("headless", HEAD)
    done = stage.until("headless", lambda found: condition(found, "Complete"))["status"]
    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 2, 1]
    [warning] = stage.warnings("headless", "Retrying")
    assert warning.startswith("attempt 1 failed (ClusterLost)"), warning
    check_same(read_last_summary(folder), undisturbed)
