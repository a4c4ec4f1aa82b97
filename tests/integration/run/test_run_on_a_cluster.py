"""`--address`: a cluster that this machine is part of, one behind a Jobs API, and none."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from ray_heads import RealRay
from run_support import Clicks, Project, checksum_of, clicks_spec
from warm_lastmile import Lastmile


def test_auto_finds_the_cluster_and_leaves_it_running(
    clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile, cluster: RealRay
) -> None:
    run = project()
    run.write(clicks_spec(run))

    ended = on_cluster.run(*run.args("--address", "auto"))

    assert ended.code == 0, str(ended)
    assert run.summary.run.address == "auto"
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["MIMALLOC_PURGE_DELAY"] == "10000"  # of a process that the cluster started
    socket.create_connection(("127.0.0.1", cluster.gcs), timeout=5).close()


@pytest.mark.slow
def test_a_job_is_submitted_followed_and_ends_as_the_run_ended(
    clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile, cluster: RealRay
) -> None:
    run = project("job")
    (run.folder / "lake").symlink_to(run.root)
    code, storage = {"workingDir": str(run.folder)}, {"root": "lake"}  # of the manifest's folder
    run.write(clicks_spec(run, code=code, storage=storage, config={"failAt": 18}))

    failed = on_cluster.run(*run.args("--address", cluster.url))
    (run.folder / "cured").touch()
    ended = on_cluster.run(*run.args("--address", cluster.url, "--run-id", "nightly-7"))

    assert failed.code == 1, failed
    assert "the user's own mistake" in failed.stdout
    assert ended.code == 0, str(ended)
    assert "submitted raysubmit_" in ended.stderr
    assert "Complete: job" in ended.stdout
    newest = max(Path(run.root, "experiments", "job").iterdir())
    assert newest.name.endswith("-nightly-7")
    summary = json.loads((newest / "summary.json").read_text())
    assert summary["checksum"]["rows"] == len(clicks.kept)
    assert summary["checksum"]["sum"] == checksum_of(clicks.kept)["sum"]


@pytest.mark.parametrize("address", ["auto", "http://127.0.0.1:1"])
def test_no_cluster_is_an_error_that_says_what_to_do(
    address: str, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    run.write(clicks_spec(run))
    # Never without an address: Ray would join whatever other cluster this machine runs.
    nowhere = {"RAY_ADDRESS": "127.0.0.1:1"}
    ended = on_cluster.run(*run.args("--address", address), env=nowhere)

    assert ended.code == 1, str(ended)
    assert f"error: --address {address}: " in ended.stderr
    assert "Traceback" not in ended.stderr
