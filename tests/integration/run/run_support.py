"""Projects for the tests of whole runs, and a naive reference of their rows.

`Project.args` are the arguments for a warm command line (`warm_lastmile`); `Project.start` starts a
separate process, to send signals to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from ray_heads import RealRay

from pipeline_runtime import hashing
from pipeline_runtime.report import Summary, load_summary

LASTMILE = str(Path(sys.executable).with_name("lastmile"))

# An entrypoint that records the rows of each step. It may fail at a step, or be slow until the file
# `hurry` exists.
RECORDER = """
import json, os, pathlib, time

def loop(ctx):
    folder = pathlib.Path(ctx.config["folder"])
    (folder / "environment.json").write_text(json.dumps(dict(os.environ)))
    first = ctx.checkpoint["step"] if ctx.checkpoint else 0
    with (folder / f"rank{ctx.rank}.jsonl").open("a", buffering=1) as log:
        log.write(json.dumps({"first": first}) + "\\n")
        for epoch in ctx.epochs():
            for batch in ctx.batches():
                if not (folder / "hurry").exists():
                    time.sleep(ctx.config.get("sleepSeconds", 0))
                ids = batch["id"][batch["row_weight"] > 0].tolist()
                log.write(json.dumps({"epoch": epoch, "step": ctx.step, "ids": ids}) + "\\n")
                if ctx.step == ctx.config.get("failAt") and not (folder / "cured").exists():
                    raise ValueError("the user's own mistake")
                saved = {"step": ctx.step} if ctx.checkpoint_due() else None
                ctx.report({"loss": 1.0 / ctx.step}, saved)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A folder with a manifest and the user's modules; URIs are relative to `root`."""

    folder: Path
    root: str
    name: str
    module: str = "recorder_loop"

    def write(self, spec: Mapping[str, Any], modules: Mapping[str, str] | None = None) -> None:
        """Write manifest and modules."""
        document = {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": self.name},
            "spec": spec,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "manifest.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        for module, text in {self.module: RECORDER, **(modules or {})}.items():
            (self.folder / f"{module}.py").write_text(text)

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def args(self, *more: str) -> list[str]:
        """Return the arguments of `lastmile`."""
        command = ["run", "-f", str(self.folder / "manifest.yaml"), "--metrics-port", "0"]
        return [*command, "--storage-root", self.root, "--output", str(self.output), *more]

    def start(self, *more: str, **environment: str) -> subprocess.Popen[str]:
        """Start a run in its own process group, like a shell's job, with more variables."""
        return subprocess.Popen(
            [LASTMILE, *self.args(*more)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=self.folder,
            env={**os.environ, **environment},
        )

    @property
    def summary(self) -> Summary:
        return load_summary(self.output)

    @property
    def checkpoints(self) -> list[Path]:
        """Folders of whole checkpoints of all runs, oldest first."""
        found = Path(self.root, "experiments", self.name).glob("*/checkpoints/step-*")
        return sorted(path for path in found if (path / "checkpoint.json").exists())

    def attempts(self, rank: int = 0) -> list[Attempt]:
        """Return the attempts that the entrypoint recorded, in order."""
        attempts: list[Attempt] = []
        path = self.folder / f"rank{rank}.jsonl"
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "first" in record:
                attempts.append(Attempt(first_step=record["first"]))
            else:
                attempts[-1].batches[record["step"]] = tuple(record["ids"])
        return attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The batches of one attempt by their step, and the step that it resumed from."""

    first_step: int
    batches: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        return [row for batch in self.batches.values() for row in batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clicks:
    """A small table below `root`/clicks, its side table, and the rows that `clicks_spec` keeps."""

    root: Path
    kept: list[int]  # ids, from a naive loop over the rows
    counts: list[int]  # rows out of the read and of every step


def clicks_spec(
    project: Project,
    *,
    training: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    pipeline: Sequence[Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Build the spec that the reference of `clicks` follows, with the changes of a test."""
    return {
        "dataset": {"parquet": {"uri": "clicks/"}, "where": "ts >= 2000", "rowKey": ["id"]},
        "pipeline": CLICKS_PIPELINE if pipeline is None else pipeline,
        "pipelineOptions": dict(options or {}),
        "training": {
            "entrypoint": f"{project.module}:loop",
            "batchSize": 100,
            "columns": ["id", "items"],
            "config": {"folder": str(project.folder), **(config or {})},
            **(training or {}),
        },
        **spec,
    }


CLICKS_PIPELINE: list[dict[str, Any]] = [
    {"antiJoin": {"parquet": {"uri": "blocked/"}, "keys": ["user"]}},
    {"filter": {"where": "country is not null and score < 0.9"}},
    {"derive": {"columns": [{"name": "label", "expression": "score > 0.5"}]}},
    {"downsample": {"where": "not label", "keepPercent": 50, "seed": 3}},
    {"padSequence": {"columns": ["items"], "length": 4}},
]


def checksum_of(keys: Sequence[int], *, times: int = 1) -> dict[str, Any]:
    """Compute the documented checksum of rows by their int64 keys, with Python's integers."""
    column = pa.array(list(keys), pa.int64())
    hashes = [int(value) for value in hashing.hash_columns([column], seed=0)]
    return {
        "rows": times * len(hashes),
        "sum": f"{times * sum(hashes) % 2**64:016x}",
        "sum_of_squares": f"{times * sum(value * value for value in hashes) % 2**64:016x}",
    }


def sampled(keys: Sequence[int], seed: int, keep_percent: int) -> np.ndarray:
    """Return the mask of the rows that a downsample step keeps, by their int64 keys."""
    hashes = hashing.hash_columns([pa.array(list(keys), pa.int64())], seed=0)
    return hashing.keep_mask(hashes, seed, keep_percent)


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until a condition holds; fail with its name if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process with its start time, which distinguishes it from a later one of the same pid."""

    pid: int
    group: int
    started: str


def descendants(pid: int) -> set[Process]:
    """Return all descendants of a process."""
    table = {process.pid: (process, parent) for process, parent in all_processes()}
    found: set[Process] = set()
    for process, ancestor in table.values():
        while ancestor in table and ancestor != pid:
            ancestor = table[ancestor][1]
        if ancestor == pid:
            found.add(process)
    return found


def still_there(processes: Iterable[Process]) -> list[Process]:
    """Return those of the processes that still run."""
    alive = {process for process, _ in all_processes()}
    return [process for process in processes if process in alive]


def all_processes() -> Iterable[tuple[Process, int]]:
    """Yield all processes except zombies, with the pid of the parent."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent, group, started = fields[0], fields[1], fields[2], fields[19]
        if state != "Z":
            process = Process(pid=int(folder.name), group=int(group), started=started)
            yield process, int(parent)


def command_line(process: Process) -> str:
    """Return program and arguments, or the title of the process; empty if it has ended."""
    try:
        return (
            Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""


def workers_called(cluster: RealRay, name: str) -> list[int]:
    """Return the cluster's workers of a name: `ray::Reader`, or `ray::Reader.make`."""
    folder = str(cluster.folder)
    lines = [(process.pid, parent, command_line(process)) for process, parent in all_processes()]
    parents = {
        pid
        for pid, _, line in lines
        if folder in line and ("/raylet " in line or "fork_server.py" in line)
    }
    return [
        pid for pid, parent, line in lines if parent in parents and line.partition(".")[0] == name
    ]
