"""Batches packed without what their lists are filled up with: the same bits, fewer bytes."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.arrays.conversion import Arrays
from pipeline_runtime.arrays.packing import pack_arrays, unpack_arrays
from pipeline_runtime.batches import unpack_tensors


def same_bits(left: Arrays, right: Arrays) -> bool:
    return left.keys() == right.keys() and all(
        (a.dtype, a.shape, a.tobytes()) == (right[n].dtype, right[n].shape, right[n].tobytes())
        for n, a in left.items()
    )


PADDED_TYPES = ("int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")


@settings(max_examples=examples(20), deadline=None)
@given(
    dtype=st.sampled_from(PADDED_TYPES),
    fill=st.sampled_from([0, 1, -1, math.nan, -0.0]),
    seed=st.integers(0, 2**32 - 1),
    most=st.integers(0, 128),
)
def test_lists_that_are_mostly_filling_travel_without_it(
    dtype: str, fill: float, seed: int, most: int
) -> None:
    random = np.random.default_rng(seed)
    value = np.array(fill if dtype.startswith("float") else 0 if fill != fill else int(fill))
    with np.errstate(over="ignore"):
        padded = np.full((80, 128), value.astype(dtype))
    for row, length in zip(padded, random.integers(0, most + 1, 80), strict=True):
        row[:length] = random.integers(0, 3, length)  # the filling's own value among them
    arrays = {"a": padded, "b": np.ones(80, np.float32)}
    slots, buffer = pack_arrays(arrays, sparse=True)
    assert same_bits(unpack_arrays(slots, buffer), arrays)
    tensors = unpack_tensors(slots, torch.from_numpy(buffer))
    assert same_bits({name: tensor.numpy() for name, tensor in tensors.items()}, arrays)
    assert (slots[0].fill is not None) == (len(buffer) < padded.nbytes)
    if most < 50:
        assert len(buffer) < padded.nbytes
    if most == 128:
        assert slots[0].fill is None or len(buffer) < 0.75 * padded.nbytes


def test_lists_that_are_full_travel_as_they_are() -> None:
    full = np.arange(80 * 128).reshape(80, 128)
    slots, buffer = pack_arrays({"a": full}, sparse=True)
    assert slots[0].fill is None
    assert len(buffer) == full.nbytes
