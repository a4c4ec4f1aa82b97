"""The benchmark of loaders recognises equal rows, and peers work as numpy does."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from benchmarks.dataloading.measuring.checksums import identities_of, proof_of
from benchmarks.dataloading.work import arrow_work, numba_work
from benchmarks.dataloading.work.batching import cut
from benchmarks.dataloading.workloads import DOWNSAMPLE_SEED, HASH_SEED, KEEP_PERCENT, NUM_BUCKETS
from benchmarks.harness.errors import DisagreementError
from benchmarks.harness.rounds import check_agreement
from pipeline_runtime import hashing
from pipeline_runtime.batches import Batch

# --- the peers' kernels ---------------------------------------------------------------------------


def test_kernels_hash_as_lastmile_does() -> None:
    ids = pa.array(np.random.default_rng(5).integers(-(2**62), 2**62, 5000))
    hashes = hashing.hash_columns([ids], 0)
    kept = hashing.keep_mask(hashes, DOWNSAMPLE_SEED, KEEP_PERCENT)
    np.testing.assert_array_equal(arrow_work.is_drawn(ids), kept)
    for values in (ids, pa.array([-1, 5], pa.int8())):
        buckets = hashing.bucket_of(values, HASH_SEED, NUM_BUCKETS)
        np.testing.assert_array_equal(arrow_work.hash_ids(values), buckets)


def test_kernels_gather_and_pad_lists() -> None:
    lists = [[], [1], list(range(-100, 100)), [7] * 120] * 50
    offsets = np.cumsum([0, *map(len, lists)])
    rows = np.arange(0, len(lists), 3)
    for dtype in (np.int64, np.int8):
        values = np.concatenate(lists).astype(dtype)
        taken, ends = numba_work.take_lists(values, offsets, rows)
        for place, row in enumerate(rows):
            assert taken[ends[place] : ends[place + 1]].tolist() == lists[row]
    padded = numba_work.pad_rows(np.concatenate(lists).astype(np.int64), offsets, rows, 128)
    assert padded.tolist() == [(lists[row] + [0] * 128)[:128] for row in rows]


# --- equal rows -----------------------------------------------------------------------------------


def make_batch() -> Batch:
    """Four rows with a number, a fixed-size list and a ragged one."""
    return {
        "request_id": torch.tensor([1, 1, 2, 2]),
        "position": torch.tensor([0, 1, 0, 1], dtype=torch.int8),
        "dense": torch.tensor([0.5, float("nan"), 2.0, -1.0]),
        "padded": torch.tensor([[1, 2], [3, 0], [4, 5], [0, 0]]),
        "ragged.values": torch.tensor([7, 8, 9]),
        "ragged.offsets": torch.tensor([0, 2, 2, 3, 3]),
        "row_weight": torch.ones(4),
    }


def with_column(name: str, values: list[Any]) -> Batch:
    batch = make_batch()
    return {**batch, name: torch.tensor(values, dtype=batch[name].dtype)}


def reversed_rows() -> Batch:
    batch = {n: t.flip(0) for n, t in make_batch().items() if not n.startswith("ragged")}
    ragged = {
        "ragged.values": torch.tensor([9, 7, 8]),
        "ragged.offsets": torch.tensor([0, 0, 1, 1, 3]),
    }
    return batch | ragged


def test_checksums_do_not_depend_on_the_order_of_rows() -> None:
    check_agreement("test", {"one": proof_of(make_batch()), "other": proof_of(reversed_rows())})


def by_request(batch: Batch) -> Batch:
    """The same rows, the key of each request once."""
    once = {"request_id": torch.tensor([1, 2]), "request_index": torch.tensor([0, 0, 1, 1])}
    return {**batch, **once}


def test_checksums_do_not_depend_on_what_is_carried_once() -> None:
    found = {"each": proof_of(make_batch()), "once": proof_of(by_request(make_batch()))}
    check_agreement("test", found)
    assert identities_of(by_request(make_batch())) == identities_of(make_batch())
    wrong = {**by_request(make_batch()), "request_index": torch.tensor([0, 1, 1, 1])}
    assert identities_of(wrong) != identities_of(make_batch())


@pytest.mark.parametrize(
    ("batch", "column"),
    [
        pytest.param(with_column("dense", [0.5, 0.0, 2.0, -1.0]), "dense", id="a lost null"),
        pytest.param(
            with_column("dense", [2.0, float("nan"), 0.5, -1.0]), "dense", id="two values swapped"
        ),
        pytest.param(
            with_column("padded", [[2, 1], [3, 0], [4, 5], [0, 0]]),
            "padded",
            id="items of a list in another order",
        ),
        pytest.param(
            with_column("ragged.offsets", [0, 1, 2, 3, 3]), "ragged", id="an item in another list"
        ),
        pytest.param(
            with_column("request_id", [1, 1, 2, 3]), "identities", id="another row's identity"
        ),
    ],
)
def test_a_corrupted_batch_is_refused_by_the_column_that_differs(batch: Batch, column: str) -> None:
    good = proof_of(make_batch())
    with pytest.raises(DisagreementError, match=rf"bad .*good .*'{column}'"):
        check_agreement("heavy work", {"good": good, "bad": proof_of(batch)})


def test_batches_are_cut_to_size_whatever_the_pieces() -> None:
    pieces = [{"row_weight": torch.ones(rows)} for rows in (0, 4000, 97, 0, 8192, 3)]
    assert [len(batch["row_weight"]) for batch in cut(pieces, 4096)] == [4096, 4096, 4096, 4]


def test_requests_are_cut_with_their_rows_and_joined_again() -> None:
    sizes = [1, 3000, 2, 2000, 1500, 900]  # rows of each request; the second piece has the last two
    requests = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    pieces = [
        {
            "row_weight": torch.ones(len(part)),
            "request_index": part - first,
            "request_id": torch.arange(first, int(part[-1]) + 1),
            "user_sequence.values": torch.arange(first, int(part[-1]) + 1),
            "user_sequence.offsets": torch.arange(int(part[-1]) + 2 - first),
        }
        for first, part in ((0, requests[:5003]), (4, requests[5003:]))
    ]
    batches = list(cut(pieces, 4096))
    assert [len(batch["row_weight"]) for batch in batches] == [4096, 3307]
    ids = [batch["request_id"][batch["request_index"]] for batch in batches]
    assert torch.equal(torch.cat(ids), requests)
    for batch in batches:
        assert torch.equal(batch["user_sequence.values"], batch["request_id"])
        assert len(batch["user_sequence.offsets"]) == len(batch["request_id"]) + 1
        assert set(batch["request_index"].tolist()) == set(range(len(batch["request_id"])))
