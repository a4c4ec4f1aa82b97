"""Step `embed`: add the vectors that a model computes of a text column.

Binding has the model opened by the planner (`BindContext.open_embedder`), which calls it once. The
model gets the texts alone; all other columns stay the Arrow buffers that they are. Shapes: B texts,
L numbers of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.steps import engines
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.checks import Checks, broken, find_field, replace_types, set_column
from pipeline_runtime.steps.embed.model import EmbedStep
from pipeline_runtime.steps.engine_step import EngineStep, sort_by_length
from pipeline_runtime.steps.engines import OpenedEngine
from pipeline_runtime.steps.generate.prompts import to_text
from pipeline_runtime.steps.list_columns import decoded_type
from pipeline_runtime.steps.predict.batch_sizes import run_in_batches
from pipeline_runtime.steps.type_names import TypeNameError, parse_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(EngineStep):
    """Calls the model on the texts, batch by batch, and adds its vectors."""

    kind: ClassVar[str] = "embed"

    column: str

    @classmethod
    def bind(
        cls, config: EmbedStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        if context is None or context.open_embedder is None:
            raise broken("must have a planner that opens models, but there is none", cls.kind)
        checks, kind, opened = Checks(cls.kind), None, None
        with checks.at("column"):
            _check_text(find_field(input_schema, config.column))
        with checks.at("outputs[0].type"):
            kind = _parse_output(config.outputs[0].type)
        with checks.at():
            opened = context.open_embedder(config)
        if opened is not None and kind is not None:
            with checks.at("outputs[0].type"):
                _check_size(opened, kind)
        checks.finish()
        assert opened is not None
        assert kind is not None
        name = config.outputs[0].name
        return cls(
            opened=opened,
            column=config.column,
            output=name,
            type=kind,
            batch_size=config.batch_size,
            inputs=frozenset([config.column]),
            outputs=frozenset([name]),
            output_schema=replace_types(input_schema, {name: kind}),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        texts = to_text(table.column(self.column))
        order, known = sort_by_length(texts)
        vectors_BL = np.zeros((len(texts), self.type.list_size), np.float32)
        if known:
            load, places = self.opened.load, order[:known]  # nulls are at the end
            rows = pa.table({engines.PROMPT: texts.take(places)})
            parts = run_in_batches(load(), rows, self.batch_size)
            vectors_BL[places] = np.concatenate([part[engines.VECTOR] for part in parts])
        if not np.isfinite(vectors_BL).all():
            raise StepError("the model must return numbers, but a vector has NaN or infinity")
        items = pa.array(vectors_BL.reshape(-1))
        nulls = texts.is_null() if texts.null_count else None
        column = pa.FixedSizeListArray.from_arrays(items, type=self.type, mask=nulls)
        return set_column(table, self.output, column)


def _check_text(field: pa.Field) -> None:
    kind = decoded_type(field.type)
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(test(kind) for test in is_text):
        raise broken(f"must be a column of text, got {field.name!r} of type {field.type}; cast it")


def _parse_output(name: str) -> pa.DataType:
    try:
        found = parse_type(name)
    except TypeNameError as error:
        raise broken(str(error)) from error
    if not (pa.types.is_fixed_size_list(found) and found.value_type == pa.float32()):
        raise broken(
            f"must be fixed_size_list<float32>[N], but is {found}; cast it in a step after"
        )
    return found


def _check_size(opened: OpenedEngine, kind: pa.DataType) -> None:
    """Call the model once. Raises a broken rule if it returns vectors of another length."""
    sample = pa.table({engines.PROMPT: pa.array(["a", "some words"], pa.large_string())})
    found = opened.load()(sample)[engines.VECTOR]
    if found.shape[1] != kind.list_size:
        raise broken(
            f"must be fixed_size_list<float32>[{found.shape[1]}], as the model returns, but is "
            f"{kind}; correct it"
        )
