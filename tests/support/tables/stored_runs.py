"""Folders of runs as `lastmile run` leaves them, with evaluation rows, made in milliseconds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import yaml

from pipeline_runtime.config import parse_manifests, seed_group
from pipeline_runtime.report.files.evaluation_rows import (
    EVALUATION_FILE,
    EvaluationRows,
    build_rows,
    encode_rows,
)
from pipeline_runtime.report.files.summary import Seeds, Summary, write_summary
from pipeline_runtime.report.testing import build_sample_summary, write_sample_history

HASH = "0123456789abcdef"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run to write.

    Attributes:
        start: number of minutes between the first second of 2026 and its start.
        quality: how far its predictions rise with the label.
        noise: standard deviation of what its seed adds to each prediction.
        salt: another number gives other noise.
    """

    name: str = "clicks"
    start: int = 0
    seed: int = 0
    keep_percent: int = 10
    outcome: str = "Complete"
    labels: dict[str, str] = field(default_factory=dict)
    quality: float = 1.0
    noise: float = 0.05
    salt: int = 0
    rows: range = range(3000)
    resumed_from: str | None = None
    code_digest: str | None = None

    @property
    def folder(self) -> str:
        """Name of its folder."""
        hour, minute = divmod(self.start, 60)
        return f"20260101T{hour:02d}{minute:02d}00Z-{HASH}"

    def manifest(self) -> dict[str, object]:
        """Return its manifest."""
        steps = [{"downsample": {"where": "label = 0", "keepPercent": str(self.keep_percent)}}]
        return {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": self.name, "labels": self.labels},
            "spec": {
                "dataset": {"parquet": {"uri": "impressions/"}},
                "pipeline": steps,
                "training": {"labelColumn": "label", "seed": self.seed},
            },
        }


def write_stored_run(root: Path, run: StoredRun, *, is_whole: bool = True) -> Path:
    """Write `ROOT/NAME/RUN`, and return that folder.

    Args:
        is_whole: False leaves out the history and the evaluation rows.
    """
    folder = root / run.name / run.folder
    folder.mkdir(parents=True)
    text = yaml.safe_dump(run.manifest())
    (folder / "manifest.yaml").write_text(text)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-10").write_bytes(b"0" * 1000)
    write_summary(folder, _build_summary(run, text))
    if is_whole:
        write_sample_history(folder, 40)
        (folder / EVALUATION_FILE).write_bytes(encode_rows(build_evaluation(run)))
    return folder


def rewrite_start(folder: Path) -> None:
    """Make a written run another one of the same name, which began later in the same second."""
    path = folder / "summary.json"
    document = json.loads(path.read_text())
    document["run"]["startedAt"] = document["run"]["startedAt"].replace("Z", ".5Z")
    path.write_text(json.dumps(document))


def _build_summary(run: StoredRun, text: str) -> Summary:
    sample = build_sample_summary(40)
    [loaded] = parse_manifests(text)
    change = {
        "started_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=run.start),
        "outcome": run.outcome,
        "seed_group": seed_group(loaded.experiment),
        "code_digest": run.code_digest,
        "resumed_from": run.resumed_from
        and {"checkpoint": run.resumed_from, "epoch": 0, "step": 10},
    }
    document = sample.model_dump() | {"seeds": Seeds(training=run.seed)}
    document["experiment"] = {"name": run.name}
    document["run"] |= change
    return Summary.model_validate(document)


def build_evaluation(run: StoredRun) -> EvaluationRows:
    """Return the evaluation rows: the same labels and difficulty of each row for all runs."""
    row_N = np.array(run.rows, dtype=np.uint64)
    common = np.random.default_rng(1).standard_normal((2, 10_000))[:, row_N]
    label_N = (common[0] > 0.5).astype(np.float32)
    random = np.random.default_rng([run.seed, run.salt, round(run.quality * 100)])
    score_N = run.quality * label_N + 1.5 * common[1]
    score_N = score_N + run.noise * random.standard_normal(len(row_N))
    prediction_N = (1 / (1 + np.exp(-score_N))).astype(np.float32)
    loss_N = -np.log(np.where(label_N == 1, prediction_N, 1 - prediction_N))
    return build_rows(
        {
            "row": row_N,
            "group": row_N // np.uint64(5),
            "label": label_N,
            "prediction": prediction_N,
            "loss": loss_N.astype(np.float32),
            "weight": np.ones(len(row_N), dtype=np.float32),
        },
        step=40,
        epoch=0,
        num_rows=len(row_N),
    )
