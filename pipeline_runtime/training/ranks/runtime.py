"""The process around a rank's loop, as the training worker sees it.

`ray_runtime` is a worker of Ray Train; `local_runtime` is the process of the command itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa
import torch

from pipeline_runtime.monitor import Evaluated, HistoryPoint, Order, RankSnapshot


class Runtime(Protocol):
    """The process of a rank, and its connection to the monitor; threads of the rank share it."""

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of its batches."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of torch.distributed for a script, apart from those already set."""
        ...

    def push(self, snapshot: RankSnapshot, points: list[HistoryPoint]) -> Order:
        """Report progress, and return what the rank is to do."""
        ...

    def take_history(self) -> pa.Table:
        """Return the rows of the metrics history since the last call (`training.recorder`)."""
        ...

    def warn(self, message: str) -> None:
        """Report a warning for the summary."""
        ...

    def evaluated(self, evaluation: Evaluated) -> None:
        """Report the metrics of an evaluation."""
        ...

    def fail(self, kind: str, message: str) -> None:
        """Report the failure that ends this rank, by the name of its class."""
        ...

    def check_driver(self) -> None:
        """End this process if the driver is gone, since a run that resumes may take its place."""
        ...

    def abort(self) -> None:
        """End the loop now, whatever it is doing; called by another thread."""
        ...
