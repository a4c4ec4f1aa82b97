"""Opens the side table of `join` and `antiJoin`, and checks that the keys compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline_runtime.hashing import check_hashable
from pipeline_runtime.steps.base import BindContext, SideTable, SideTableRequest
from pipeline_runtime.steps.checks import Checks, broken, find_field, unknown_column
from pipeline_runtime.steps.join.model import KeyPair, SideTableStep
from pipeline_runtime.steps.list_columns import decoded_type
from pipeline_runtime.steps.side_tables import too_large


def open_side_table(
    checks: Checks,
    config: SideTableStep,
    columns: Sequence[str] | None,
    context: BindContext | None,
) -> SideTable | None:
    """Return the side table if it can be opened; otherwise record the problem and return None."""
    if context is None:
        raise TypeError("bind: must have a BindContext, which opens the side table, got None")
    side = None
    with checks.at():
        side = context.open_side_table(
            SideTableRequest(
                source=config,
                columns=columns,
                where=config.where,
                max_bytes=config.max_bytes,
                left_keys=config.left_keys,
                right_keys=config.right_keys,
                strategy=config.strategy,
                bucketing=context.bucketing,
                kernels=context.kernels,
            )
        )
    if side is not None and side.parts is None and side.num_bytes > config.max_bytes:
        checks.add("maxBytes", too_large(side.description, side.num_bytes, config.max_bytes))
    return side


def check_keys(
    checks: Checks, config: SideTableStep, input_schema: pa.Schema, side: SideTable | None
) -> None:
    """Check that each key is on both sides, with types whose values can be equal."""
    for index, (left, right) in enumerate(zip(config.left_keys, config.right_keys, strict=True)):
        is_pair = isinstance(config.keys[index], KeyPair)
        field = None
        with checks.at(f"keys[{index}].left" if is_pair else f"keys[{index}]"):
            field = find_field(input_schema, left)
        if side is None:
            continue
        with checks.at(f"keys[{index}].right" if is_pair else f"keys[{index}]"):
            if right not in side.schema.names:
                raise broken(
                    unknown_column(right, side.schema.names, f"the side table {side.description}")
                )
            if field is not None:
                _check_types(field, side.schema.field(right))


def _check_types(left: pa.Field, right: pa.Field) -> None:
    for side, field in (("left", left), ("right", right)):
        try:
            check_hashable(field.type)
        except TypeError as error:
            raise broken(f"the {side} key {field.name!r} {error}") from error
    ours, theirs = _key_kind(left.type), _key_kind(right.type)
    if ours != theirs and "null" not in (ours, theirs):
        raise broken(
            f"must be keys of one kind, got {left.name!r} of type {left.type} and "
            f"{right.name!r} of type {right.type}; cast the left one before this step"
        )


def _key_kind(data_type: pa.DataType) -> str:
    """Return the kind of a type; values of one kind can be equal."""
    plain = decoded_type(data_type)
    for kind in _KEY_KINDS:
        if any(accepts(plain) for accepts in kind.types):
            return kind.name
    if pa.types.is_timestamp(plain):
        return "timestamp" if plain.tz is None else "timestamp with time zone"
    return str(plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    name: str
    types: tuple[Callable[[pa.DataType], bool], ...]


_KEY_KINDS = (
    _Kind(name="integer", types=(pa.types.is_integer,)),
    _Kind(
        name="string",
        types=(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    ),
    _Kind(
        name="binary",
        types=(
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        ),
    ),
    _Kind(name="date", types=(pa.types.is_date,)),
    _Kind(name="time", types=(pa.types.is_time,)),
    _Kind(name="duration", types=(pa.types.is_duration,)),
)
