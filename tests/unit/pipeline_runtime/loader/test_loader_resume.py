"""A state resumes after exactly the batches that were delivered, in another process or another."""

import copy
import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime import Pipeline
from pipeline_runtime.batches import Batch
from pipeline_runtime.errors import CheckpointError


def rows_of(batch: Batch) -> list[list[int]]:
    columns = [batch["x"], batch["items.offsets"].diff()]
    return torch.stack(columns).tolist()


@settings(max_examples=examples(10))
@given(data=st.data())
def test_a_resume_at_any_batch_delivers_the_batches_of_the_undisturbed_run(
    pipeline: Pipeline, data: st.DataObject
) -> None:
    batch_size = data.draw(st.sampled_from([33, 64, 90, 200]))
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": data.draw(st.sampled_from([False, True, "request"])),
        "last_batch": data.draw(st.sampled_from(["keep", "drop", "pad"])),
    }
    if data.draw(st.booleans()):
        pipeline = pipeline.filter("x % 7 < 5").with_options(
            preserve_order=data.draw(st.booleans())
        )

    def open_again() -> Any:
        threads = data.draw(st.integers(1, 3))  # of no account for the batches
        return pipeline.loader(num_threads=threads, **arguments)

    whole = open_again()
    expected = [rows_of(batch) for _ in range(2) for batch in whole]
    num_batches = len(expected) // 2

    loader = open_again()
    loader.set_epoch(epoch := data.draw(st.integers(0, 1)))
    stop = data.draw(st.integers(0, num_batches))
    first = [rows_of(batch) for batch in islice(iter(loader), stop)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["batches"]) == (epoch, stop)

    resumed = open_again()
    resumed.load_state_dict(state)
    assert json.loads(json.dumps(resumed.state_dict())) == state
    rest = [rows_of(batch) for batch in resumed]
    assert first + rest == expected[epoch * num_batches :][:num_batches]
    if epoch == 0:
        assert [rows_of(batch) for batch in resumed] == expected[num_batches:]


@pytest.mark.parametrize("stop", [0, 1, 6, 11])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("change", [{"batches": 1}, {"batches": 0}])
def test_a_loader_resumes_from_the_count_alone(
    pipeline: Pipeline, stop: int, shuffle: bool, change: dict[str, int]
) -> None:
    loader = pipeline.loader(90, shuffle=shuffle)
    expected = [rows_of(batch) for batch in loader]
    loader.set_epoch(0)
    list(islice(iter(loader), stop))
    state = loader.state_dict() | change
    stop = state["batches"]
    loader.load_state_dict(state)
    batches = iter(loader)
    assert loader.state_dict() == state  # until it has caught up
    assert [rows_of(batch) for batch in batches] == expected[stop:]


def test_an_iteration_that_is_left_resumes_where_it_was_left(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, ["x"])
    for batch in loader:
        if batch["x"][0] == 200:
            break
    state = loader.state_dict()
    assert [batch["x"][0].item() for batch in loader] == list(range(0, 1000, 100))  # a new epoch
    loader.load_state_dict(state)
    assert [batch["x"][0].item() for batch in loader] == list(range(300, 1000, 100))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (1, 0)


def test_a_loop_without_a_batch_uses_up_no_epoch(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, ["x"], shuffle=True)
    first = next(iter(pipeline.loader(100, ["x"], shuffle=True)))
    iter(loader)
    assert torch.equal(next(iter(loader))["x"], first["x"])
    assert loader.epoch == 0
    assert not torch.equal(next(iter(loader))["x"], first["x"])
    assert loader.epoch == 1


def test_set_epoch_keeps_the_position_of_its_epoch_alone(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, ["x"], shuffle=True)
    loader.set_epoch(4)
    list(islice(iter(loader), 3))
    state = loader.state_dict()
    for epoch, num_batches in ((4, 7), (5, 10)):
        loader.load_state_dict(state)
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert len(list(loader)) == num_batches
        assert loader.epoch == epoch + 1
    with pytest.raises(ValueError, match="-1"):
        loader.set_epoch(-1)


def test_set_epoch_keeps_a_loaded_state_until_a_batch_is_taken(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, ["x"], shuffle=True)
    loader.set_epoch(4)
    list(islice(loader, 3))
    state = loader.state_dict()
    loader.load_state_dict(state)
    for _ in range(2):
        loader.set_epoch(4)
        batches = iter(loader)  # as a framework does that looks at the loader before it trains
        loader.set_epoch(4)
        assert loader.state_dict() == state
    del batches
    loader.set_epoch(4)
    assert loader.state_dict() == state
    assert len(list(loader)) == 7
    loader.set_epoch(4)  # a whole epoch again
    assert len(list(loader)) == 10


@pytest.mark.parametrize(("epoch", "following"), [(4, 5), (0, 0), (9, 9)])
def test_set_epoch_within_a_loop_leaves_the_loop_as_it_is(
    pipeline: Pipeline, epoch: int, following: int
) -> None:
    loader = pipeline.loader(100, ["x"], shuffle=True)
    loader.set_epoch(4)
    for count, _ in enumerate(loader, start=1):
        loader.set_epoch(epoch)
        assert loader.epoch == 4
        state = loader.state_dict()
        assert (state["epoch"], state["batches"]) == (4, count)
    assert loader.epoch == following
    assert loader.state_dict()["epoch"] == following


def test_the_epoch_of_a_loop_that_was_left_is_its_own(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, ["x"])
    for _ in loader:
        break
    assert (loader.epoch, loader.state_dict()["batches"]) == (0, 1)
    loader.set_epoch(0)  # from the beginning, as with a DistributedSampler
    assert loader.state_dict()["batches"] == 0
    assert len(list(loader)) == 10
    list(islice(loader, 2))
    next(iter(loader))
    assert loader.epoch == 2


def test_a_resume_reads_only_the_row_groups_that_remain(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, shuffle=True)
    list(islice(iter(loader), 8))
    state = loader.state_dict()
    loader.load_state_dict(state)
    batches = iter(loader)
    next(batches)
    done = state["position"]["done"]
    assert len(done) > 5  # of 15 groups; they are not among those that the feed was given
    assert set(done) <= set(loader.state_dict()["position"]["done"])
    assert loader.checksum["rows"] == 900


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"version": 9}, "version"),
        ({"version": True}, "version"),
        ({"epoch": "one"}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 1.0}, "epoch"),
        ({"epoch": 1 << 70}, "epoch"),
        ({"batches": -1}, "batches"),
        ({"batches": 11}, "at most 10"),
        ({"batches": None}, "batches"),
        ({"rank": 1}, "rank"),
        ({"rank": -1}, "rank"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": 1 << 40}, "world_size"),
        ({"piece_rows": 0}, "piece_rows"),
        ({"piece_rows": 1 << 40}, "piece_rows"),
        ({"position": None}, "position"),
        ({"config": []}, "config"),
        ({"config": {"version": 2}}, "pipeline"),
        ({"data_digest": 0}, "data_digest"),
        ({"more": 0}, "more"),
        ({"data_digest": "0" * 16}, "0000"),
        ({"world_size": 2, "batches": 3}, "ranks"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    pipeline: Pipeline, change: dict[str, Any], fact: str
) -> None:
    loader = pipeline.loader(100)

    def resume() -> None:
        loader.load_state_dict(loader.state_dict() | change)
        iter(loader)

    with pytest.raises(CheckpointError, match=fact):
        resume()


def test_a_state_of_another_pipeline_or_of_other_files_is_refused(
    pipeline: Pipeline, tmp_path: Any
) -> None:
    state = pipeline.loader(100).state_dict()
    for other in (pipeline.loader(50), pipeline.filter("even").loader(100)):
        with pytest.raises(CheckpointError, match=r"(?s)batchSize: 100 → 50|pipeline\[0\]"):
            other.load_state_dict(copy.deepcopy(state))
    for rows in (10, 11):
        pq.write_table(pa.table({"x": range(rows)}), tmp_path / "t.parquet")
        loader = Pipeline.read_parquet("t.parquet").loader(4, storage_root=str(tmp_path))
        if rows == 10:
            state = loader.state_dict()
    with pytest.raises(CheckpointError, match="rewritten"):
        loader.load_state_dict(state)


POSITIONS: list[tuple[Callable[[Any], object], str]] = [
    (lambda position: position.update(epoch=1), "epoch"),
    (lambda position: position.update(batches=-1), "batches"),
    (lambda position: position.update(samples="many"), "samples"),
    (lambda position: position["done"].append(99), "group 99"),
    (lambda position: position["done"].append(-1), "done"),
    (lambda position: position["done"].append(True), "done"),
    (lambda position: position.update(done={}), "done"),
    (lambda position: position["open"].update({"99": position["open"]["4"]}), "group 99"),
    (lambda position: position["open"].update({"0": position["open"]["4"]}), "group 0"),
    (lambda position: position["open"].update(x={}), "open"),
    (lambda position: position["open"]["4"]["rows"].update({"7": 1}), "chunks"),
    (lambda position: position["open"]["4"]["rows"].update({"0": -1}), "rows"),
    (lambda position: position["open"]["4"].update(whole=[7]), "chunks"),
    (lambda position: position["open"]["4"].update(numPieces=7), "chunks"),
    (lambda position: position["checksum"].update(sum="no digest"), "checksum"),
    (lambda position: position["counts"].append([1, 2, 3]), "steps"),
    (lambda position: position["counts"][0].append(1), "counts"),
    (lambda position: position["counts"][0].__setitem__(2, float("nan")), "counts"),
]


@pytest.mark.parametrize(("change", "fact"), POSITIONS)
def test_a_damaged_position_is_refused(
    pipeline: Pipeline, change: Callable[[Any], object], fact: str
) -> None:
    loader = pipeline.loader(100)
    list(islice(loader, 3))
    state = loader.state_dict()
    assert list(state["position"]["open"]) == ["4"]
    loader.load_state_dict(copy.deepcopy(state))
    change(state["position"])
    with pytest.raises(CheckpointError, match=fact):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [None, [], 7, {}, {"_snapshot": {}}, {"version": [[1]]}])
def test_what_is_no_state_is_refused(pipeline: Pipeline, state: Any) -> None:
    with pytest.raises(CheckpointError):
        pipeline.loader(100).load_state_dict(state)


def test_a_count_beyond_the_epoch_is_refused_once_its_batches_are_known(
    pipeline: Pipeline,
) -> None:
    loader = pipeline.filter("x < 500").loader(100)
    loader.load_state_dict(loader.state_dict() | {"batches": 6})
    with pytest.raises(CheckpointError, match="at most 5"):
        list(loader)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_hostile_state_is_refused_or_resumes(pipeline: Pipeline, data: st.DataObject) -> None:
    loader = pipeline.loader(300, ["x"], shuffle=True, num_threads=1)
    list(islice(loader, data.draw(st.integers(0, 2))))
    state = copy.deepcopy(loader.state_dict())
    holder: Any = state
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(holder[key], (dict, list)) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    holder[key] = data.draw(JSON)
    try:
        loader.load_state_dict(state)
        rows = [x for batch in loader for x in batch["x"].tolist()]
    except CheckpointError:
        return
    assert len(set(rows)) == len(rows)


def test_another_number_of_ranks_may_begin_an_epoch(pipeline: Pipeline) -> None:
    loader = pipeline.loader(500, ["x"])
    loader.load_state_dict(loader.state_dict() | {"world_size": 8, "epoch": 2})
    assert loader.epoch == 2
    assert len(list(loader)) == 2
