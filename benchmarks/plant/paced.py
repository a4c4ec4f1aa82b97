"""A trainer and a step of known pace, both asleep: what a file says at each step and each chunk.

Imported by the processes of a run, so nothing heavy is imported here.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

STEP_SECONDS: Final = "stepSeconds"
SECONDS_PER_ROW: Final = "secondsPerRow"


def work(table: Any, pace: str) -> Any:
    """A `map` step: every row costs so many seconds."""
    time.sleep(table.num_rows * _read(pace)[SECONDS_PER_ROW])
    return table


def train(ctx: Any) -> None:
    """An entrypoint whose steps take so many seconds, as long as there are rows."""
    for _ in ctx.epochs():
        for _ in ctx.batches():
            time.sleep(_read(ctx.config["pace"])[STEP_SECONDS])
            ctx.report({"loss": 0.0})


def write_pace(path: Path, *, step_seconds: float, row_seconds: float) -> None:
    """Set the pace from now on; the file is replaced at once, so no reader sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({STEP_SECONDS: step_seconds, SECONDS_PER_ROW: row_seconds}))
    new.replace(path)


def _read(path: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(Path(path).read_text())
    return found
