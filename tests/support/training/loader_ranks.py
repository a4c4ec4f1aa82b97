"""One rank of a DDP training on a loader, for processes that tests spawn."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipeline_runtime import Pipeline
from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.errors import LastmileError, LoaderError
from pipeline_runtime.loader import Loader


@dataclass(kw_only=True)
class Seen:
    """The observations of a rank: by loop, the rows of each batch that weigh something."""

    rank: int
    batches: dict[str, list[list[int]]] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    weights: torch.Tensor | None = None  # of the trained model
    error: str = ""
    out_of_step: dict[str, str] = field(default_factory=dict)  # the error of each case
    failure: str = ""  # the error of a loop that one rank alone cannot go on with
    has_ray: bool = False


def run_rank(rank: int, world_size: int, folder: Path, trained: Loader) -> None:
    """Run all loops as one rank, and leave what it saw in the folder.

    Args:
        trained: a loader that was made before the process began, and pickled.
    """
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    torch.set_num_threads(1)
    seen = Seen(rank=rank)
    pipeline = Pipeline.read_parquet(f"{folder}/t/").with_options(rows_per_block=90)
    seen.weights = train(trained, seen)
    for name, loader in {
        "drop": pipeline.loader(64, ["x"], last_batch="drop", shuffle=True),
        "pad": pipeline.loader(64, ["x"], shuffle=True),
        "filtered": pipeline.filter("x % 2000 < 80").loader(64, ["x"]),  # of one rank
        "alone": pipeline.loader(64, ["x"], distributed=False),
    }.items():
        note(seen, name, list(loader))
        if name != "filtered":
            seen.lengths[name] = len(loader)
    resume(pipeline, seen)
    for case in OUT_OF_STEP:
        seen.out_of_step[case] = run_out_of_step(pipeline, case, rank)
    seen.failure = run_failing(pipeline)
    note(seen, "after errors", list(pipeline.loader(64, ["x"], shuffle=True)))
    try:
        iter(pipeline.loader(64, last_batch="keep"))
    except LoaderError as error:
        seen.error = str(error)
    seen.has_ray = "ray" in sys.modules
    torch.save(seen, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


# What differs between the ranks, and the name that an error gives it.
OUT_OF_STEP = {
    "epoch": "epoch",
    "seed": "training.seed",
    "batch size": "training.batchSize",
    "step": "pipeline",
    "shuffle": "training.shuffle",
    "last batch": "last_batch",
    "state": "batches",
    "loop": "epoch",
}


def run_out_of_step(pipeline: Pipeline, case: str, rank: int) -> str:
    """Run loops that differ by rank, and return the error."""
    arguments: dict[str, Any] = {"batch_size": 64, "columns": ["x"], "shuffle": True}
    if rank == 1:
        arguments |= {
            "seed": {"seed": 5},
            "batch size": {"batch_size": 65},
            "shuffle": {"shuffle": False},
            "last batch": {"last_batch": "drop"},
        }.get(case, {})
        pipeline = pipeline.filter("x > 3") if case == "step" else pipeline
    loader = pipeline.loader(**arguments)
    if case == "epoch":
        loader.set_epoch(rank)
    if case == "state":
        loader.load_state_dict(loader.state_dict() | {"batches": 2 * rank})
    try:
        if case == "loop":  # rank 0 leaves its loop one batch before the other
            list(islice(loader, 2 + rank))
        list(loader)
    except LoaderError as error:
        return str(error)
    return ""


def run_failing(pipeline: Pipeline) -> str:
    """Run a loop that fails on the one row that is left, which one rank has."""
    try:
        list(pipeline.filter("x = 999").cast(x="int8").loader(64))
    except LastmileError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def train(loader: Loader, seen: Seen) -> torch.Tensor:
    """Train on two epochs as users of DDP do; DDP hangs if a rank has fewer batches."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        batches = []
        loader.set_epoch(epoch)
        for batch in loader:
            predicted = model(batch["x"].float()[:, None] / 1000)[:, 0]
            losses = (predicted - batch["x"] / 500) ** 2
            optimizer.zero_grad()
            (losses * batch[ROW_WEIGHT]).sum().backward()
            optimizer.step()
            batches.append(batch)
        note(seen, f"epoch {epoch}", batches)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def resume(pipeline: Pipeline, seen: Seen) -> None:
    """Resume in the middle from each rank's own state, and from the state of rank 0 alone."""
    arguments: dict[str, Any] = {"batch_size": 64, "columns": ["x"], "shuffle": True}
    loader = pipeline.loader(**arguments)
    first = list(islice(iter(loader), 3))
    state = loader.state_dict()
    shared = [state]
    dist.broadcast_object_list(shared, src=0)
    for name, chosen in {"own state": state, "state of rank 0": shared[0]}.items():
        again = pipeline.loader(**arguments)
        again.load_state_dict(chosen)
        note(seen, name, first + list(again))


def note(seen: Seen, name: str, batches: list[Batch]) -> None:
    """Keep the rows and the sizes of a loop's batches."""
    seen.sizes[name] = [len(batch["x"]) for batch in batches]
    seen.batches[name] = [
        (batch["x"][batch[ROW_WEIGHT] > 0] if ROW_WEIGHT in batch else batch["x"]).tolist()
        for batch in batches
    ]
