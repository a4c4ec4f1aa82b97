"""Which columns a reader keeps once a request, and why, or why not."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline_runtime.config import Dataset
from pipeline_runtime.plan.model import Sharing


def choose_sharing(
    dataset: Dataset, schema: pa.Schema, read_columns: Sequence[str], *, deduplication: bool
) -> Sharing:
    """What the stream shares; tables nested by request say of themselves what they hold once."""
    if not deduplication:
        reason = "a request's columns repeated at the read, since pipelineOptions.deduplication is"
        return Sharing(is_on=False, reason=f"{reason} false")
    declared = set(dataset.request_columns or ())
    columns = tuple(name for name in read_columns if name in declared)
    if dataset.request_key is None or not columns:
        return Sharing(is_on=True)
    if not any(_is_wide(schema.field(name).type) for name in columns):
        reason = "requests are not looked for: of their columns only numbers are read"
        return Sharing(is_on=True, reason=reason)
    reason = f"once a request ({dataset.request_key}): {', '.join(columns)}"
    return Sharing(is_on=True, key=dataset.request_key, columns=columns, reason=reason)


def _is_wide(data_type: pa.DataType) -> bool:
    """Whether a value may be longer than the number that says which request it is of."""
    return not pa.types.is_primitive(data_type)
