"""The model of the benchmark: an entrypoint of Lastmile, and a DataLoader script without it.

Both take the same steps on rows of the same table, and record when each step was done. The
arguments of the script are the folder of the table and that of its output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

BATCH_ROWS = 1024
STEPS = 3
LABEL = "clicked"
COLUMNS = tuple(f"dense_{index:02d}" for index in range(8))
MAX_POSITION = 30  # rows further down are dropped
STEPS_FILE = "steps.txt"


class Trainer:
    """A small network, its optimiser, and the times of its steps."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(1)
        layers = (nn.Linear(len(COLUMNS), 64), nn.ReLU(), nn.Linear(64, 1))
        self.model = nn.Sequential(*layers)
        self._optimizer = torch.optim.Adam(self.model.parameters())
        self._folder = folder

    def step(self, batch: Mapping[str, torch.Tensor]) -> float:
        """Take one step, record the time, and return the loss."""
        inputs_BC = torch.stack([batch[name].nan_to_num() for name in COLUMNS], 1)
        logits_B = self.model(inputs_BC)[:, 0]
        loss = nn.functional.binary_cross_entropy_with_logits(logits_B, batch[LABEL].float())
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.record()
        return float(loss)

    def record(self) -> None:
        """Record the current time."""
        with (self._folder / STEPS_FILE).open("a") as file:
            file.write(f"{time.time()}\n")


def loop(ctx: Any) -> None:
    """Train; Lastmile calls it with the context."""
    trainer = Trainer(Path(ctx.config["folder"]))
    for _ in ctx.epochs():
        for batch in ctx.batches():
            ctx.report({"loss": trainer.step(batch)})
        ctx.report({}, checkpoint={"model": trainer.model.state_dict()})
    trainer.record()  # the checkpoint is written


class _Rows(IterableDataset[Any]):
    """Batches of a table's rows, as a script reads them."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        for path in sorted(Path(sys.argv[1]).rglob("*.parquet")):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=[*COLUMNS, LABEL, "position"])
                table = table.filter(pc.less(table["position"], MAX_POSITION))
                arrays = {name: table[name].to_numpy() for name in (*COLUMNS, LABEL)}
                for first in range(0, table.num_rows - BATCH_ROWS + 1, BATCH_ROWS):
                    rows = slice(first, first + BATCH_ROWS)
                    yield {name: torch.tensor(array[rows]) for name, array in arrays.items()}


if __name__ == "__main__":
    trainer = Trainer(Path(sys.argv[2]))
    # No worker processes: they would begin later.
    for batch in islice(DataLoader(_Rows(), batch_size=None), STEPS):
        trainer.step(batch)
