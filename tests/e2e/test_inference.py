"""Models on inference workers in real pods, which come and go: the scores are those of here."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest
import yaml
from ordered import read_last_summary
from stage import LASTMILE, MOUNT, VOLUME, Stage, condition, kill_operator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME, TEACHER, GROUP = "scored", "teacher", "large"
SCALED = "rescored"
SOURCE = Path(__file__).with_name("paced_model.py")
PACE = "models/pace.json"  # below the volume
# A chunk of 1,000 rows takes 10 s, so that requests of two data workers wait for one pod.
SLOW, AT_ONCE = 1 / 100, 0.0
KEY = ("request_id", "position", "item_id")
POD = {
    "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": VOLUME}}],
    "containers": [{"name": "ray", "volumeMounts": [{"name": VOLUME, "mountPath": MOUNT}]}],
}
MOUNTED = {"template": {"spec": POD}}
SMALL = {"requests": {"cpu": "200m", "memory": "1536Mi"}, "limits": {"memory": "2560Mi"}}


def build_document(name: str, **spec: Any) -> dict[str, Any]:
    table = {"parquet": {"uri": "data/impressions/"}}
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": {"dataset": table, **spec},
    }


def score(name: str, run: str, **spec: Any) -> dict[str, Any]:
    """Return an experiment that scores the table with the model of a run."""
    model = {
        "name": "teacher",
        "checkpoint": {"uri": f"experiments/{TEACHER}/{run}"},
        "outputs": [{"name": "score", "type": "float32"}],
        **({"workerGroup": GROUP} if "inferenceWorkers" in spec else {}),
    }
    return build_document(
        name,
        pipeline=[{"predict": {"models": [model], "batchSize": 256}}],
        pipelineOptions={"rowsPerBlock": 1000},
        output={"columns": [*KEY, "score"], "parquet": {"uri": f"{name}/"}},
        **spec,
    )


def run_here(document: dict[str, Any], volume: Path, folder: Path) -> dict[str, Any]:
    """Run an experiment on this machine; return its summary."""
    manifest = folder / f"{document['metadata']['name']}.yaml"
    manifest.write_text(yaml.safe_dump(document))
    command = [LASTMILE, "run", "-f", manifest, "--storage-root", volume, "--output"]
    subprocess.run([*command, folder / manifest.stem], check=True)
    summary: dict[str, Any] = json.loads((folder / manifest.stem / "summary.json").read_text())
    return summary


def pace(volume: Path, seconds_per_row: float) -> None:
    """Replace the pace at once: a model sees the one or the other."""
    path = volume / PACE
    path.with_suffix(".new").write_text(json.dumps({"secondsPerRow": seconds_per_row}))
    path.with_suffix(".new").replace(path)


def score_by_pace(name: str, mount: Path | str, **spec: Any) -> dict[str, Any]:
    """Return an experiment that scores the table with the model of a known pace."""
    model = {
        "name": "paced",
        "function": "paced_model:load",
        "options": {"pace": f"{mount}/{PACE}"},
        "inputs": ["position"],
        "outputs": [{"name": "score", "type": "float32"}],
        **({"workerGroup": GROUP} if "inferenceWorkers" in spec else {}),
    }
    return build_document(
        name,
        pipeline=[{"predict": {"models": [model], "batchSize": 256}}],
        pipelineOptions={"rowsPerBlock": 1000},
        output={"columns": [*KEY, "score"], "parquet": {"uri": f"{name}/"}},
        code={"workingDir": f"{mount}/models"},
        **spec,
    )


def count(found: dict[str, Any], field: str) -> int:
    [numbers] = found.get("status", {}).get("inferenceWorkers", [{}])
    number: int = numbers.get(field, 0)
    return number


def is_draining(found: dict[str, Any]) -> bool:
    [numbers] = found.get("status", {}).get("inferenceWorkers", [{}])
    return bool(numbers.get("draining"))


def read(folder: Path) -> Any:
    keys = [(name, "ascending") for name in (*KEY, "score")]
    return pads.dataset(folder).to_table().sort_by(keys)


def test_inference_pods_score_each_row_once_though_one_is_lost(
    stage: Stage, tmp_path: Path
) -> None:
    volume = stage.store.volume
    features = {"labelColumn": "clicked", "columns": ["position", "clicked"]}
    training = {**features, "batchSize": 1024, "config": {"hidden": [16]}}
    trained = run_here(build_document(TEACHER, training=training), volume, tmp_path)
    run = Path(trained["run"]["artifactsUri"]).name
    here = run_here(score("here", run), volume, tmp_path)
    subprocess.run(["chmod", "-R", "a+rwX", volume], check=True)  # the pods' user is another one

    group = {"name": GROUP, "minReplicas": 2, "maxReplicas": 2, "gpusPerReplica": 0}
    document = score(
        NAME,
        run,
        storage={"root": MOUNT},
        head=MOUNTED,
        dataWorkers={"minReplicas": 1, "maxReplicas": 1, **MOUNTED},
        inferenceWorkers=[{**group, "resources": SMALL, **MOUNTED}],
    )
    stage.apply(yaml.safe_dump(document))
    stage.until(NAME, lambda found: condition(found, "Writing") or condition(found, "Complete"))
    if not condition(stage.get(NAME), "Complete"):
        stage.lose(NAME, f"inference-{GROUP}")
    done = stage.until(NAME, lambda found: condition(found, "Complete"))["status"]

    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 1, 0]
    assert done["usage"]["inferenceWorkerSeconds"] > 0
    assert done["usage"]["gpuSeconds"] == 0
    there = read_last_summary(volume / "experiments" / NAME)
    assert there["checksum"] == here["checksum"]
    assert read(volume / NAME).equals(read(volume / "here"))


def test_inference_pods_are_added_and_drained_and_each_row_is_scored_once(
    stage: Stage, tmp_path: Path
) -> None:
    volume = stage.store.volume
    (volume / PACE).parent.mkdir()
    (volume / PACE).with_name(SOURCE.name).write_text(SOURCE.read_text())
    pace(volume, AT_ONCE)
    here = run_here(score_by_pace("rescored-here", volume), volume, tmp_path)
    pace(volume, SLOW)
    subprocess.run(["chmod", "-R", "a+rwX", volume], check=True)  # the pods' user is another one

    group = {"name": GROUP, "gpusPerReplica": 0, "resources": SMALL, **MOUNTED}
    document = score_by_pace(
        SCALED,
        MOUNT,
        storage={"root": MOUNT},
        head=MOUNTED,
        dataWorkers={"minReplicas": 2, "maxReplicas": 2, **MOUNTED},
        inferenceWorkers=[{**group, "minReplicas": 1, "maxReplicas": 2}],
    )
    stage.apply(yaml.safe_dump(document))
    stage.until(SCALED, lambda found: count(found, "readyReplicas") == 2)

    # The policy keeps two, while requests wait; the edit leaves one, and begins a drain.
    [changed] = document["spec"]["inferenceWorkers"]
    changed["maxReplicas"] = 1
    stage.apply(yaml.safe_dump(document))
    stage.until(SCALED, is_draining)
    kill_operator(stage)
    shrunk = stage.until(SCALED, lambda found: count(found, "currentReplicas") == 1)
    stage.until(SCALED, lambda found: not is_draining(found))
    assert condition(shrunk, "Complete") is None  # pods came and went while rows were scored

    pace(volume, AT_ONCE)
    done = stage.until(SCALED, lambda found: condition(found, "Complete"))["status"]
    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 1, 0]
    there = read_last_summary(volume / "experiments" / SCALED)
    assert there["checksum"] == here["checksum"]
    assert read(volume / SCALED).equals(read(volume / "rescored-here"))
