"""Damaged checkpoints: a resume skips them, and no content of a header raises other errors."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from property_tests import examples
from saved_checkpoints import HASH, make_store, save

from pipeline_runtime.config import diff_configs
from pipeline_runtime.errors import CheckpointError, StoreError
from pipeline_runtime.training.checkpoints.checkpoint import (
    CheckpointStore,
    Resumable,
    find_resumable,
)
from pipeline_runtime.training.checkpoints.header import CHECKPOINT_VERSION, parse_header
from pipeline_runtime.training.position import Position, redistribute


def find(*stores: CheckpointStore) -> Resumable | None:
    return find_resumable(stores, HASH, {})


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def flip_the_state(folder: Path) -> None:
    flip_a_bit(folder / "state.pt")


def flip_the_header(folder: Path) -> None:
    flip_a_bit(folder / "checkpoint.json")


def truncate_the_state(folder: Path) -> None:
    os.truncate(folder / "state.pt", 10)


def remove_the_state(folder: Path) -> None:
    (folder / "state.pt").unlink()


def empty_the_header(folder: Path) -> None:
    (folder / "checkpoint.json").write_bytes(b"")


def pickle_the_header(folder: Path) -> None:
    (folder / "checkpoint.json").write_bytes(pickle.dumps({"version": CHECKPOINT_VERSION}))


DAMAGES = [
    flip_the_state,
    flip_the_header,
    truncate_the_state,
    remove_the_state,
    empty_the_header,
    pickle_the_header,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_checkpoints_are_skipped_one_by_one(tmp_path: Path, damage: Any) -> None:
    store = make_store(tmp_path, keep=4)
    uris = [save(store, step) for step in (1, 2, 3)]
    for uri in uris[1:]:
        damage(Path(uri))
    found = find(store)
    assert found is not None
    assert found.header.uri == uris[0]
    assert found.damaged == (uris[2], uris[1])
    assert torch.equal(found.store.load(found.header)["user"]["weight"], torch.full((3,), 1.0))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_checkpoints_alone_are_refused_by_name(tmp_path: Path, damage: Any) -> None:
    store = make_store(tmp_path)
    uris = [save(store, step) for step in (1, 2)]
    for uri in uris:
        damage(Path(uri))
    with pytest.raises(StoreError) as caught:
        find(store)
    assert all(uri in str(caught.value) for uri in uris)


def test_an_unfinished_checkpoint_is_not_damage(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    (tmp_path / "step-0000000001").mkdir()
    (tmp_path / "step-0000000001/state.pt").write_bytes(b"half")
    (tmp_path / "step-0000000001/checkpoint.json.partial").write_bytes(b"{}")
    assert find(store) is None


def test_a_damaged_checkpoint_is_ignored_and_removed_later(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=2)
    for step in (1, 2, 3):
        save(store, step)
    flip_the_state(tmp_path / "step-0000000003")
    found = find(store)
    assert found is not None
    assert [header.step for header in found.store.headers()] == [2]
    again = save(found.store, 3)
    assert [header.step for header in found.store.headers()] == [3, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-0000000002",
        again.rsplit("/", 1)[1],
    ]


def test_damage_is_reported_before_checkpoints_of_another_run(tmp_path: Path) -> None:
    mine, other = make_store(tmp_path / "b"), make_store(tmp_path / "a")
    save(other, 9, run_hash="b" * 16)
    flip_the_state(Path(save(mine, 5)))
    with pytest.raises(StoreError):
        find(mine, other)


@pytest.mark.parametrize("damage", [flip_the_state, truncate_the_state, remove_the_state])
def test_damage_of_another_run_is_ignored(tmp_path: Path, damage: Any) -> None:
    mine, other = make_store(tmp_path / "a"), make_store(tmp_path / "b")
    damage(Path(save(other, 9, run_hash="b" * 16)))
    with pytest.raises(CheckpointError):
        find(other)
    save(mine, 5)
    found = find(other, mine)
    assert found is not None
    assert (found.header.name, found.damaged) == ("step-0000000005", ())


def test_a_header_of_an_earlier_release_has_no_digest(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    header = Path(save(store, 1)) / "checkpoint.json"
    value = json.loads(header.read_bytes())
    assert len(value.pop("headerSha256")) == 64
    header.write_text(json.dumps(value))
    found = find(store)
    assert found is not None
    assert found.header.step == 1


def test_every_bit_of_a_header_matters(tmp_path: Path) -> None:
    header = Path(save(make_store(tmp_path), 1)) / "checkpoint.json"
    content = header.read_bytes()
    body = content.index(b', "headerSha256"')
    whole = parse_header("x", content)
    for place in range(body):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            assert parse_header("x", bytes(flipped)) is None
    assert whole is not None


@pytest.mark.parametrize("version", [1, 3, 99])
def test_another_version_is_refused_before_older_ones_are_tried(
    tmp_path: Path, version: int
) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    header = Path(save(store, 2)) / "checkpoint.json"
    header.write_text(json.dumps({"version": version, "anything": "else"}))
    with pytest.raises(CheckpointError, match=str(version)):
        find(store)


# --- property: any content is either a usable header or none --------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@st.composite
def headers(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw contents of a header file: garbage, parts of a header, and headers with wrong fields."""
    kind = draw(st.sampled_from(["bytes", "cut", "spliced", "json", "pickle", "nested", "field"]))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "cut":
        return whole[: draw(st.integers(0, len(whole)))]
    if kind == "spliced":
        place = draw(st.integers(0, len(whole)))
        return whole[:place] + draw(st.binary(max_size=9)) + whole[place:]
    if kind == "json":
        return json.dumps(draw(json_values)).encode()
    if kind == "pickle":
        return pickle.dumps(draw(json_values), protocol=draw(st.integers(0, 5)))
    if kind == "nested":
        depth = draw(st.sampled_from([10, 200, 100_000]))
        return b'{"version": 2, "runConfig": ' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)
    value = json.loads(whole)
    del value["headerSha256"]
    places: list[Any] = [value, value["positions"][0], value["positions"][0]["checksum"]]
    place = draw(st.sampled_from(places))
    huge = st.sampled_from([10**30, -1, 2**63, 1e308, "9" * 5000])
    place[draw(st.sampled_from(sorted(place)))] = draw(json_values | huge)
    return json.dumps(value).encode()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointStore, Path, bytes]:
    store = make_store(tmp_path_factory.mktemp("saved"))
    header = Path(save(store, 1)) / "checkpoint.json"
    return store, header, header.read_bytes()


@hypothesis_settings(max_examples=examples(100))
@given(data=st.data())
def test_any_header_is_usable_or_none(
    saved: tuple[CheckpointStore, Path, bytes], data: st.DataObject
) -> None:
    store, path, whole = saved
    path.write_bytes(data.draw(headers(whole)))
    try:
        found = store.headers()
    except CheckpointError:  # another version, which must be a number
        assert isinstance(json.loads(path.read_bytes())["version"], int)
        return
    for header in found:
        positions = [Position.from_json(value) for value in header.positions]
        assert len(redistribute(positions, 3)) == 3
        diff_configs(header.run_config, {"a": 1})


# --- files and folders are synced -----------------------------------------------------------------


def test_state_and_folders_are_synced_before_the_header_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "run/checkpoints")
    folder = tmp_path / "run/checkpoints/step-0000000001"
    before_name: list[Path] = []
    after_name: list[Path] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced = after_name if (folder / "checkpoint.json").exists() else before_name
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    save(store, 1)
    files = [folder / "state.pt", folder / "checkpoint.json.partial"]
    assert {*files, folder, *folder.parents[:3]} <= set(before_name)
    assert after_name == [folder]
