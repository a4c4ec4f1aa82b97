"""Intrinsics that numba lacks: bytes as words and vectors, access by address.

Each is put into the code where it is called (`numba.extending.intrinsic`). None looks at bounds:
that is the caller's part. A C function's address is an argument, since numba would not keep a
kernel in its cache that was compiled with one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

NARROWED = 64  # words at a time
_pack: Any = cgutils.pack_array
_WORD, _INT = ir.IntType(64), ir.IntType(32)


def _build_load_word(context: Any, data: Any, at: Any) -> Any:
    """Eight bytes from any place on: put together one by one they cost six times as much."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.bitcast(place, ir.IntType(64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(data, types.int64), build


def _build_lowest_bit(context: Any, word: Any) -> Any:
    """The place of the lowest bit that is set, of a word that is not zero."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build


def _build_copy_bytes(context: Any, data: Any, start: Any, out: Any, at: Any, count: Any) -> Any:
    """memcpy: of a loop over bytes the compiler makes one over bytes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, start, sink, at, count = arguments
        source = context.make_array(signature.args[0])(context, builder, source).data
        sink = context.make_array(signature.args[2])(context, builder, sink).data
        places = builder.gep(sink, [at]), builder.gep(source, [start])
        cgutils.raw_memcpy(builder, *places, count, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.none(data, types.int64, out, types.int64, types.int64), build


def _build_narrow(context: Any, data: Any, start: Any, out: Any, at: Any) -> Any:
    """The lowest bytes of `NARROWED` words of 32 bits: as one vector, four times as fast."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, start, sink, at = arguments
        source = context.make_array(signature.args[0])(context, builder, source).data
        sink = context.make_array(signature.args[2])(context, builder, sink).data
        words, low = (ir.VectorType(ir.IntType(bits), NARROWED) for bits in (32, 8))
        place = builder.bitcast(builder.gep(source, [start]), words.as_pointer())
        value = builder.trunc(builder.load(place, align=1), low)
        place = builder.bitcast(builder.gep(sink, [at]), low.as_pointer())
        builder.store(value, place, align=1)
        return context.get_dummy_value()

    return types.none(data, types.int64, out, types.int64), build


def _build_store_word(context: Any, word: Any, out: Any, at: Any) -> Any:
    """Eight bytes to any place."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, sink, at = arguments
        sink = context.make_array(signature.args[1])(context, builder, sink).data
        place = builder.bitcast(builder.gep(sink, [at]), ir.IntType(64).as_pointer())
        builder.store(word, place, align=1)
        return context.get_dummy_value()

    return types.none(types.uint64, out, types.int64), build


def _build_bytes_at(context: Any, address: Any, count: Any) -> Any:
    """`count` bytes from an address on, as an array that owns nothing."""
    array_type = types.Array(types.uint8, 1, "C")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, count = arguments
        array = context.make_array(array_type)(context, builder)
        pointer = builder.inttoptr(address, array.data.type)
        context.populate_array(
            array,
            data=pointer,
            shape=_pack(builder, [count]),
            strides=_pack(builder, [ir.Constant(_WORD, 1)]),
            itemsize=ir.Constant(_WORD, 1),
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.int64, types.int64), build


def _build_call_zstd(
    context: Any, function: Any, state: Any, out: Any, room: Any, data: Any, size: Any
) -> Any:
    """`size_t ZSTD_decompressDCtx(state, out, room, data, size)`; an error is above any size."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, *rest = arguments
        pointer = ir.FunctionType(_WORD, [_WORD] * len(rest)).as_pointer()
        return builder.call(builder.inttoptr(function, pointer), rest)

    return types.uint64(*[types.int64] * 6), build


def _build_call_lz4(context: Any, function: Any, data: Any, out: Any, size: Any, room: Any) -> Any:
    """`int LZ4_decompress_safe(data, out, size, room)`; below zero is an error."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, data, out, size, room = arguments
        pointer = ir.FunctionType(_INT, [_WORD, _WORD, _INT, _INT]).as_pointer()
        sizes = [builder.trunc(value, _INT) for value in (size, room)]
        told = builder.call(builder.inttoptr(function, pointer), [data, out, *sizes])
        return builder.sext(told, _WORD)

    return types.int64(*[types.int64] * 5), build


# Any: what numba gives its context with is no argument of theirs.
load_word: Any = intrinsic(_build_load_word)
store_word: Any = intrinsic(_build_store_word)
copy_bytes: Any = intrinsic(_build_copy_bytes)
lowest_bit: Any = intrinsic(_build_lowest_bit)
narrow: Any = intrinsic(_build_narrow)
bytes_at: Any = intrinsic(_build_bytes_at)
call_zstd: Any = intrinsic(_build_call_zstd)
call_lz4: Any = intrinsic(_build_call_lz4)
