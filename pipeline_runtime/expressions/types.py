"""Rules on Arrow types: plain forms, families, and the common type of several types.

Used by `coercion`, `binder` and the functions. Works on types alone, never on values.
"""

from __future__ import annotations

import pyarrow as pa

from pipeline_runtime.grammar.calls import MAX_DECIMAL_DIGITS, parse_decimal

MAX_DECIMAL128_DIGITS = 38
# Digits that hold every integer of this many bits, signed or unsigned.
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_TIME_UNITS = ("s", "ms", "us", "ns")


def plain_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type that a column is read as, without encodings and rare layouts."""
    if pa.types.is_dictionary(dtype) or pa.types.is_run_end_encoded(dtype):
        return plain_type(dtype.value_type)
    if pa.types.is_string_view(dtype):
        return pa.string()
    if pa.types.is_binary_view(dtype):
        return pa.binary()
    if pa.types.is_float16(dtype):
        return pa.float32()
    if pa.types.is_date64(dtype):
        return pa.date32()
    if is_any_list(dtype):
        return _plain_list(dtype)
    return dtype


def _plain_list(dtype: pa.DataType) -> pa.DataType:
    item = plain_type(dtype.value_type)
    is_large = pa.types.is_large_list(dtype) or pa.types.is_large_list_view(dtype)
    return pa.large_list(item) if is_large else pa.list_(item)


def is_any_list(dtype: pa.DataType) -> bool:
    """True for a list of any of Arrow's layouts."""
    return bool(
        pa.types.is_list(dtype)
        or pa.types.is_large_list(dtype)
        or pa.types.is_fixed_size_list(dtype)
        or pa.types.is_list_view(dtype)
        or pa.types.is_large_list_view(dtype)
    )


def is_number(dtype: pa.DataType) -> bool:
    """True for integers, floats and decimals."""
    return bool(
        pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
    )


def is_text(dtype: pa.DataType) -> bool:
    """True for string and large_string."""
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def is_day_or_time(dtype: pa.DataType) -> bool:
    """True for a date or a timestamp."""
    return bool(pa.types.is_date32(dtype) or pa.types.is_timestamp(dtype))


def is_comparable(dtype: pa.DataType) -> bool:
    """True if values of the type have an order and `=`."""
    return bool(
        is_number(dtype)
        or is_text(dtype)
        or is_day_or_time(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_time(dtype)
        or pa.types.is_duration(dtype)
        or pa.types.is_binary(dtype)
        or pa.types.is_large_binary(dtype)
        or pa.types.is_null(dtype)
    )


def promote(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds the values of both; None if there is none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _promote_numbers(left, right)
    if is_text(left) and is_text(right):
        return pa.large_string()
    if is_day_or_time(left) and is_day_or_time(right):
        return _promote_times(left, right)
    return None


def _promote_numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) and pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return _promote_integers(left, right)
    return _promote_decimals(*_decimal_digits(left), *_decimal_digits(right))


def _promote_integers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    same_sign = pa.types.is_signed_integer(left) == pa.types.is_signed_integer(right)
    if same_sign:
        return left if left.bit_width >= right.bit_width else right
    unsigned = right if pa.types.is_signed_integer(left) else left
    signed = left if unsigned is right else right
    if unsigned.bit_width < signed.bit_width:
        return signed
    wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
    return wider[unsigned.bit_width]


def _decimal_digits(dtype: pa.DataType) -> tuple[int, int]:
    if pa.types.is_integer(dtype):
        return _INTEGER_DIGITS[dtype.bit_width], 0
    return dtype.precision, dtype.scale


def _promote_decimals(
    left_precision: int, left_scale: int, right_precision: int, right_scale: int
) -> pa.DataType:
    scale = max(left_scale, right_scale)
    precision = max(left_precision - left_scale, right_precision - right_scale) + scale
    return build_decimal(precision, scale) or pa.float64()


def build_decimal(precision: int, scale: int) -> pa.DataType | None:
    """Return the decimal type with this many digits; None if Arrow has none that wide."""
    if not 0 < precision <= MAX_DECIMAL_DIGITS:
        return None
    if precision <= MAX_DECIMAL128_DIGITS:
        return pa.decimal128(precision, scale)
    return pa.decimal256(precision, scale)


def _promote_times(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_date32(left):
        return right
    if pa.types.is_date32(right):
        return left
    if (left.tz is None) != (right.tz is None):
        return None
    zone = left.tz if left.tz == right.tz else "UTC"
    return pa.timestamp(finer_unit(left.unit, right.unit), zone)


def finer_unit(left: str, right: str) -> str:
    """Return the finer of two units of time."""
    return max(left, right, key=_TIME_UNITS.index)


def ticks_per_second(unit: str) -> int:
    """Return the number of ticks of a unit of time in a second."""
    ticks: int = 1000 ** _TIME_UNITS.index(unit)
    return ticks


_NAMED_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "text": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_s": pa.timestamp("s"),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_us": pa.timestamp("us"),
    "timestamp_ns": pa.timestamp("ns"),
}


def parse_type(name: str) -> pa.DataType:
    """Read the type of a cast; raises ValueError with a message for the user."""
    digits = parse_decimal(name)
    return _NAMED_TYPES[name] if digits is None else build_decimal(*digits)
