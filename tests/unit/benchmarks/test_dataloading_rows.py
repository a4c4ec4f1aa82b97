"""The benchmark of loaders recognises equal rows."""

from typing import Any

import pytest
import torch

from benchmarks.dataloading.measuring.checksums import identities_of, proof_of
from benchmarks.harness.errors import DisagreementError
from benchmarks.harness.rounds import check_agreement
from pipeline_runtime.batches import Batch


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
