"""A script of the user's own folder trains on two ranks in real pods, and resumes there."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stage import BUCKET, LASTMILE, NAMESPACE, ROOT, Stage, condition

from dataset_operator.api import TRAINERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = "script"
SAMPLES = ROOT / "deploy" / "samples"
STORAGE_ROOT = f"s3://{BUCKET}/team/"


@pytest.fixture
def room(stage: Stage) -> Iterator[None]:
    """The cluster has no room for two experiments."""
    yield
    stage.kubectl("delete", "dsexp", NAME, "--ignore-not-found")


def submit(stage: Stage, folder: Path) -> None:
    """Submit the sample as a user does, with the script's folder."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(stage.node.kubeconfig.read_bytes())
    subprocess.run(
        [LASTMILE, "submit", "-f", "script.yaml", "-n", NAMESPACE, "--storage-root", STORAGE_ROOT],
        env={**os.environ, **stage.store.environment, "KUBECONFIG": str(kubeconfig)},
        cwd=folder / "mine",
        check=True,
    )


def find_files(stage: Stage, end: str) -> list[str]:
    """Return the files of the experiment whose path ends so."""
    experiments = "team/experiments"
    folder = f"{experiments}/{NAME}/"
    try:
        found = stage.store.files(experiments)
    except FileNotFoundError:  # before the first file
        return []
    return [path for path in found if path.startswith(folder) and path.endswith(end)]


@pytest.mark.usefixtures("room")
def test_a_submitted_script_trains_and_resumes_on_two_ranks(stage: Stage, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.copy(SAMPLES / "train.py", mine)
    document = yaml.safe_load((SAMPLES / "script.yaml").read_text())
    document["spec"]["trainers"] = {"replicas": 2, "gpusPerReplica": 0}
    # Long enough to lose a trainer, short enough for two cores.
    document["spec"]["training"] |= {"epochs": 20, "checkpoint": {"everySteps": 20}}
    (mine / "script.yaml").write_text(yaml.safe_dump(document))

    submit(stage, tmp_path)
    stage.until(NAME, lambda found: find_files(stage, "/checkpoint.json"))
    stage.lose(NAME, TRAINERS)
    done = stage.until(NAME, lambda found: condition(found, "Complete"))["status"]

    assert done["attempt"] == 2
    [path] = find_files(stage, "/summary.json")
    summary = json.loads(stage.store.read(path))
    assert summary["training"]["script"] == "train.py --lr 0.1"
    assert summary["training"]["worldSize"] == 2
    assert summary["run"]["resumedFrom"] is not None
    rows_per_epoch = summary["steps"][-1]["rowsOut"] / 20
    assert summary["checksum"]["rows"] == 20 * rows_per_epoch
