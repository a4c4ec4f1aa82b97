"""MurmurHash3 for x86 with 32 bits and seed 0, by which Iceberg puts rows into buckets.

`compiled` compiles both functions by numba. `bucketing` has the plain path.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pipeline_runtime.kernels.murmur_constants import (
    BLOCK_FACTOR_1,
    BLOCK_FACTOR_2,
    FINAL_FACTOR_1,
    FINAL_FACTOR_2,
    HASH_FACTOR,
    HASH_INCREMENT,
)

# 32-bit arithmetic is done on uint64 and cut to the lower half: numba would widen uint32 anyway.
_LOW = np.uint64(0xFFFFFFFF)
_C1, _C2 = np.uint64(BLOCK_FACTOR_1), np.uint64(BLOCK_FACTOR_2)
_M, _N = np.uint64(HASH_FACTOR), np.uint64(HASH_INCREMENT)
_F1, _F2 = np.uint64(FINAL_FACTOR_1), np.uint64(FINAL_FACTOR_2)
_0, _8 = np.uint64(0), np.uint64(8)
_13, _15, _16 = np.uint64(13), np.uint64(15), np.uint64(16)
_17, _19, _32 = np.uint64(17), np.uint64(19), np.uint64(32)


@numba.njit(inline="always")
def _scramble(block: Any) -> Any:
    block = (block * _C1) & _LOW
    block = ((block << _15) | (block >> _17)) & _LOW
    return (block * _C2) & _LOW


@numba.njit(inline="always")
def _add_block(hashed: Any, block: Any) -> Any:
    hashed ^= _scramble(block)
    hashed = ((hashed << _13) | (hashed >> _19)) & _LOW
    return (hashed * _M + _N) & _LOW


@numba.njit(inline="always")
def _finish(hashed: Any, length: Any) -> Any:
    hashed ^= length
    hashed = ((hashed ^ (hashed >> _16)) * _F1) & _LOW
    hashed = ((hashed ^ (hashed >> _13)) * _F2) & _LOW
    return hashed ^ (hashed >> _16)


def murmur_longs(values: Any, out: Any) -> None:
    """Hash each value as eight bytes, little-endian."""
    for row in range(len(values)):
        word = np.uint64(values[row])
        out[row] = np.uint32(_finish(_add_block(_add_block(_0, word & _LOW), word >> _32), _8))


def murmur_bytes(values: Any, offsets: Any, out: Any) -> None:
    """Hash the bytes from each offset up to the next."""
    for row in range(len(out)):
        start, end = offsets[row], offsets[row + np.uint64(1)]
        hashed, block, shift = _0, _0, _0
        for place in range(start, end):
            block |= np.uint64(values[place]) << shift
            shift += _8
            if shift == _32:
                hashed = _add_block(hashed, block)
                block, shift = _0, _0
        if shift:
            hashed ^= _scramble(block)
        out[row] = np.uint32(_finish(hashed, end - start))
