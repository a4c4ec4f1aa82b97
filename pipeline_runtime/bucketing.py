"""Iceberg's bucket of each value of a column, by compiled kernels or by numpy.

Writers put rows into buckets by it, `sampleBuckets` chooses buckets, and bucket joins find the
side's rows by it. The hash is the one of Iceberg's specification, appendix B, "32-bit Hash
Requirements" (https://iceberg.apache.org/spec/): Spark, DuckDB and others give the same buckets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.hashing import aligned, bytes_of, is_bytes, primitive_values, split_instants
from pipeline_runtime.kernels import Kernels, select
from pipeline_runtime.kernels.murmur_constants import (
    BLOCK_FACTOR_1,
    BLOCK_FACTOR_2,
    FINAL_FACTOR_1,
    FINAL_FACTOR_2,
    HASH_FACTOR,
    HASH_INCREMENT,
)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

NO_BUCKET = -1  # of a null
# Java's Integer.MAX_VALUE: the specification drops the sign bit before the modulo.
_WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
_DAY_MILLISECONDS = 86_400_000
_BLOCK_BYTES = 4
_LONG_BYTES = 8


def bucket(column: pa.ChunkedArray | pa.Array, num_buckets: int, *, kernels: bool = True) -> Int32s:
    """Return the bucket of each value, in [0, num_buckets), and −1 for null.

    With g a divisor of `num_buckets`, `bucket(column, g)` is the same as the buckets modulo g.

    Args:
        column: integers, decimals, dates, times, timestamps, strings, binary or UUIDs; also encoded
            as a dictionary or in runs.
        kernels: False hashes by numpy, which gives the same.

    Raises:
        TypeError: Iceberg has no buckets of values of this type.
    """
    check_bucketable(column.type)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    buckets = np.empty(len(column), dtype=np.int32)
    first = 0
    for chunk in chunks:
        buckets[first : first + len(chunk)] = _bucket_array(chunk, num_buckets, kernels)
        first += len(chunk)
    return buckets


def check_bucketable(data_type: pa.DataType) -> None:
    """Raise TypeError, with what to do, unless Iceberg has buckets of values of the type."""
    if isinstance(data_type, pa.DictionaryType | pa.RunEndEncodedType):
        check_bucketable(data_type.value_type)
    elif isinstance(data_type, pa.BaseExtensionType):
        check_bucketable(data_type.storage_type)
    elif not pa.types.is_null(data_type) and _find_hasher(data_type) is None:
        raise TypeError(
            "must be an integer, decimal, date, time, timestamp, string, binary or UUID to have a "
            f"bucket, got {data_type}; cast it first"
        )


def _bucket_array(array: pa.Array, num_buckets: int, kernels: bool) -> Int32s:
    if isinstance(array, pa.ExtensionArray):
        return _bucket_array(array.storage, num_buckets, kernels)
    if isinstance(array, pa.RunEndEncodedArray):
        return _bucket_array(pc.run_end_decode(array), num_buckets, kernels)
    if isinstance(array, pa.DictionaryArray):
        return _bucket_dictionary(array, num_buckets, kernels)
    if pa.types.is_null(array.type):
        return np.full(len(array), NO_BUCKET, dtype=np.int32)
    hasher = _find_hasher(array.type)
    assert hasher is not None  # check_bucketable came first
    hashes = hasher(array, select(kernels, len(array)))
    buckets: Int32s = ((hashes & _WITHOUT_SIGN) % np.uint32(num_buckets)).view(np.int32)
    if array.null_count:
        buckets[array.is_null().to_numpy(zero_copy_only=False)] = NO_BUCKET
    return buckets


def _bucket_dictionary(array: pa.DictionaryArray, num_buckets: int, kernels: bool) -> Int32s:
    """Hash each value of the dictionary once, unless fewer rows than values use it."""
    if len(array) < len(array.dictionary):
        return _bucket_array(array.dictionary.take(array.indices), num_buckets, kernels)
    of_values = _bucket_array(array.dictionary, num_buckets, kernels)
    indices = pc.fill_null(array.indices.cast(pa.int64()), len(of_values)).to_numpy()
    buckets: Int32s = np.append(of_values, np.int32(NO_BUCKET))[indices]
    return buckets


_Hasher = Callable[[pa.Array, Kernels | None], U32]


def _find_hasher(data_type: pa.DataType) -> _Hasher | None:
    return next((hasher for accepts, hasher in _HASHERS if accepts(data_type)), None)


def _hash_integers(array: pa.Array, kernels: Kernels | None) -> U32:
    return _hash_longs(primitive_values(array), kernels)


def _hash_dates(array: pa.Array, kernels: Kernels | None) -> U32:
    """Hash the days since 1970."""
    if pa.types.is_date32(array.type):
        return _hash_longs(primitive_values(array.view(pa.int32())), kernels)
    milliseconds = primitive_values(array.view(pa.int64())).astype(np.int64)
    return _hash_longs(milliseconds // _DAY_MILLISECONDS, kernels)


def _hash_times(array: pa.Array, kernels: Kernels | None) -> U32:
    """Hash the microseconds since midnight."""
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    values = primitive_values(array.view(width)).astype(np.int64)
    if array.type.unit == "ns":
        return _hash_longs(values // 1_000, kernels)
    factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[array.type.unit]
    return _hash_longs(values * factor, kernels)


def _hash_timestamps(array: pa.Array, kernels: Kernels | None) -> U32:
    """Hash the microseconds since 1970, rounded down, as the specification has nanoseconds."""
    if array.type.unit == "us":
        return _hash_longs(primitive_values(array.view(pa.int64())), kernels)
    seconds, nanoseconds = split_instants(array)
    return _hash_longs(seconds * 1_000_000 + nanoseconds // 1_000, kernels)


def _hash_binary(array: pa.Array, kernels: Kernels | None) -> U32:
    return _hash_bytes(*bytes_of(array), kernels)


def _hash_decimals(array: pa.Array, kernels: Kernels | None) -> U32:
    """Hash the unscaled value as big-endian two's complement, with as few bytes as it needs."""
    width = array.type.byte_width
    data = array.buffers()[1]
    raw = np.frombuffer(data or b"", np.uint8, len(array) * width, array.offset * width)
    big_endian = raw.reshape(len(array), width)[:, ::-1]
    sign = np.where(big_endian[:, :1] >> 7, np.uint8(0xFF), np.uint8(0))
    # A leading byte that equals the sign says nothing, unless the next byte has another sign bit.
    is_sign = (big_endian[:, :-1] == sign) & ((big_endian[:, 1:] ^ sign) < 0x80)
    is_spare = np.logical_and.accumulate(is_sign, axis=1)
    is_used = np.ones(big_endian.shape, dtype=np.bool_)
    is_used[:, :-1] = ~is_spare
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(is_used.sum(axis=1), out=offsets[1:])
    return _hash_bytes(big_endian[is_used], offsets, kernels)


def _hash_longs(values: npt.NDArray[np.generic], kernels: Kernels | None) -> U32:
    """Hash integers as eight bytes, little-endian; unsigned ones of 64 bits by their bits."""
    words: Int64s = aligned(values.astype(np.int64, copy=False))
    if kernels is not None:
        hashes = np.empty(len(words), dtype=np.uint32)
        kernels.murmur_longs(words, hashes)
        return hashes
    halves = words.view(np.uint64)
    low = (halves & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    hashes = _add_block(np.zeros(len(words), dtype=np.uint32), low)
    hashes = _add_block(hashes, (halves >> np.uint64(32)).astype(np.uint32))
    return _finish(hashes, np.uint32(_LONG_BYTES))


def _hash_bytes(data: Bytes, offsets: Int64s, kernels: Kernels | None) -> U32:
    if kernels is not None:
        hashes = np.empty(len(offsets) - 1, dtype=np.uint32)
        kernels.murmur_bytes(aligned(data), aligned(offsets.view(np.uint64)), hashes)
        return hashes
    starts, lengths = offsets[:-1], np.diff(offsets)
    num_blocks, num_left = lengths // _BLOCK_BYTES, lengths % _BLOCK_BYTES
    hashes = np.zeros(len(lengths), dtype=np.uint32)
    for place in range(int(num_blocks.max(initial=0))):
        rows = np.flatnonzero(num_blocks > place)
        blocks = _gather(data, starts[rows] + place * _BLOCK_BYTES, _BLOCK_BYTES)
        hashes[rows] = _add_block(hashes[rows], blocks)
    for count in range(1, _BLOCK_BYTES):
        rows = np.flatnonzero(num_left == count)
        hashes[rows] ^= _scramble(_gather(data, starts[rows] + lengths[rows] - count, count))
    return _finish(hashes, lengths.astype(np.uint32))


def _gather(data: Bytes, starts: Int64s, count: int) -> U32:
    """Return `count` bytes from each start on as a little-endian word."""
    words = np.zeros(len(starts), dtype=np.uint32)
    for place in range(count):
        words |= data[starts + place].astype(np.uint32) << np.uint32(8 * place)
    return words


def _rotate(values: U32, count: int) -> U32:
    return np.asarray((values << np.uint32(count)) | (values >> np.uint32(32 - count)))


def _scramble(blocks: U32) -> U32:
    blocks = _rotate(blocks * np.uint32(BLOCK_FACTOR_1), 15)
    return blocks * np.uint32(BLOCK_FACTOR_2)


def _add_block(hashes: U32, blocks: U32) -> U32:
    hashes = _rotate(hashes ^ _scramble(blocks), 13)
    return hashes * np.uint32(HASH_FACTOR) + np.uint32(HASH_INCREMENT)


def _finish(hashes: U32, lengths: U32 | np.uint32) -> U32:
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(FINAL_FACTOR_1)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(FINAL_FACTOR_2)
    return hashes ^ (hashes >> np.uint32(16))


_HASHERS: tuple[tuple[Callable[[pa.DataType], bool], _Hasher], ...] = (
    (pa.types.is_integer, _hash_integers),
    (is_bytes, _hash_binary),
    (pa.types.is_decimal, _hash_decimals),
    (pa.types.is_date, _hash_dates),
    (pa.types.is_timestamp, _hash_timestamps),
    (pa.types.is_time, _hash_times),
)
