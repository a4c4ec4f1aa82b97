"""Step `hashBucket`: replace ids by a hash in a fixed range, for embedding tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from pipeline_runtime.hashing import bucket_of
from pipeline_runtime.kernels import describe, select
from pipeline_runtime.steps.base import BindContext, BoundStep, wants_kernels
from pipeline_runtime.steps.checks import Checks, broken, find_field, replace_types, set_column
from pipeline_runtime.steps.hash_bucket.model import HashBucketStep
from pipeline_runtime.steps.list_columns import decoded_type, is_list, map_chunks

_ID_TYPES = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_null,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashBucket(BoundStep):
    """Replaces integers and strings, and those in lists, by an int64 in [0, buckets); keeps null.

    Equal values share a bucket whatever their width or encoding, in every release.
    """

    kind: ClassVar[str] = "hashBucket"
    is_columnwise: ClassVar[bool] = True

    columns: tuple[str, ...]
    buckets: int
    seed: int
    kernels: bool = True  # pipelineOptions.debug.kernels

    @classmethod
    def bind(
        cls, config: HashBucketStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        types: dict[str, pa.DataType] = {}
        for index, name in enumerate(config.columns):
            with checks.at(f"columns[{index}]"):
                types[name] = _bucket_type(find_field(input_schema, name))
        checks.finish()
        return cls(
            columns=config.columns,
            buckets=config.buckets,
            seed=config.seed,
            kernels=wants_kernels(context),
            inputs=frozenset(config.columns),
            outputs=frozenset(config.columns),
            output_schema=replace_types(input_schema, types),
        )

    @property
    def way(self) -> str:
        return describe(self.kernels)

    def __call__(self, table: pa.Table) -> pa.Table:
        for name in self.columns:
            if name in table.schema.names:
                data_type = self.output_schema.field(name).type
                column = map_chunks(table.column(name), data_type, self._hash)
                table = set_column(table, name, column)
        return table

    def _hash(self, array: pa.Array) -> pa.Array:
        if is_list(array.type) or pa.types.is_fixed_size_list(array.type):
            return self._hash_lists(array)
        kernels = select(self.kernels, len(array))
        buckets = bucket_of(array, self.seed, self.buckets, kernels)
        return pa.array(buckets, mask=_nulls(array))

    def _hash_lists(self, array: pa.Array) -> pa.Array:
        """Return the lists with hashed items; hashes only the items within the slice."""
        mask = array.is_null() if array.null_count else None
        if pa.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            used = array.values.slice(array.offset * size, len(array) * size)
            data_type = pa.list_(self._hash(used.slice(0, 0)).type, size)
            return pa.FixedSizeListArray.from_arrays(self._hash(used), type=data_type, mask=mask)
        offsets = array.offsets.to_numpy()
        used = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        large = pa.types.is_large_list(array.type)
        kind = pa.LargeListArray if large else pa.ListArray
        return kind.from_arrays(pa.array(offsets - offsets[0]), self._hash(used), mask=mask)


def _bucket_type(field: pa.Field) -> pa.DataType:
    data_type = _hashed_type(field.type)
    if data_type is None:
        raise broken(
            "must be a column of integers or strings, or of lists of them, got "
            f"{field.name!r} of type {field.type}; cast it first"
        )
    return data_type


def _hashed_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return the type with int64 instead of ids; None if it has no ids."""
    if pa.types.is_fixed_size_list(data_type):
        item = _hashed_type(data_type.value_type)
        return item and pa.list_(item, data_type.list_size)
    if is_list(data_type):
        item = _hashed_type(data_type.value_type)
        make = pa.large_list if pa.types.is_large_list(data_type) else pa.list_
        return item and make(item)
    plain = decoded_type(data_type)
    return pa.int64() if any(is_kind(plain) for is_kind in _ID_TYPES) else None


def _nulls(array: pa.Array) -> np.ndarray | None:
    """Return the mask of nulls, those of a dictionary included; None if there are none."""
    null = array.is_null()
    if isinstance(array, pa.DictionaryArray) and array.dictionary.null_count:
        null = array.dictionary_decode().is_null()
    return null.to_numpy(zero_copy_only=False) if null.true_count else None
