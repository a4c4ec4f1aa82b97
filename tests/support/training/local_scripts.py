"""Runs a script as the only trainer of a run, in this process: for tests of what it may do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from experiments import build_experiment

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.training.in_process import LocalTrainer
from pipeline_runtime.run.training.prepare import check_program, prepare_run

NUM_ROWS, GROUP_ROWS, BATCH_ROWS = 1000, 100, 70
SECONDS = 300.0  # the first import of a large library takes a minute on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a script, as its driver saw it."""

    state: MonitorState
    explanation: str | None

    @property
    def outcome(self) -> str | None:
        return self.state.failure_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripts:
    """A folder with a table, in which scripts run."""

    folder: Path

    def start(
        self,
        text: str,
        *args: str,
        resume: bool = False,
        steps: Sequence[dict[str, Any]] = (),
        **training: Any,
    ) -> LocalTrainer:
        """Start the trainer, as `lastmile run` does."""
        (self.folder / "train.py").write_text(text)
        given = {"script": "train.py", "args": [str(self.folder), *args], "batchSize": BATCH_ROWS}
        document = build_experiment(
            dataset={"parquet": {"uri": "table/"}, "rowKey": ["id"]},
            pipeline=list(steps),
            training={**given, **training},
        )
        experiment = parse_experiment(document)
        check_program(experiment.spec.training)
        options = RunOptions(
            output=self.folder / "output", storage_root=str(self.folder), resume=resume
        )
        return LocalTrainer(prepare_run(experiment, options, datetime.now(UTC), world_size=1))

    def run(self, text: str, *args: str, **settings: Any) -> Ended:
        """Run a script to its end, with the settings of `start`."""
        trainer = self.start(text, *args, **settings)
        assert trainer.wait(SECONDS)
        return Ended(state=trainer.read(), explanation=trainer.explain())

    def records(self) -> list[dict[str, Any]]:
        lines = (self.folder / "steps.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def write_table(folder: Path) -> Scripts:
    """Write a table of numbered rows, and return the folder for scripts."""
    (folder / "table").mkdir()
    table = pa.table({"id": range(NUM_ROWS), "day": [row % 4 for row in range(NUM_ROWS)]})
    pq.write_table(table, folder / "table" / "0.parquet", row_group_size=GROUP_ROWS)
    return Scripts(folder=folder)
