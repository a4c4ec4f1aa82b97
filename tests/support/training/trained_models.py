"""Trains small models in this process, for tests that load and export them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from experiments import build_experiment

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.training.in_process import LocalTrainer
from pipeline_runtime.run.training.prepare import check_program, prepare_run

NAME, TABLE = "flights", "data/flights"  # of the experiment and its table, as in docs/models.md
NUM_ROWS = 600
SECONDS = 300.0
KEEP_BEST = {"metric": "eval_auc", "mode": "Max"}


def build_flights(rows: int = NUM_ROWS, seed: int = 0) -> pa.Table:
    """Return flights, which are delayed by their distance, their carrier and their history."""
    rng = np.random.default_rng(seed)
    distance = rng.standard_normal(rows).astype(np.float32)
    carrier = rng.integers(0, 8, rows)
    recent = rng.standard_normal((rows, 4)).astype(np.float32)
    logit = 2.0 * distance + (carrier - 3.5) * 0.5 + recent.sum(1)
    stops = [rng.integers(0, 9, length).tolist() for length in rng.integers(0, 7, rows)]
    return pa.table(
        {
            "delayed": rng.random(rows) < 1 / (1 + np.exp(-logit)),
            "distance": pa.array(distance, mask=rng.random(rows) < 0.05),
            "carrier": carrier,
            "recent_delays": pa.FixedSizeListArray.from_arrays(pa.array(recent.ravel()), 4),
            "stops": pa.array(stops, pa.list_(pa.int64())),
            "legs": pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 3, 3 * rows)), 3),
        }
    )


def write_flights(root: Path) -> None:
    """Write the table below a storage root."""
    (root / TABLE).mkdir(parents=True)
    pq.write_table(build_flights(), root / TABLE / "0.parquet", row_group_size=100)


def train_flights(
    root: Path, *, resume: bool = False, minutes: int = 0, **training: Any
) -> tuple[Path, MonitorState]:
    """Train on the table below a storage root; return the run's folder and its end.

    Args:
        minutes: the time at which the run begins, which is in its name.
    """
    given = {"labelColumn": "delayed", "batchSize": 64, "evaluation": {"holdoutPercent": 20}}
    document = build_experiment(
        dataset={"parquet": {"uri": f"{TABLE}/"}},
        pipelineOptions={"preserveOrder": True},
        training={**given, **training},
    )
    document["metadata"]["name"] = NAME
    experiment = parse_experiment(document)
    check_program(experiment.spec.training)
    options = RunOptions(output=root / "output", storage_root=str(root), resume=resume)
    now = datetime(2026, 1, 1, 0, minutes, tzinfo=UTC)
    run = prepare_run(experiment, options, now, world_size=1)
    trainer = LocalTrainer(run)
    assert trainer.wait(SECONDS)
    assert trainer.explain() is None, trainer.explain()
    return Path(run.run_location.path), trainer.read()
