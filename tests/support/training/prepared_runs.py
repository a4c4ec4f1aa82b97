"""Prepared runs for tests: none is started, but each can leave the checkpoint of a first step."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from saved_checkpoints import make_header

from pipeline_runtime import Pipeline
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.training.prepare import PreparedRun, prepare_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TABLE = pa.table({"user": [1, 2, 3, 4], "clicked": [0.0, 1.0, 0.0, 1.0]})


def prepare_clicks(
    pipeline: Pipeline,
    options: RunOptions,
    *,
    batch_size: int = 2,
    minutes: int = 0,
    world_size: int = 1,
) -> PreparedRun:
    """Prepare a run of the experiment `clicks`, so many minutes after NOW."""
    experiment = pipeline.experiment("clicks", batchSize=batch_size)
    return prepare_run(experiment, options, NOW + timedelta(minutes=minutes), world_size)


def leave_checkpoint(run: PreparedRun) -> str:
    """Save a checkpoint as the first step of a run does, and return its URI."""
    header = make_header(1) | asdict(run.identity)
    return run.store.save({"user": {"step": 1}, "rng": []}, header)
