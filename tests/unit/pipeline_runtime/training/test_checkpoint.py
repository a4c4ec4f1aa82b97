"""Checkpoints: whole or absent, refused for another run, and kept if a newer one fails."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import assert_told
from saved_checkpoints import HASH, make_store, save

from pipeline_runtime.errors import CheckpointError, StoreError
from pipeline_runtime.training.checkpoints.checkpoint import find_resumable
from pipeline_runtime.training.position import Position


@contextmanager
def no_room(num_bytes: int = 100) -> Iterator[None]:
    """Limit the size of files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_saved_checkpoint_is_loaded(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 7)
    header = store.headers()[0]
    assert (header.step, header.positions) == (7, (Position().to_json(),))
    assert torch.equal(store.load(header)["user"]["weight"], torch.full((3,), 7.0))


def test_only_the_newest_whole_checkpoints_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=2)
    for step in (1, 2, 3):
        save(store, step)
    assert [header.step for header in store.headers()] == [3, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-0000000002",
        "step-0000000003",
    ]


def truncate_state(folder: Path) -> None:
    state = folder / "state.pt"
    state.write_bytes(state.read_bytes()[:-1])


def remove_header(folder: Path) -> None:
    (folder / "checkpoint.json").unlink()


def cut_header(folder: Path) -> None:
    header = folder / "checkpoint.json"
    header.write_text(header.read_text()[:20])


def leave_partial_header(folder: Path) -> None:
    (folder / "checkpoint.json").rename(folder / "checkpoint.json.partial")


TEARS = [truncate_state, remove_header, cut_header, leave_partial_header]


@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: tear.__name__)
def test_a_torn_checkpoint_is_ignored(tmp_path: Path, tear: Any) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    save(store, 2)
    tear(tmp_path / "step-0000000002")
    assert [header.step for header in store.headers()] == [1]


def test_damage_that_keeps_the_size_is_found_by_the_hash(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    state = tmp_path / "step-0000000001/state.pt"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 0xFF
    state.write_bytes(data)
    with pytest.raises(StoreError, match="SHA-256"):
        store.load(store.headers()[0])


def test_another_version_prints_both_sides(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    header = tmp_path / "step-0000000001/checkpoint.json"
    value = json.loads(header.read_text()) | {"version": 99}
    del value["headerSha256"]
    header.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=r"version.*\b2\b.*\b99\b"):
        store.headers()


def test_the_newest_run_with_this_hash_is_resumed(tmp_path: Path) -> None:
    newer, older = make_store(tmp_path / "b"), make_store(tmp_path / "a")
    save(older, 5)
    save(newer, 9, run_hash="b" * 16)
    found = find_resumable([newer, older], HASH, {})
    assert found is not None
    assert found.header.step == 5


def test_a_checkpoint_of_another_run_is_refused_with_differences(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 9, run_hash="b" * 16, training={"batchSize": 4096})
    with pytest.raises(CheckpointError) as caught:
        find_resumable([store], HASH, {"training": {"batchSize": 256}})
    text = str(caught.value)
    assert_told(text, "… bbbbbbbbbbbbbbbb … aaaaaaaaaaaaaaaa")
    assert "\n  training.batchSize: 4096 → 256\n" in text


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert find_resumable([make_store(tmp_path / "none")], HASH, {}) is None


def test_a_refused_write_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    with no_room(), pytest.raises(StoreError, match=r"[\d,]+ bytes"):
        save(store, 2)
    assert [header.step for header in store.headers()] == [1]


def test_a_second_checkpoint_of_a_step_is_another_folder(tmp_path: Path) -> None:
    """An epoch's last step may be saved when it is due, and again with the evaluation."""
    store = make_store(tmp_path)
    first = save(store, 16)
    with no_room(), pytest.raises(StoreError):
        save(store, 16)
    assert [header.uri for header in store.headers()] == [first]
    (tmp_path / "step-0000000016-02").mkdir()  # torn by a kill
    third = save(store, 16)
    assert third.endswith("step-0000000016-03")
    assert [header.uri for header in store.headers()] == [third, first]
    assert not (tmp_path / "step-0000000016-02").exists()


def test_failing_to_remove_an_old_checkpoint_keeps_the_new_one(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=1)
    (tmp_path / "step-0000000001").write_text("no folder, so it cannot be removed as one")
    with pytest.raises(StoreError, match="step-0000000001"):
        save(store, 2)
    assert [header.step for header in store.headers()] == [2]
