"""A run that an older release stopped resumes from that release's checkpoint.

`stored_checkpoint` is a storage root as a release left it when its run failed at step 9. That
release wrote run configs of version 1. `batches.jsonl` holds the batches of the same run as the
release trained it to its end.
"""

import json
import shutil
from pathlib import Path

import pytest
from warm_lastmile import Lastmile

STORED = Path(__file__).with_name("stored_checkpoint")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a copy of the storage root."""
    return Path(shutil.copytree(STORED, tmp_path / "root"))


def build_args(root: Path, *args: str) -> list[str]:
    command = ["run", "-f", str(root / "manifest.yaml"), "--metrics-port", "0", "--resume"]
    # In that release, a downsample thinned the rows of the evaluation too.
    command += ["--set", "pipeline[2].downsample.applyTo=All"]
    return [*command, "--storage-root", str(root), "--output", str(root / "output"), *args]


def read_batches(path: Path) -> dict[int, list[int]]:
    records = map(json.loads, path.read_text().splitlines())
    return {record["step"]: record["ids"] for record in records}


def test_a_stored_checkpoint_resumes(root: Path, on_cluster: Lastmile) -> None:
    ended = on_cluster.run(*build_args(root, "--address", "auto"))
    assert ended.code == 0, str(ended)
    expected = read_batches(STORED / "batches.jsonl")
    assert read_batches(root / "trained.jsonl") == {
        step: ids for step, ids in expected.items() if step > 8
    }


def test_another_run_is_refused_with_what_differs(root: Path, warm_lastmile: Lastmile) -> None:
    args = ("--set", "training.epochs=3", "--set", "pipeline[2].downsample.seed=")
    ended = warm_lastmile.run(*build_args(root, *args))
    assert ended.code == 4, str(ended)
    differs = [line.strip() for line in ended.stderr.splitlines() if line.startswith("  ")]
    assert differs == ["pipeline[2].downsample.seed: 3 → absent", "training.epochs: 2 → 3"]
