"""A run that loses its head, with its node or for want of memory: Ray begins again as a whole."""

from pathlib import Path
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


def test_a_head_that_is_killed_for_memory_leaves_its_logs_and_the_run_goes_on(
    stage: Stage,
) -> None:
    folder = stage.store.volume / "experiments" / "hungry"
    stage.apply(on_cluster("hungry", epochs=60))  # it takes a while to eat so much
    started = stage.until("hungry", lambda found: find_last_step(folder))
    history = folder / "history" / f"{started['metadata']['uid'][:8]}-1"
    head = stage.find_pod("hungry", HEAD)
    with stage.watched_ends(head) as ends:  # the pod itself goes soon
        stage.starve(head)
        stage.until("hungry", lambda _: "OOMKilled" in ends.read_text())
    [killed] = (history / "logs" / head).iterdir()
    said = read_logs(killed)
    assert {"gcs_server.out", "raylet.out"} <= said.keys()
    assert any(name.startswith("job-driver-") and "epoch" in log for name, log in said.items())

    done = stage.until("hungry", lambda found: condition(found, "Complete"))["status"]
    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 2, 1]
    assert read_last_summary(folder)["run"]["resumedFrom"] is not None
    stage.until("hungry", lambda found: found["status"]["history"]["state"] == "Kept")
    assert read_logs(killed).keys() >= said.keys()  # the next pod's lie beside them
    # The last copy is made as the cluster goes.
    stage.until("hungry", lambda _: len(list((history / "logs").glob("*-head-*"))) == 2)


def read_logs(folder: Path) -> dict[str, str]:
    """The files of a session of Ray."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
