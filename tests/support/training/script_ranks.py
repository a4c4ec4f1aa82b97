"""A script that trains on several ranks, and ranks of a run without Ray that train by it."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from documented_code import read_documented

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.monitor import Evaluated, HistoryPoint, Order, RankSnapshot
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.training.feeds import build_streams, build_worker_plan
from pipeline_runtime.run.training.prepare import prepare_run
from pipeline_runtime.training.ranks.worker import train_worker
from pipeline_runtime.training.recorder import ROW_SCHEMA
from pipeline_runtime.training.script import build_environment, find_free_port

# Trains by DDP on all ranks, and records the rows of each step as JSON lines.
DDP_SCRIPT = """
import argparse, json, os, pathlib, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from pipeline_runtime import current

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--sleep", type=float, default=0.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # DDP starts all ranks with the model of rank 0
    model = torch.nn.Linear(4, 1)
    run = current()
    state = run.load() or {"step": 0, "model": model.state_dict()}
    model.load_state_dict(state["model"])
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    with (args.folder / f"rank{os.environ['RANK']}.jsonl").open("a", buffering=1) as log:
        log.write(json.dumps({"first": state["step"]}) + "\\n")
        loader = run.loader()
        for epoch in run.epochs():
            for batch in loader:
                time.sleep(args.sleep)
                weights = batch["row_weight"]
                loss = (ddp(batch["items"].float())[:, 0] * weights).sum() / 100
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ids = batch["id"][weights > 0].tolist()
                record = {"epoch": epoch, "step": run.step, "ids": ids}
                log.write(json.dumps(record | {"weight": model.weight.tolist()}) + "\\n")
                if run.step == args.fail_at and not (args.folder / "cured").exists():
                    raise ValueError("the user's own mistake")
                if run.checkpoint_due():
                    run.save({"step": run.step, "model": model.state_dict()})
        run.report({"loss": loss.item()})
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""

# The same by FSDP, whose state is sharded over the ranks; it first tries to save a shard.
FSDP_SCRIPT = f"""
import argparse, json, os, pathlib
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from pipeline_runtime import current
from pipeline_runtime.errors import TrainingError
{read_documented("scripts.md", "FSDP")}

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path)
parser.add_argument("--fail-at", type=int)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = fully_shard(torch.nn.Linear(4, 6), mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def describe():
    return [tensor.full_tensor().tolist() for tensor in model.parameters()]

run = current()
load(run, model, optimizer)
with (args.folder / f"rank{{os.environ['RANK']}}.jsonl").open("a", buffering=1) as log:
    log.write(json.dumps({{"first": run.step, "weight": describe()}}) + "\\n")
    loader = run.loader()
    for epoch in run.epochs():
        for batch in loader:
            weights = batch["row_weight"]
            loss = (model(batch["items"].float() / 6000).sum(1) * weights).sum() / 100
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids = batch["id"][weights > 0].tolist()
            record = {{"epoch": epoch, "step": run.step, "ids": ids, "weight": describe()}}
            log.write(json.dumps(record) + "\\n")
            if run.step == args.fail_at and not (args.folder / "cured").exists():
                run.save({{"layers": [model.state_dict()]}})
            if run.checkpoint_due():
                save(run, model, optimizer)
    run.report({{"loss": loss.item()}})
dist.destroy_process_group()
"""


class RankRuntime:
    """The runtime of one rank whose reports nobody reads; see `training.runtime.Runtime`."""

    device = torch.device("cpu")

    def __init__(self, rank: int, world_size: int, port: int) -> None:
        self.rank = rank
        self.failure: str | None = None
        self.snapshot: RankSnapshot | None = None
        self.environment = {
            **build_environment(
                rank=rank,
                world_size=world_size,
                local_rank=rank,
                local_world_size=world_size,
                node_rank=0,
            ),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }

    def push(self, snapshot: RankSnapshot, points: list[HistoryPoint]) -> Order:
        self.snapshot = snapshot
        return Order.GO_ON

    def take_history(self) -> pa.Table:
        return ROW_SCHEMA.empty_table()

    def fail(self, kind: str, message: str) -> None:
        self.failure = message

    def warn(self, message: str) -> None: ...

    def evaluated(self, evaluation: Evaluated) -> None: ...

    def check_driver(self) -> None: ...

    def abort(self) -> None: ...


def run_attempts(
    folder: Path, document: dict[str, Any], *, world_size: int, apart: bool = False
) -> None:
    """Run all ranks until they fail, and resume them.

    Args:
        apart: each attempt has processes of its own.
    """
    ports = [find_free_port(), find_free_port()]
    for first, each in enumerate([[port] for port in ports] if apart else [ports]):
        args = (world_size, folder, document, each, first)
        mp.spawn(run_rank, args=args, nprocs=world_size)


def run_rank(
    rank: int,
    world_size: int,
    folder: Path,
    document: dict[str, Any],
    ports: list[int],
    first_attempt: int = 0,
) -> None:
    """Train by the document as one rank, resume if it fails, and leave the last snapshot."""
    sys.path.insert(0, str(folder))
    experiment = parse_experiment(document)
    for attempt, port in enumerate(ports, first_attempt):
        options = RunOptions(
            output=folder / "output", storage_root=str(folder), resume=attempt > 0, run_id="run"
        )
        run = prepare_run(experiment, options, datetime(2026, 1, 1, tzinfo=UTC), world_size)
        feeds = ThreadReaders(streams=build_streams(run), num_threads=1)
        runtime = RankRuntime(rank, world_size, port)
        try:
            train_worker(build_worker_plan(run, feeds), runtime)
        except TrainingError as error:
            (folder / f"failure-{rank}").write_text(str(error))
            wait_for_failures(folder, world_size)  # before a rank asks whether it is cured
            dist.destroy_process_group()  # the end of a process does this, too
            (folder / "cured").touch()
    torch.save(runtime.snapshot, folder / f"snapshot-{rank}.pt")


def wait_for_failures(folder: Path, world_size: int) -> None:
    """Wait until all ranks have failed. Raises TimeoutError after a minute."""
    deadline = time.monotonic() + 60
    while not all((folder / f"failure-{rank}").exists() for rank in range(world_size)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {world_size} ranks failed")
        time.sleep(0.05)
