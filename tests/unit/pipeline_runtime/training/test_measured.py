"""Measures in front of trainers: each row of the first epoch once, wherever a run stops."""

from __future__ import annotations

import collections
import hashlib
import importlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from facts import assert_one_tells, assert_told

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import LoaderError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.making.work import run_group
from pipeline_runtime.feed.transport.wire import pack, unpack
from pipeline_runtime.measuring.values import DamagedState
from pipeline_runtime.plan import StreamPlan, build_plan
from pipeline_runtime.report.files.measures_file import MEASURES_FILE, load_measures
from pipeline_runtime.run.session import Finished
from pipeline_runtime.training.measured import Measured, find_observers, merge_ranks
from pipeline_runtime.training.position import Position, redistribute
from pipeline_runtime.training.stream import BatchStream, Cutting

ROWS = pa.table(
    {
        "id": np.arange(60),
        "score": np.arange(60) * 7 % 60 / 60,
        "label": np.arange(60) % 3 == 0,
        "user": np.repeat(np.arange(12), 5),
    }
)
METRICS = (
    {"name": "auc", "auc": {"score": "score", "label": "label"}, "groupBy": ["user"]},
    {"name": "gauc", "auc": {"score": "score", "label": "label"}, "per": "user"},
)
AFTER = {"name": "left", "mean": {"column": "id"}}
CHUNK_ROWS = 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pq.write_table(ROWS, tmp_path / "in.parquet", row_group_size=10)
    return tmp_path


def build_pipeline(*metrics: dict[str, Any]) -> Pipeline:
    """Return a pipeline that measures all rows, and those that a filter leaves, of some chunks."""
    base = Pipeline.read_parquet("in.parquet", row_key="id")
    return base.measure(*metrics or METRICS).filter("id >= 16").measure(AFTER)


def plan(root: Path, **training: Any) -> StreamPlan:
    quick = {"name": "ids", "quantiles": {"column": "id", "atPercent": [50]}}
    document = build_pipeline(quick, METRICS[1]).document(
        "m", epochs=2, columns=["score"], **training
    )
    return build_plan(parse_experiment(document), str(root)).main


def measure_whole(stream: StreamPlan) -> list[Any]:
    before, after = find_observers(stream.steps)
    return [
        list(step.finish(step.load(step.observe(rows)[1])))
        for step, rows in ((before, ROWS), (after, ROWS.slice(16)))
    ]


class Ranks:
    """The ranks of an attempt, each with its stream; all are in the same epoch."""

    def __init__(
        self,
        stream: StreamPlan,
        world_size: int,
        positions: Sequence[Position],
        measured: Sequence[Sequence[bytes]] = (),
    ) -> None:
        self.streams = [
            self._open(stream, rank, world_size, position)
            for rank, position in enumerate(positions)
        ]
        for parts in measured:
            first = self.streams[0].measured
            assert first is not None
            first.restore(parts)

    @staticmethod
    def _open(stream: StreamPlan, rank: int, world_size: int, position: Position) -> BatchStream:
        groups = [
            group
            for epoch in range(position.epoch, 2)
            for group in stream.groups(epoch, CHUNK_ROWS)[rank::world_size]
            if epoch != position.epoch or group.index not in position.done
        ]

        def make() -> Iterator[Any]:
            for group in groups:
                for chunk in run_group(stream, group, CHUNK_ROWS):
                    yield from unpack(pack(chunk))

        opened = BatchStream(
            chunks=make(),
            groups=groups,
            cutting=Cutting(batch_size=4, last_batch="Pad"),
            position=position,
            waited=Waited(),
            measured=Measured(find_observers(stream.steps)),
        )
        opened.remembers = True
        return opened

    def take(self, epoch: int, num_batches: int | None) -> None:
        """Take so many batches of an epoch on each rank; None: all that are left."""
        for stream in self.streams:
            collections.deque(itertools.islice(stream.epoch_rows(epoch), num_batches), maxlen=0)

    def save(self, *, ahead: bool) -> tuple[list[Position], list[tuple[bytes, ...]]]:
        positions, measured = [], []
        for stream in self.streams:
            before = stream.position.before_last() if ahead else stream.position.copy()
            assert before is not None
            assert stream.measured is not None
            positions.append(Position.from_json(before.to_json()))
            measured.append(stream.measured.dump(without_last=ahead))
        return positions, measured


@pytest.mark.parametrize("unit", ["None", "Row"])
@pytest.mark.parametrize("worlds", [(1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_stop_anywhere_measures_each_row_once(
    root: Path, unit: str, worlds: tuple[int, int], ahead: bool
) -> None:
    stream = plan(root, shuffle={"unit": unit, "windowRows": CHUNK_ROWS})
    observers = find_observers(stream.steps)
    whole = measure_whole(stream)
    for epoch, num_batches in ((0, 1), (0, 2), (0, 4), (0, 5), (0, 100), (1, 1), (1, 3)):
        first = Ranks(stream, worlds[0], [Position() for _ in range(worlds[0])])
        if epoch:
            first.take(0, None)
        first.take(epoch, num_batches)
        positions, measured = first.save(ahead=ahead)
        first.take(epoch, 1)  # what a killed attempt did after its last checkpoint
        second = Ranks(stream, worlds[1], redistribute(positions, worlds[1]), measured)
        for each in range(epoch, 2):
            second.take(each, None)
        _, parts = second.save(ahead=False)
        found = merge_ranks(observers, parts)
        assert found[0][0] == whole[0][0]
        # Mixed row groups put the rows of a user into several places.
        assert found[0][1]["rows"] == whole[0][1]["rows"]
        assert found[1] == whole[1]


def test_what_a_checkpoint_has_must_be_of_the_same_steps(root: Path) -> None:
    observers = find_observers(plan(root).steps)
    dumped = Measured(observers).dump()
    for damaged in (dumped[:1], (dumped[1], dumped[0]), (b"", b"")):
        with pytest.raises(DamagedState):
            Measured(observers).restore(damaged)


PROGRAM = """
STOP_AT = None

def train(ctx):
    for _ in ctx.epochs():
        for _ in ctx.batches():
            if ctx.step == STOP_AT:
                raise RuntimeError("killed")
            ctx.report({}, checkpoint={"n": 1} if ctx.step % 3 == 0 else None)
"""


@pytest.fixture
def program(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (root / "measured_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(root))
    yield importlib.import_module("measured_program")
    del sys.modules["measured_program"]


def train(root: Path, name: str, **options: Any) -> Finished:
    return build_pipeline().train(
        name,
        storage_root=str(root),
        entrypoint="measured_program:train",
        columns=["score"],
        epochs=2,
        batch_size=4,
        shuffle={"windowRows": CHUNK_ROWS},
        **options,
    )


def test_a_training_that_resumes_reports_what_one_without_a_stop_does(
    root: Path, program: ModuleType
) -> None:
    whole = train(root, "whole", output=root / "whole")
    assert whole.outcome.kind == "Complete", whole.outcome
    found = {measure.name: measure for measure in whole.summary.measures}
    assert {name: measure.rows for name, measure in found.items()} == {
        "auc": 60,
        "gauc": 60,
        "left": 44,
    }
    assert found["left"].value == np.mean(range(16, 60))
    kept = load_measures(root / "whole").measures
    assert len(kept[0].groups) == 12
    page = (root / "whole" / "report.html").read_text()
    assert 'id="measures"' in page
    assert 'id="training"' in page
    program.STOP_AT = 8  # type: ignore[attr-defined]  # of 11 in the first epoch
    killed = train(root, "stopped", output=root / "killed")
    assert killed.outcome.kind == "Failed"
    assert killed.summary.measures == ()
    program.STOP_AT = None  # type: ignore[attr-defined]
    resumed = train(root, "stopped", output=root / "resumed", resume=True)
    assert resumed.summary.run.resumed_from is not None
    assert resumed.summary.measures == whole.summary.measures
    files = [(root / name / MEASURES_FILE).read_bytes() for name in ("whole", "resumed")]
    assert files[0] == files[1]
    # A table that is written has the same rows.
    written = build_pipeline().write_parquet(
        "out/", storage_root=str(root), output=root / "written"
    )
    assert written.summary.measures == whole.summary.measures


def test_rows_are_measured_in_the_first_epoch_alone(root: Path) -> None:
    stream = plan(root)
    for epoch, num_observed in ((0, 2), (1, 0)):
        chunks = [
            chunk
            for group in stream.groups(epoch, CHUNK_ROWS)
            for chunk in run_group(stream, group, CHUNK_ROWS)
        ]
        assert {len(chunk.header.observed) for chunk in chunks} == {num_observed}
        assert sum(chunk.header.num_rows for chunk in chunks) == 44


def test_rows_that_evaluate_a_model_are_not_measured(root: Path) -> None:
    document = build_pipeline().document("m", columns=["score"], evaluation={"where": "id < 30"})
    evaluation = build_plan(parse_experiment(document), str(root)).evaluation
    assert evaluation is not None
    assert [step.transform.observes for step in evaluation.steps] == [False] * 4


def test_a_loader_refuses_to_measure(root: Path) -> None:
    with pytest.raises(LoaderError) as caught:
        build_pipeline().loader(batch_size=4, storage_root=str(root))
    assert_told(str(caught.value), "spec.pipeline[0] … measure … Pipeline.train")


def test_a_checkpoint_without_measures_is_continued_without(
    root: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a release that did not count the rows that a model could not score."""
    program.STOP_AT = 8  # type: ignore[attr-defined]
    train(root, "old", output=root / "killed")
    [*_, state] = sorted(root.glob("experiments/old/*/checkpoints/*/state.pt"))
    content = torch.load(state)
    del content["measured"]
    header = json.loads((state.parent / "checkpoint.json").read_text())
    torch.save(content, state)
    data = state.read_bytes()
    header |= {"numBytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del header["headerSha256"]  # as in earlier releases
    (state.parent / "checkpoint.json").write_text(json.dumps(header))
    program.STOP_AT = None  # type: ignore[attr-defined]
    resumed = train(root, "old", output=root / "resumed", resume=True)
    assert resumed.outcome.kind == "Complete", resumed.outcome
    assert resumed.summary.measures == ()
    assert_one_tells(resumed.summary.warnings, "… earlier release … no measures")
