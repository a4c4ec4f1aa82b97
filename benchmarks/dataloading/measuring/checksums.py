"""Sums over delivered tensors that are equal for equal rows, in whatever order and batches.

    identities  the number of rows and a sum over their ids: cheap enough for every timed epoch
    proof       a checksum of hash(identity, value) for every column, over a whole epoch that is not
                timed: it binds each value to its row, and each item of a list to its place

`check_agreement` of the harness compares the sums of the loaders.
All sums are modulo 2⁶⁴. Shapes: B rows, N items of all lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.dataloading.workloads import ONCE, ROW_ID_COLUMNS
from pipeline_runtime.batches import OFFSETS_SUFFIX, REQUEST_INDEX, VALUES_SUFFIX, Batch
from pipeline_runtime.hashing import combine, mix64
from pipeline_runtime.request_batches import expand

Sums = dict[str, int]
Words = npt.NDArray[np.uint64]

_MODULUS = 1 << 64
_NAN_BITS = np.uint64(0x7FC00000)  # of float32: the one NaN that counts, whatever its payload
_INTEGER_OF: Mapping[str, Any] = {"f4": np.int32, "f8": np.int64}
# A value's place in its list enters its hash by this odd factor (SplitMix64's increment).
_PLACE = np.uint64(0x9E3779B97F4A7C15)


def identities_of(batch: Batch) -> Sums:
    """Return the number of rows, and Σh and Σh² of their identities."""
    hashes = _identity_B(batch)
    squares = hashes * hashes
    return {
        "rows": len(hashes),
        "identities": int(hashes.sum(dtype=np.uint64)),
        "identities squared": int(squares.sum(dtype=np.uint64)),
    }


def proof_of(batch: Batch) -> Sums:
    """Return the number of rows, their identities, and a checksum of each column.

    Columns that a batch carries once per request are expanded to rows first.
    """
    if REQUEST_INDEX in batch:
        names = {n.removesuffix(OFFSETS_SUFFIX).removesuffix(VALUES_SUFFIX) for n in batch}
        batch = expand(batch, sorted(names & ONCE))
        del batch[REQUEST_INDEX]
    sums, identity_B = identities_of(batch), _identity_B(batch)
    for name in sorted(batch):
        if name.endswith(OFFSETS_SUFFIX):
            continue
        plain = name.removesuffix(VALUES_SUFFIX)
        sums[plain] = int(combine(identity_B, _hash_rows(batch, plain)).sum(dtype=np.uint64))
    return sums


def add_sums(left: Sums, right: Mapping[str, int]) -> Sums:
    """Return the sums of two sets of rows together."""
    names = left.keys() | right.keys()
    return {name: (left.get(name, 0) + right.get(name, 0)) % _MODULUS for name in names}


def _identity_B(batch: Batch) -> Words:
    """Return a hash of each row's identity; a batch may have the request's id once."""
    request, position_B = (mix64(_words(batch[name].numpy())) for name in ROW_ID_COLUMNS)
    index_B = batch.get(REQUEST_INDEX)
    return combine(request if index_B is None else request[index_B.numpy()], position_B)


def _hash_rows(batch: Batch, name: str) -> Words:
    """Return a hash [B] of each row's value, whatever the shape of the column."""
    if name in batch:
        values = batch[name].numpy()
        if values.ndim == 1:
            return mix64(_words(values))
        offsets_B1 = np.arange(len(values) + 1) * values.shape[1]
        words_N = _words(values.reshape(-1))
    else:
        offsets_B1 = batch[name + OFFSETS_SUFFIX].numpy()
        words_N = _words(batch[name + VALUES_SUFFIX].numpy())
    lengths_B = np.diff(offsets_B1)
    places_N = np.arange(len(words_N)) - np.repeat(offsets_B1[:-1], lengths_B)
    mixed_N = mix64(words_N + places_N.astype(np.uint64) * _PLACE)
    ends_N1 = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed_N, dtype=np.uint64)])
    sums_B = ends_N1[offsets_B1[1:]] - ends_N1[offsets_B1[:-1]]
    return combine(sums_B, lengths_B.astype(np.uint64))


def _words(values: npt.NDArray[Any]) -> Words:
    """Return each value as 64 bits: an integer's number, or a float's bits."""
    integer = _INTEGER_OF.get(values.dtype.str[1:])
    bits = values if integer is None else values.view(integer)
    words = bits.astype(np.int64).view(np.uint64)
    if values.dtype.kind == "f":
        words[np.isnan(values)] = _NAN_BITS
    return words
