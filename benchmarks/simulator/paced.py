"""A trainer and a step that sleep, at a pace that a file sets for each step and each chunk.

The processes of a run import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


def work(table: Any, pace: str) -> Any:
    """Sleep for the seconds that each row costs; a `map` step."""
    time.sleep(table.num_rows * _read(pace)["secondsPerRow"])
    return table


def train(ctx: Any) -> None:
    """Sleep for the seconds of each step; an entrypoint."""
    for _ in ctx.epochs():
        for _ in ctx.batches():
            time.sleep(_read(ctx.config["pace"])["stepSeconds"])
            ctx.report({"loss": 0.0})


def _read(path: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(Path(path).read_text())
    return found
