"""Parquet's codecs inside a kernel: zstd's and lz4's C functions, and snappy.

`sources.parquet.decoding.codecs` finds the functions' addresses. Pages are untrusted: neither these
functions nor `_decompress_snappy` read or write outside of the given memory.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pipeline_runtime.kernels.chunks import LZ4, SNAPPY, ZSTD
from pipeline_runtime.kernels.intrinsics import (
    call_lz4,
    call_zstd,
    copy_bytes,
    load_word,
    store_word,
)

_MAX_SHIFT = 28  # of a varint of 32 bits
_LONG_LITERAL = 60  # from here on its length stands in 1 to 4 bytes of its own


@numba.njit
def decompress(codec: int, function: int, state: int, data: Any, out: Any) -> bool:
    """Fill `out` from `data`; whether it is exactly as long as what came out.

    Args:
        codec: one of `chunks`; LZ4 is a block, which Parquet calls LZ4_RAW.
        function: the address of what does it, for zstd and LZ4.
        state: of a ZSTD_DCtx that no other thread uses meanwhile.
    """
    source, sink = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    if codec == ZSTD:
        return bool(call_zstd(function, state, sink, len(out), source, len(data)) == len(out))
    if codec == LZ4:
        return bool(call_lz4(function, source, sink, len(data), len(out)) == len(out))
    if codec == SNAPPY:
        return bool(_decompress_snappy(data, out))
    return False


@numba.njit
def _decompress_snappy(data: Any, out: Any) -> bool:
    """Snappy's raw format (google/snappy, format_description.txt), as `decompress`.

    Elements begin with a byte, whose two lowest bits say what follows: bytes as they are, or how
    far behind there are the same, as a number of one, two or four bytes.
    """
    shift = 0
    at: Any = 0
    size: Any = 0
    count: Any = 0
    behind: Any = 0
    while True:
        if at == len(data) or shift > _MAX_SHIFT:
            return False
        byte = np.int64(data[at])
        size |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    if size != len(out):
        return False
    stop = len(data)
    done: Any = 0
    while at < stop:
        tag = np.int64(data[at])
        kind, count = tag & 3, (tag >> 2) + 1
        at += 1
        if kind == 0:
            num_bytes = count - _LONG_LITERAL
            if num_bytes > 0:
                if num_bytes > stop - at:
                    return False
                count = 1
                for index in range(num_bytes):
                    count += np.int64(data[at + index]) << (8 * index)
                at += num_bytes
            if count > stop - at or count > len(out) - done:
                return False
            copy_bytes(data, at, out, done, count)
            at, done = at + count, done + count
            continue
        num_bytes = 1 << (kind - 1)
        if num_bytes > stop - at:
            return False
        behind = 0
        for index in range(num_bytes):
            behind |= np.int64(data[at + index]) << (8 * index)
        at += num_bytes
        if kind == 1:
            behind |= (tag >> 5) << 8
            count = 4 + ((tag >> 2) & 7)
        if behind == 0 or behind > done or count > len(out) - done:
            return False
        if behind >= 8 and count + 7 <= len(out) - done:  # whole words: the rest is written over
            for index in range(0, count, 8):
                store_word(load_word(out, done + index - behind), out, done + index)
        else:
            for index in range(done, done + count):
                out[index] = out[index - behind]
        done += count
    return bool(done == len(out))
