"""The last-mile steps: one module a kind, each a transform of Arrow tables once it is bound.

    Filter.bind(FilterStep(where="clicks > 0"), table.schema)(table)

`bind_pipeline` binds all steps of a manifest, which the planner then orders and fuses. Nothing here
knows of Ray, so a step runs the same in a notebook, a test, a worker or in serving.
"""

from pipeline_runtime.steps.anti_join import AntiJoin
from pipeline_runtime.steps.base import (
    INTERNAL_PREFIX,
    ROW_HASH_COLUMN,
    BindContext,
    BoundStep,
    SideTable,
    SideTableRequest,
    Transform,
    is_internal,
    public_schema,
)
from pipeline_runtime.steps.binding import bind_pipeline, bind_step
from pipeline_runtime.steps.cast import Cast
from pipeline_runtime.steps.derive import Derive
from pipeline_runtime.steps.downsample import Downsample
from pipeline_runtime.steps.drop import Drop
from pipeline_runtime.steps.fill_null import FillNull
from pipeline_runtime.steps.filter import Filter
from pipeline_runtime.steps.hash_bucket import HashBucket
from pipeline_runtime.steps.join import Join
from pipeline_runtime.steps.map import Map
from pipeline_runtime.steps.pad_sequence import PadSequence
from pipeline_runtime.steps.rename import Rename
from pipeline_runtime.steps.row_hash import add_row_hash
from pipeline_runtime.steps.sample import Sample
from pipeline_runtime.steps.select import Select
from pipeline_runtime.steps.side_tables import clear_indices, index_of, side_table_of
from pipeline_runtime.steps.truncate import Truncate
from pipeline_runtime.steps.weight import Weight

__all__ = [
    "INTERNAL_PREFIX",
    "ROW_HASH_COLUMN",
    "AntiJoin",
    "BindContext",
    "BoundStep",
    "Cast",
    "Derive",
    "Downsample",
    "Drop",
    "FillNull",
    "Filter",
    "HashBucket",
    "Join",
    "Map",
    "PadSequence",
    "Rename",
    "Sample",
    "Select",
    "SideTable",
    "SideTableRequest",
    "Transform",
    "Truncate",
    "Weight",
    "add_row_hash",
    "bind_pipeline",
    "bind_step",
    "clear_indices",
    "index_of",
    "is_internal",
    "public_schema",
    "side_table_of",
]
