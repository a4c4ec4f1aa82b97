"""Choose the columns that a reader keeps once per request, with reasons.

A step that reads only such columns returns such columns. So the plan knows which columns leave the
last step once per request (`shared_after`); `stage_rows` follows the same rule.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from pipeline_runtime.config import Dataset
from pipeline_runtime.plan.model import Sharing
from pipeline_runtime.steps.base import Transform


def choose_sharing(
    dataset: Dataset, schema: pa.Schema, stored: Sequence[str], *, deduplication: bool
) -> Sharing:
    """Return the columns that the stream keeps once per request.

    Args:
        schema: of the columns that are read.
        stored: those of them that the source holds once per request.
    """
    if not deduplication:
        reason = (
            "a request's columns repeated at the read, since pipelineOptions.debug.deduplication is"
        )
        return Sharing(is_on=False, reason=f"{reason} false")
    known = [field.name for field in schema if _is_known(field.type)]
    declared = set(known).intersection(dataset.request_columns or ())
    if stored or dataset.request_key is None or not declared:
        return Sharing(is_on=True, columns=tuple(stored))
    columns = tuple(name for name in known if name in declared | {dataset.request_key})
    if not any(_is_wide(schema.field(name).type) for name in columns):
        reason = "requests are not looked for: of their columns only numbers are read"
        return Sharing(is_on=True, reason=reason)
    reason = f"once a request ({dataset.request_key}): {', '.join(columns)}"
    return Sharing(is_on=True, key=dataset.request_key, columns=columns, reason=reason)


def is_of_requests(transform: Transform, shared: Collection[str]) -> bool:
    """Return whether a step depends only on columns that the rows of a request share."""
    if transform.needs_row_hash or not transform.inputs or not transform.inputs <= set(shared):
        return False
    return transform.is_filter or (transform.is_elementwise and not transform.changes_rows)


def shared_after(transforms: Sequence[Transform], shared: Collection[str]) -> frozenset[str]:
    """The columns that rows of a request still share after these steps."""
    left = frozenset(shared)
    for transform in transforms:
        if is_of_requests(transform, left):
            left |= transform.outputs
        elif not transform.is_columnwise:
            left -= transform.outputs
        left &= frozenset(transform.output_schema.names)
    return left


def _is_known(data_type: pa.DataType) -> bool:
    """Return whether Arrow can compare and take values of the type; it cannot for views."""
    lists = (pa.types.is_list_view, pa.types.is_large_list_view)
    texts = (pa.types.is_string_view, pa.types.is_binary_view)
    below = [data_type.field(i).type for i in range(data_type.num_fields)]
    is_view = any(test(data_type) for test in (*lists, *texts))
    return not is_view and all(map(_is_known, below))


def _is_wide(data_type: pa.DataType) -> bool:
    """Return whether a value may be longer than the number of its request."""
    return not pa.types.is_primitive(data_type)
