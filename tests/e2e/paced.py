"""A trainer and a step of known pace, both asleep: what a file says at each step and table.

It goes to the pods as a user's module would: `code.workingDir`, here a folder of the volume.
"""

import json
import time
from pathlib import Path
from typing import Any


def work(table: Any, pace: str) -> Any:
    """A `map` step: every row costs `secondsPerRow`."""
    time.sleep(table.num_rows * _read(pace)["secondsPerRow"])
    return table


def train(ctx: Any) -> None:
    """An entrypoint whose steps take `stepSeconds`, as long as rows are there."""
    for _ in ctx.epochs():
        for _ in ctx.batches():
            time.sleep(_read(ctx.config["pace"])["stepSeconds"])
            ctx.report({"loss": 0.0})


def _read(pace: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(Path(pace).read_text())
    return found
