"""The work on a group: chunks, shuffles, requests kept together, failures that name the place."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_told

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import SourceError, StepError
from pipeline_runtime.feed.chunk import Chunk, add_counts
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.feed.transport.wire import pack, unpack
from pipeline_runtime.plan import StreamPlan, build_plan, plan_groups, rows_per_chunk
from pipeline_runtime.steps.base import ROW_HASH_COLUMN


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "t").mkdir()
    rows = {
        "id": range(60),
        "request": [i // 5 for i in range(60)],
        "x": [i % 3 for i in range(60)],
    }
    pq.write_table(pa.table(rows), tmp_path / "t/a.parquet", row_group_size=20)
    return tmp_path


def plan_of(root: Path, pipeline: Pipeline, **training: object) -> StreamPlan:
    return build_plan(pipeline.experiment("work", **training), str(root)).training


def run(stream: StreamPlan, *, seed: int = 0, epoch: int = 0) -> list[Chunk]:
    rows = rows_per_chunk(stream.scan.units, stream.shuffle, stream.max_rows_per_block)
    groups = plan_groups(
        stream.scan.units, seed=seed, epoch=epoch, shuffle=stream.shuffle, chunk_rows=rows
    )
    return [chunk for group in groups for chunk in read_group(stream, group, rows)]


def ids(chunks: list[Chunk]) -> list[int]:
    return [value for chunk in chunks for value in chunk.table.column("id").to_pylist()]


BASE = Pipeline.read_parquet("t/", row_key="id", request_key="request")


def test_counts_say_what_every_step_took_and_gave(root: Path) -> None:
    chunks = run(plan_of(root, BASE.filter("x > 0").filter("x > 1").derive(y="x * 2")))
    counts = ()
    for chunk in chunks:
        counts = add_counts(counts, chunk.header.counts)
    assert [count.rows for count in counts] == [60, 40, 20, 20]


@pytest.mark.parametrize("rows_per_chunk", [4, 7, 100])
@pytest.mark.parametrize("part", [range(13), range(7, 20), range(13, 20)], ids=str)
def test_a_part_of_a_row_group_runs_steps_on_its_own_rows_only(
    part: range, rows_per_chunk: int, root: Path
) -> None:
    stream = plan_of(root, BASE.derive(y="x * 2"), shuffle={"unit": "None"})
    [group, *_] = stream.groups(0, 20)
    chunks = list(read_group(stream, group.cut(part), rows_per_chunk))
    assert ids(chunks) == list(part)
    assert {sum(counts) for counts in zip(*map(rows_of_steps, chunks), strict=True)} == {len(part)}


def rows_of_steps(chunk: Chunk) -> list[int]:
    return [count.rows for count in chunk.header.counts]


def test_a_chunk_survives_the_wire_without_a_copy(root: Path) -> None:
    chunk = run(plan_of(root, BASE))[0]
    block = pack(chunk)
    assert block.num_rows == 1
    again = unpack(block)[0]
    assert again.header == chunk.header
    assert again.table.equals(chunk.table)
    payload = block.column("payload").chunk(0).buffers()[2]
    values = again.table.column("id").chunk(0).buffers()[1]
    assert payload.address <= values.address < payload.address + payload.size


def test_a_group_without_surviving_rows_still_gives_its_chunk(root: Path) -> None:
    chunks = run(plan_of(root, BASE.filter("x > 5 or id % 7 = 9")))
    assert chunks
    assert ids(chunks) == []
    assert [unpack(pack(chunk))[0].header.num_rows for chunk in chunks] == [0] * len(chunks)


def test_rows_are_shuffled_by_seed_and_epoch_alone(root: Path) -> None:
    stream = plan_of(root, BASE, seed=1)
    first, again, later = run(stream), run(stream), run(stream, epoch=1)
    assert ids(first) == ids(again)
    assert ids(first) != ids(later)
    assert sorted(ids(first)) == sorted(ids(later)) == list(range(60))
    assert ids(run(plan_of(root, BASE, shuffle={"unit": "none"}))) == list(range(60))


def test_a_request_stays_together_when_requests_are_shuffled(root: Path) -> None:
    stream = plan_of(root, BASE.filter("x < 2"), shuffle={"unit": "request"}, columns=["id"])
    got = ids(run(stream))
    requests = [value // 5 for value in got]
    starts = [r for i, r in enumerate(requests) if i == 0 or requests[i - 1] != r]
    assert len(starts) == len(set(starts)) == 12
    assert starts != sorted(starts)


def test_the_hash_of_a_row_is_its_keys_whatever_the_block_size(root: Path) -> None:
    def hashes(limit: int) -> set[tuple[int, int]]:
        chunks = run(plan_of(root, BASE.with_options(rows_per_block=limit)))
        pairs = [(p.table.column("id"), p.table.column(ROW_HASH_COLUMN)) for p in chunks]
        return {pair for i, h in pairs for pair in zip(i.to_pylist(), h.to_pylist(), strict=True)}

    assert hashes(7) == hashes(1000)
    assert len({h for _, h in hashes(7)}) == 60


def test_a_function_that_raises_shows_its_traceback_first_and_then_the_place(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising_module.py").write_text(
        "def work(table):\n    if table.num_rows:\n        raise ValueError('no such luck')\n"
        "    return table\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    stream = plan_of(root, BASE.map("raising_module:work"), shuffle={"unit": "none"})
    with pytest.raises(StepError) as caught:
        run(stream)
    lines = str(caught.value).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "raising_module.py" in lines[1]
    places = " … ".join(f"a.parquet, row group {index}, rows 0–19" for index in range(3))
    assert_told(
        lines[-1],
        f"spec.pipeline[0] … map raising_module:work … {places} … ValueError: no such luck",
    )


def test_a_file_rewritten_since_the_plan_is_named(root: Path) -> None:
    stream = plan_of(root, BASE)
    rows = {"id": range(60), "request": [0] * 60, "x": [0] * 60}
    pq.write_table(pa.table(rows), root / "t/a.parquet", row_group_size=30)
    with pytest.raises(SourceError, match=r"a\.parquet: .*(rewritten|row group)"):
        run(stream)
