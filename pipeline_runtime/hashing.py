"""The one hash of Lastmile: of values, of row identities, of seeds. Numpy only, no loop over rows.

Sampling, bucketing and joins stand on it, and a sample must keep the same rows in every release, so
what comes out for a value never changes: `tests/unit/pipeline_runtime/test_hashing.py` holds golden
values. Equal values hash equal whatever their width or encoding (int8 and uint64, string and
large_string, a dictionary and its values, seconds and nanoseconds). The hash is not cryptographic.

The mixer is the finaliser of SplitMix64, see `kernels.splitmix`. Compiled kernels, where a caller
hands them in, give the same bits sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.kernels import Kernels
from pipeline_runtime.kernels.splitmix import GOLDEN, STAFFORD_1, STAFFORD_2

U64 = npt.NDArray[np.uint64]
Column: TypeAlias = pa.Array | pa.ChunkedArray

_MASK = (1 << 64) - 1
# The width of a checksum's sums.
_MODULUS = 1 << 64
# One constant a kind of value, so that 1, "\x01" and day 1 differ: ASCII of the kind's name.
_INTEGER = int.from_bytes(b"integer.", "big")
_BYTES = int.from_bytes(b"bytes...", "big")
_DATE = int.from_bytes(b"date....", "big")
_TIMESTAMP = int.from_bytes(b"timestmp", "big")
_DURATION = int.from_bytes(b"duration", "big")
_TIME = int.from_bytes(b"time....", "big")
_NULL = int.from_bytes(b"null....", "big")
_PATH = int.from_bytes(b"position", "big")

# Rows hashed at once, so that the temporaries (a few words a row) stay in the second-level cache.
_BLOCK_ROWS = 16_384
_WORD_BYTES = 8
_DAY_MILLISECONDS = 86_400_000
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NANOSECONDS = 1_000_000_000


def mix64(values: U64) -> U64:
    """SplitMix64's finaliser of each value: a bijection in which every bit depends on every bit."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(STAFFORD_1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(STAFFORD_2)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def combine(left: U64, right: U64) -> U64:
    """Combine two hashes to one, which depends on their order."""
    return mix64(left * np.uint64(GOLDEN) + right)


def seeded(hashes: U64, seed: int) -> U64:
    """The hashes drawn anew for a seed: a row's draw, uniform in [0, 2**64)."""
    return mix64(hashes ^ np.uint64(_mix_int(seed)))


def keep_mask(hashes: U64, seed: int, keep_percent: Fraction | int) -> npt.NDArray[np.bool_]:
    """Return True for the rows that a sample of `keep_percent` (0 to 100) of this seed keeps.

    With one seed, the rows of a smaller percentage are a subset of those of a larger one.
    """
    if keep_percent >= 100:
        return np.ones(len(hashes), dtype=np.bool_)
    threshold = np.uint64(keep_percent * (1 << 64) // 100)
    return np.asarray(seeded(hashes, seed) < threshold)


def position_hash(path: str, row_group: int, first_row: int, num_rows: int) -> U64:
    """Return the identity of rows without a key: their place in a file.

    `path` is relative to the table's root, `first_row` counts from the row group's start.
    """
    path_hash = hash_columns([pa.array([path], pa.string())], seed=_PATH)[0]
    group = _mix_int(int(path_hash) + GOLDEN * (row_group + 1))
    rows = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
    return combine(np.full(num_rows, group, dtype=np.uint64), mix64(rows))


def hash_columns(columns: Sequence[Column], seed: int, kernels: Kernels | None = None) -> U64:
    """Return one hash per row over the columns, in their order; null has a hash of its own.

    Args:
        columns: equally long; integers, booleans, strings, binary, dates, times, timestamps (time
            zone ignored), durations, and dictionaries of those.
        seed: any integer; another seed gives unrelated hashes.
        kernels: do it where they can.

    Raises:
        TypeError: a type without exact equality (float, decimal), or of many values (list).
    """
    if not columns:
        raise ValueError("hash_columns: must have at least one column, got none")
    hashes = np.full(len(columns[0]), _mix_int(seed), dtype=np.uint64)
    for column in columns:
        if kernels is None:
            hashes = combine(hashes, hash_values(column))
        else:
            kernels.combine(hash_values(column, kernels), hashes)
    return hashes


def hash_values(column: Column, kernels: Kernels | None = None) -> U64:
    """The hash of each value of one column, without a seed; by `kernels` where they can."""
    check_hashable(column.type)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    hashes = np.empty(len(column), dtype=np.uint64)
    first = 0
    for chunk in chunks:
        for start in range(0, len(chunk), _block_rows(chunk)):
            block = chunk.slice(start, _block_rows(chunk))
            hashes[first : first + len(block)] = _hash_array(block, kernels)
            first += len(block)
    return hashes


def bucket_of(
    column: Column, seed: int, num_buckets: int, kernels: Kernels | None = None
) -> npt.NDArray[np.int64]:
    """A bucket in [0, num_buckets) for each value; `num_buckets` is below 2**32.

    The upper half of the seeded hash is scaled down rather than divided, which is several times
    faster (Lemire, "Fast random integer generation in an interval", 2019).
    """
    hashes = hash_values(column, kernels)
    if kernels is not None:
        kernels.bucket(np.uint64(_mix_int(seed)), np.uint64(num_buckets), hashes)
        return hashes.view(np.int64)
    for first in range(0, len(hashes), _BLOCK_ROWS):
        block = seeded(hashes[first : first + _BLOCK_ROWS], seed)
        block >>= np.uint64(32)
        block *= np.uint64(num_buckets)
        np.right_shift(block, np.uint64(32), out=hashes[first : first + _BLOCK_ROWS])
    return hashes.view(np.int64)


def _block_rows(array: pa.Array) -> int:
    """Return the number of rows hashed together: all of a dictionary, to hash its values once."""
    return max(1, len(array)) if isinstance(array, pa.DictionaryArray) else _BLOCK_ROWS


def check_hashable(data_type: pa.DataType) -> None:
    """Raise TypeError, with what to do, unless values of the type can identify a row."""
    if isinstance(data_type, pa.DictionaryType | pa.RunEndEncodedType):
        check_hashable(data_type.value_type)
    elif isinstance(data_type, pa.BaseExtensionType):
        check_hashable(data_type.storage_type)
    elif pa.types.is_floating(data_type) or pa.types.is_decimal(data_type):
        raise TypeError(
            f"must be of a type with exact equality, got {data_type}; cast it to an integer or a "
            "string first"
        )
    elif not pa.types.is_null(data_type) and _hasher_of(data_type) is None:
        raise TypeError(
            f"must be an integer, bool, string, binary, date, time or timestamp, got {data_type}"
        )


def _hash_array(array: pa.Array, kernels: Kernels | None) -> U64:
    if isinstance(array, pa.ExtensionArray):
        return _hash_array(array.storage, kernels)
    if isinstance(array, pa.RunEndEncodedArray):
        return _hash_array(pc.run_end_decode(array), kernels)
    if isinstance(array, pa.DictionaryArray):
        return _hash_dictionary(array, kernels)
    if pa.types.is_null(array.type):
        return np.full(len(array), _mix_int(_NULL), dtype=np.uint64)
    hashes = _hash_compiled(array, kernels) if kernels is not None else None
    if hashes is None:
        hasher = _hasher_of(array.type)
        assert hasher is not None  # check_hashable came first
        hashes = hasher(array)
    if array.null_count:
        hashes[_is_null(array)] = np.uint64(_mix_int(_NULL))
    return hashes


def _hash_compiled(array: pa.Array, kernels: Kernels) -> U64 | None:
    """Hash like `_hash_integers` and `_hash_bytes`, compiled; None for other types."""
    hashes = np.empty(len(array), dtype=np.uint64)
    if pa.types.is_integer(array.type):
        kernels.hash_integers(aligned(primitive_values(array)), np.uint64(_INTEGER), hashes)
        return hashes
    if not is_bytes(array.type):
        return None
    data, offsets = bytes_of(array)
    kernels.hash_bytes(data, aligned(offsets.view(np.uint64)), np.uint64(_BYTES), hashes)
    return hashes


def aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array at a multiple of its items' width, where kernels want it: copied if it is not."""
    return np.require(values, requirements="A")


def _hash_dictionary(array: pa.DictionaryArray, kernels: Kernels | None) -> U64:
    """Hash each value of the dictionary once, unless fewer rows than values use it."""
    if len(array) < len(array.dictionary):
        return hash_values(array.dictionary.take(array.indices), kernels)
    null = np.array([_mix_int(_NULL)], dtype=np.uint64)
    hashes = np.concatenate([hash_values(array.dictionary, kernels), null])
    indices = pc.fill_null(array.indices.cast(pa.int64()), len(array.dictionary))
    return np.asarray(hashes[indices.to_numpy()])


def _hasher_of(data_type: pa.DataType) -> Callable[[pa.Array], U64] | None:
    for accepts, hasher in _HASHERS:
        if accepts(data_type):
            return hasher
    return None


def _hash_integers(array: pa.Array) -> U64:
    """Hash integers by value: int8 -1 is int64 -1; it shares its hash with uint64 2**64 - 1."""
    return mix64(_words_of(array) + np.uint64(_INTEGER))


def _words_of(array: pa.Array) -> U64:
    """The array's integers, sign-extended to 64 bits; anything where they are null."""
    values = primitive_values(array)
    if values.dtype.kind == "u":
        return values.astype(np.uint64)
    return values.astype(np.int64).view(np.uint64)


def primitive_values(array: pa.Array) -> npt.NDArray[np.generic]:
    """A fixed-width array's buffer as numpy, offset applied, no copy; nulls hold anything."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def _is_null(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _hash_booleans(array: pa.Array) -> U64:
    return _hash_integers(array.cast(pa.uint8()))


def _hash_dates(array: pa.Array) -> U64:
    """Hash dates as days since 1970; date64 counts milliseconds, whose time of day is ignored."""
    if pa.types.is_date32(array.type):
        days = primitive_values(array.view(pa.int32())).astype(np.int64)
    else:
        days = primitive_values(array.view(pa.int64())).astype(np.int64) // _DAY_MILLISECONDS
    return mix64(days.view(np.uint64) + np.uint64(_DATE))


def _hash_timestamps(array: pa.Array) -> U64:
    return _hash_instants(array, _TIMESTAMP)


def _hash_durations(array: pa.Array) -> U64:
    return _hash_instants(array, _DURATION)


def _hash_instants(array: pa.Array, constant: int) -> U64:
    """Hash instants as whole seconds and nanoseconds, so that no unit overflows."""
    seconds, nanoseconds = split_instants(array)
    return combine(
        mix64(seconds.view(np.uint64) + np.uint64(constant)), nanoseconds.view(np.uint64)
    )


def split_instants(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return timestamps or durations as (seconds, nanoseconds of the second), for any unit."""
    units = _UNITS_PER_SECOND[array.type.unit]
    values = primitive_values(array.view(pa.int64())).astype(np.int64)
    seconds = values // units
    return seconds, (values - seconds * units) * (_NANOSECONDS // units)


def _hash_times(array: pa.Array) -> U64:
    """Hash times as nanoseconds since midnight, which no unit overflows."""
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    nanoseconds = primitive_values(array.view(width)).astype(np.int64)
    nanoseconds *= _NANOSECONDS // _UNITS_PER_SECOND[array.type.unit]
    return mix64(nanoseconds.view(np.uint64) + np.uint64(_TIME))


def _hash_bytes(array: pa.Array) -> U64:
    """Hash strings and binary values by their bytes (UTF-8 for strings)."""
    data, offsets = bytes_of(array)
    if offsets[-1] == offsets[0]:
        return np.full(len(array), _mix_int(_BYTES), dtype=np.uint64)
    return _hash_byte_values(data, offsets)


def bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The data buffer of strings or binary, and where each value starts and the last one ends."""
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    data = array.buffers()[-1]
    return np.frombuffer(data or b"", np.uint8), _byte_offsets(array)


def _byte_offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the start of each value in the data buffer, and the end of the last one."""
    if pa.types.is_fixed_size_binary(array.type):
        first = int(array.offset)
        return np.asarray(np.arange(first, first + len(array) + 1) * array.type.byte_width)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    if len(array) == 0:
        return np.zeros(1, dtype=np.int64)
    buffer = array.buffers()[1]
    offsets = np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return np.asarray(offsets, dtype=np.int64)


def _hash_byte_values(values: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> U64:
    """Sum over the value's 8-byte words of mix(word, its place), mixed with the length.

    The last word is short and filled with zeros; the length tells "a" from "a\\0".
    """
    lengths = np.diff(offsets)
    num_words = (lengths + _WORD_BYTES - 1) // _WORD_BYTES
    word_ends = np.cumsum(num_words)
    rows = np.repeat(np.arange(len(lengths)), num_words)
    places = np.arange(len(rows)) - (word_ends - num_words)[rows]
    words = _gather_words(values, offsets, rows, places, lengths)
    words ^= (places.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    mixed = mix64(words)
    sums = np.zeros(len(lengths), dtype=np.uint64)
    filled = num_words > 0  # reduceat would give an empty segment its neighbour's first word
    if len(mixed):
        sums[filled] = np.add.reduceat(mixed, (word_ends - num_words)[filled])
    return mix64(sums + lengths.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(_BYTES))


def _gather_words(
    values: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> U64:
    """Word `places` of value `rows` for each pair, little-endian, bytes past the end cleared."""
    start, end = int(offsets[0]), int(offsets[-1])
    block = np.zeros(end - start + _WORD_BYTES, dtype=np.uint8)
    block[: end - start] = values[start:end]
    # Every place of the block as the start of a word; indexing copes with unaligned ones, and
    # np.take does not (it copies the whole view first).
    windows = np.ndarray((end - start + 1,), "<u8", block, 0, (1,))
    words = windows[(offsets[rows] - start) + places * _WORD_BYTES].astype(np.uint64, copy=False)
    spare = np.maximum(0, (places + 1) * _WORD_BYTES - lengths[rows]).astype(np.uint64)
    return np.asarray(words & (np.uint64(_MASK) >> (spare * np.uint64(8))))


def _mix_int(value: int) -> int:
    """`mix64` of one Python integer of any size, taken modulo 2**64."""
    return int(mix64(np.array([value & _MASK], dtype=np.uint64))[0])


def is_bytes(data_type: pa.DataType) -> bool:
    return any(accepts(data_type) for accepts in _BYTES_TYPES)


_BYTES_TYPES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)

_HASHERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], U64]], ...] = (
    (pa.types.is_integer, _hash_integers),
    (is_bytes, _hash_bytes),
    (pa.types.is_boolean, _hash_booleans),
    (pa.types.is_date, _hash_dates),
    (pa.types.is_timestamp, _hash_timestamps),
    (pa.types.is_duration, _hash_durations),
    (pa.types.is_time, _hash_times),
)


@dataclass(slots=True)
class Checksum:
    """(count, Σh, Σh² mod 2⁶⁴) over identity hashes h: equal for equal rows in whatever order."""

    rows: int = 0
    total: int = 0
    squares: int = 0

    def add(self, hashes: np.ndarray) -> None:
        """Add uint64 hashes [n]; numpy's uint64 arithmetic wraps, which is the modulus."""
        self.rows += len(hashes)
        self.total = (self.total + int(hashes.sum(dtype=np.uint64))) % _MODULUS
        squares = int((hashes * hashes).sum(dtype=np.uint64))
        self.squares = (self.squares + squares) % _MODULUS

    def merge(self, other: Checksum) -> Checksum:
        """The checksum of both sets of rows."""
        return Checksum(
            rows=self.rows + other.rows,
            total=(self.total + other.total) % _MODULUS,
            squares=(self.squares + other.squares) % _MODULUS,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "sum": f"{self.total:016x}",
            "sumOfSquares": f"{self.squares:016x}",
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Checksum:
        return cls(
            rows=value["rows"], total=int(value["sum"], 16), squares=int(value["sumOfSquares"], 16)
        )
