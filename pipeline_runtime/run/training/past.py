"""Reads what earlier attempts of a run recorded, up to the checkpoint that it resumes from."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.monitor import Evaluated
from pipeline_runtime.report.files.metrics_history import LOOP_NAMES, RUNTIME_NAMES, read_history
from pipeline_runtime.run.training.prepare import PreparedRun
from pipeline_runtime.training.checkpoints.history import read_checkpoint_history
from pipeline_runtime.training.recorder import ROW_SCHEMA, Past

_EVALUATION = "eval_"


def read_past(run: PreparedRun, output: Path) -> tuple[Past, tuple[str, ...]]:
    """Return the past of a run, and warnings about parts of it that are lost.

    Args:
        output: folder of the report on this machine, for checkpoints of earlier releases: they have
            no history, and that of the folder may be the run's.

    Raises StoreError if the store does not answer.
    """
    header = run.resume
    if header is None:
        return Past(), ()
    missing: tuple[str, ...] = ()
    if header.history is None:
        rows = read_history(output).cast(ROW_SCHEMA)
        rows = rows.filter(pc.less_equal(rows["step"], header.step))
    else:
        tables, missing = read_checkpoint_history(run.store, header, ROW_SCHEMA)
        rows = pa.concat_tables([ROW_SCHEMA.empty_table(), *tables])
    at_resume = rows.filter(pc.greater_equal(rows["step"], header.step)).to_pydict()
    past = Past(
        rows=rows,
        are_saved=header.history is not None,
        seconds=float(pc.max(rows["seconds"]).as_py() or 0.0),
        rows_read=float(run.resumed_rows),
        known=frozenset(zip(at_resume["step"], at_resume["name"], strict=True)),
        evaluations=find_evaluations(rows),
        metrics=_find_last(rows),
    )
    return past, tuple(
        f"the metrics history lacks a part, since {uri} is missing or damaged; the run goes on "
        "without it"
        for uri in missing
    )


def find_evaluations(rows: pa.Table) -> tuple[Evaluated, ...]:
    """Return the evaluations in a history; values that were reported together are one of them."""
    found = rows.filter(pc.starts_with(rows["name"], _EVALUATION)).to_pylist()
    together: dict[tuple[float, int, int], dict[str, float]] = {}
    for row in found:
        moment = (row["seconds"], row["epoch"], row["step"])
        together.setdefault(moment, {})[row["name"]] = row["value"]
    return tuple(
        Evaluated(epoch=epoch, step=step, metrics=metrics)
        for (_, epoch, step), metrics in together.items()
    )


def _find_last(rows: pa.Table) -> dict[str, float]:
    """Return the last value of each name that a training loop reported."""
    names = pa.array(sorted(RUNTIME_NAMES - LOOP_NAMES))
    found = rows.filter(pc.invert(pc.is_in(rows["name"], value_set=names)))
    return dict(zip(found["name"].to_pylist(), found["value"].to_pylist(), strict=True))
