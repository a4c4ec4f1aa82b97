"""Step `predict`: add the outputs of models as columns.

    table ─▶ a run's preprocessing ─▶ the model's inputs ─▶ batches ─▶ model ─▶ columns

Binding has each model opened by the planner (`BindContext.open_model`), which finds it, checks it
on a batch of zeros, and says which columns it reads. Calling loads it once per process. A model
gets the columns that it reads alone. All others stay the Arrow buffers that they are, so that
carrying them costs nothing and changes no value.

A model with a `workerGroup` may be in other processes: then `connect` gives it a client, which gets
the model's inputs and returns its outputs (`serving`). Everything else is done here in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import StepError
from pipeline_runtime.measuring.base import Merging, Result
from pipeline_runtime.measuring.counting import Counts
from pipeline_runtime.measuring.values import State
from pipeline_runtime.steps.base import (
    INTERNAL_PREFIX,
    BindContext,
    ModelClient,
    ModelRequest,
    OpenedModel,
    Scorer,
    ServedModel,
    Transform,
)
from pipeline_runtime.steps.checks import Checks, broken, replace_types, set_column
from pipeline_runtime.steps.observing import AccumulatingStep
from pipeline_runtime.steps.predict.ablation import BoundAblation, bind_ablation
from pipeline_runtime.steps.predict.batch_sizes import BatchSize, run_in_batches
from pipeline_runtime.steps.predict.model import PredictModel, PredictStep
from pipeline_runtime.steps.type_names import TypeNameError, parse_type

# Rows, and those of them whose outputs are null, for a null input or a NaN in an output.
_ROW_COUNTS = Counts(size=3)
# int64: the number of a row, while steps run that might drop or repeat rows.
_PLACE_COLUMN = f"{INTERNAL_PREFIX}place"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundModel:
    """A model of the step.

    Attributes:
        types: type of each output, by name.
        fills: True if rows without a valid result get nulls.
        path: place of the model in the step, for errors.
        group: name of its group of inference workers; None: it is fused with the data work.
        client: the model on those workers; None: it is called in this process.
    """

    name: str
    opened: OpenedModel
    types: Mapping[str, pa.DataType]
    fills: bool
    path: str
    group: str | None = None
    client: ModelClient | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The outputs of a model, and the number of rows for which all of them were set to null.

    Attributes:
        null_inputs: rows with a null that the model cannot take.
        nan_outputs: rows with a NaN in an output.
    """

    columns: Mapping[str, pa.ChunkedArray]
    null_inputs: int = 0
    nan_outputs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict(AccumulatingStep):
    """Calls each model on its inputs, batch by batch, and adds its outputs."""

    kind: ClassVar[str] = "predict"

    models: tuple[BoundModel, ...]
    batch_size: BatchSize
    ablation: BoundAblation | None = None
    needs_cuda: bool = False

    @property
    def is_elementwise(self) -> bool:
        return False  # a batch of a model is cut from rows of several requests

    @property
    def calls_user_code(self) -> bool:
        return any(model.opened.calls_user_code for model in self.models)

    @property
    def digests(self) -> tuple[str, ...]:
        found = [model.opened.sha256 for model in self.models]
        for step in (step for model in self.models for step in model.opened.steps):
            found += step.digests
            if step.side_table is not None:
                found.append(step.side_table.digest)
        return tuple(filter(None, found))

    @property
    def way(self) -> str:
        return "; ".join(map(_describe, self.models))

    @property
    def served(self) -> Mapping[str, ServedModel]:
        return {
            model.path: ServedModel(
                opened=model.opened,
                types=model.types,
                batch_size=self.batch_size,
                group=model.group,
                needs_cuda=self.needs_cuda,
            )
            for model in self.models
            if model.group is not None
        }

    def connect(self, clients: Mapping[str, ModelClient]) -> Self:
        models = tuple(replace(model, client=clients.get(model.path)) for model in self.models)
        return replace(self, models=models)

    @classmethod
    def bind(
        cls, config: PredictStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        models, types = [], dict[str, pa.DataType]()
        for index, model in enumerate(config.models):
            path = f"models[{index}]"
            with checks.at(path):
                bound = _bind(model, input_schema, context, config.device, f"{cls.kind}.{path}")
                models.append(bound)
                types |= bound.types
        checks.finish()
        inputs = {model.name: _find_inputs(model.opened) for model in models}
        ablation = None
        if config.ablation is not None:
            with checks.at("ablation"):
                outputs = [model.types for model in models]
                ablation = bind_ablation(config.ablation, inputs, outputs, input_schema)
            checks.finish()
        return cls(
            models=tuple(models),
            batch_size=config.batch_size,
            ablation=ablation,
            needs_cuda=config.device == "CUDA",
            inputs=frozenset().union(*inputs.values(), ablation.columns if ablation else ()),
            outputs=frozenset(types),
            output_schema=replace_types(input_schema, types),
        )

    @property
    def filling(self) -> tuple[BoundModel, ...]:
        """The models that have nulls for invalid rows, which are counted."""
        return tuple(model for model in self.models if model.fills)

    @property
    def accumulators(self) -> tuple[Merging, ...]:
        counts = [_ROW_COUNTS] * len(self.filling)
        return (*counts, *(self.ablation.accumulators if self.ablation is not None else ()))

    @property
    def observes_all(self) -> bool:
        return self.ablation is not None

    def for_evaluation(self) -> Transform | None:
        return replace(self, ablation=None) if self.ablation is not None else None

    def __call__(self, table: pa.Table) -> pa.Table:
        return _add(table, self._score(table))

    def observe(self, table: pa.Table) -> tuple[pa.Table, bytes]:
        """Return the table with the outputs, the counts of invalid rows, and the ablation."""
        scored = self._score(table)
        states: list[State] = [
            _ROW_COUNTS.of(table.num_rows, each.null_inputs, each.nan_outputs)
            for model, each in zip(self.models, scored, strict=True)
            if model.fills
        ]
        if (ablation := self.ablation) is not None:
            model, name = self.models[ablation.place], ablation.score
            states += ablation.observe(
                table,
                scored[ablation.place].columns[name],
                lambda rows: _begin(model, rows, self.batch_size)().columns[name],
            )
        return _add(table, scored), self.dump(states)

    def _score(self, table: pa.Table) -> list[Scored]:
        """Return the outputs of each model for the rows of a table."""
        # Requests to inference workers are sent for all models before the first is waited for.
        begun = [_begin(model, table, self.batch_size) for model in self.models]
        return [finish() for finish in begun]

    def finish(self, states: Sequence[State]) -> Iterator[Result]:
        """Yield the invalid rows of each model that has nulls for them, then the ablation."""
        filling = self.filling
        for model, state in zip(filling, states[: len(filling)], strict=True):
            rows, null_inputs, nan_outputs = _ROW_COUNTS.list_numbers(state)
            reasons = {"input": null_inputs, "output": nan_outputs}
            yield {
                "name": model.name,
                "kind": "invalidRows",
                "value": null_inputs + nan_outputs,
                "rows": rows,
                "leftOut": {reason: count for reason, count in reasons.items() if count},
            }
        if self.ablation is not None:
            name = self.models[self.ablation.place].name
            yield from self.ablation.finish(states[len(filling) :], name)


def _add(table: pa.Table, scored: Sequence[Scored]) -> pa.Table:
    """Return the table with the outputs of all models."""
    for each in scored:
        for name, column in each.columns.items():
            table = set_column(table, name, column)
    return table


def _bind(
    model: PredictModel,
    schema: pa.Schema,
    context: BindContext | None,
    device: Literal["Auto", "CPU", "CUDA"],
    path: str,
) -> BoundModel:
    if context is None or context.open_model is None:
        raise broken("must have a planner that opens models, but there is none here")
    types, problems = {}, Checks("")
    for index, output in enumerate(model.outputs):
        with problems.at(f"outputs[{index}].type"):
            types[output.name] = _parse_output(output.type, is_any=model.format == "Arrow")
    problems.finish()
    request = ModelRequest(
        model=model, input_schema=schema, types=types, device=device, context=context
    )
    return BoundModel(
        name=model.name,
        opened=context.open_model(request),
        types=types,
        fills=model.on_invalid == "SetNull",
        path=path,
        group=model.worker_group,
    )


def _parse_output(name: str, *, is_any: bool) -> pa.DataType:
    """Return the type of an output. Raises a broken rule unless a model can make it."""
    try:
        found = parse_type(name)
    except TypeNameError as error:
        raise broken(str(error)) from error
    item = found.value_type if pa.types.is_fixed_size_list(found) else found
    is_number = pa.types.is_floating(item) or pa.types.is_integer(item) or pa.types.is_boolean(item)
    if not (is_number or is_any):
        raise broken(
            f"must be a number, a boolean, or a fixed_size_list of them, but is {found}; cast "
            "it in a step after"
        )
    return found


def _describe(model: BoundModel) -> str:
    kinds = ", ".join(step.kind for step in model.opened.steps)
    note = model.opened.note
    if kinds:
        note += f", preprocessed by {kinds}"
    return f"{note}, on inference workers {model.group}" if model.group else note


def _find_inputs(opened: OpenedModel) -> frozenset[str]:
    """Return the columns of the step's input that a model and its preprocessing read."""
    needed = frozenset(opened.inputs)
    for step in reversed(opened.steps):
        needed = (needed - step.outputs) | step.inputs
    return needed


def _begin(model: BoundModel, table: pa.Table, batch_size: BatchSize) -> Callable[[], Scored]:
    """Return a function that returns the outputs of a model for the rows of a table.

    A model on inference workers begins at once, and any other when the function is called.
    """

    def explain(error: StepError) -> StepError:
        return StepError(f"{model.path}: {error}")

    if model.client is None:
        return lambda: _score(model, table, batch_size)
    try:
        features, valid = _choose_rows(model, table)
        wait = model.client.begin(features) if features.num_rows else None
    except StepError as error:
        raise explain(error) from error

    def finish() -> Scored:
        try:
            columns = _empty(model.types) if wait is None else _take(wait(), model, features)
            return _complete(model, columns, valid)
        except StepError as error:
            raise explain(error) from error

    return finish


def _score(model: BoundModel, table: pa.Table, batch_size: BatchSize) -> Scored:
    """Return the outputs of a model of this process for the rows of a table."""
    try:
        rows, valid = _choose_rows(model, table)
        columns = _empty(model.types)
        if rows.num_rows:
            columns = score_rows(model.opened.load(), rows, model.types, batch_size)
        return _complete(model, columns, valid)
    except StepError as error:
        raise StepError(f"{model.path}: {error}") from error


def score_rows(
    scorer: Scorer, rows: pa.Table, types: Mapping[str, pa.DataType], batch_size: BatchSize
) -> dict[str, pa.ChunkedArray]:
    """Return the outputs of a model for rows with its inputs, batch by batch.

    Raises StepError if an output is not as declared.
    """
    parts = run_in_batches(scorer, rows, batch_size)
    return {name: _join(name, kind, parts, rows.num_rows) for name, kind in types.items()}


def _choose_rows(model: BoundModel, table: pa.Table) -> tuple[pa.Table, pa.Array | None]:
    """Return the model's inputs for the rows that it can take, and which rows these are."""
    features = _prepare(model.opened, table)
    valid = _find_valid(model.opened, features, fills=model.fills)
    return (features if valid is None else features.filter(valid)), valid


def _empty(types: Mapping[str, pa.DataType]) -> dict[str, pa.ChunkedArray]:
    return {name: pa.chunked_array([], type=kind) for name, kind in types.items()}


def _take(found: pa.Table, model: BoundModel, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of an inference worker's answer, which may be another release."""
    if found.num_rows != rows.num_rows or found.schema != pa.schema(list(model.types.items())):
        raise StepError(
            f"an inference worker must return {rows.num_rows:,} rows of "
            f"{', '.join(model.types)}, but returned {found.num_rows:,} of {found.schema.names}; "
            "run one release of Lastmile on all nodes"
        )
    return {name: found.column(name) for name in model.types}


def _complete(
    model: BoundModel, columns: Mapping[str, pa.ChunkedArray], valid: pa.Array | None
) -> Scored:
    """Return the checked outputs for all rows, with nulls where the model could take none."""
    checked = _check_values(columns, fills=model.fills)
    if valid is None:
        return checked
    places = pc.if_else(valid, pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1), None)
    taken = {name: column.take(places) for name, column in checked.columns.items()}
    return replace(checked, columns=taken, null_inputs=pc.sum(pc.invert(valid)).as_py() or 0)


def _prepare(opened: OpenedModel, table: pa.Table) -> pa.Table:
    """Return the model's inputs for each row."""
    features = table
    if opened.steps:
        needed = _find_inputs(opened)
        features = table.select([name for name in table.schema.names if name in needed])
        places = np.arange(table.num_rows)
        for step in opened.steps:
            if not step.changes_rows:
                features = step(features)
                continue
            features = step(features.append_column(_PLACE_COLUMN, pa.array(places)))
            # A join that drops one row and repeats another keeps their number.
            if not np.array_equal(features.column(_PLACE_COLUMN).to_numpy(), places):
                raise StepError(
                    f"the step {step.kind} of the run's preprocessing must keep each row once, but "
                    f"made {features.num_rows:,} rows of {table.num_rows:,}, and dropped or "
                    "repeated some; join the table in a step before, and set preprocessing: None"
                )
            features = features.drop_columns([_PLACE_COLUMN])
    return features.select(list(opened.inputs))


def _find_valid(opened: OpenedModel, features: pa.Table, *, fills: bool) -> pa.Array | None:
    """Return which rows the model can take; None if it can take all.

    Raises StepError if it cannot take all, and `fills` is false.
    """
    found = opened.find_invalid(features)
    for name, invalid in found.items():
        if not fills:
            raise StepError(
                f"the input {name!r} must have no null, but has one in "
                f"{np.count_nonzero(invalid):,} of {features.num_rows:,} rows; fill or filter them "
                "in a step before, or set onInvalid: SetNull"
            )
    return pa.array(~np.logical_or.reduce(list(found.values()))) if found else None


def _join(
    name: str,
    kind: pa.DataType,
    parts: Sequence[Mapping[str, Any]],
    num_rows: int,
) -> pa.ChunkedArray:
    """Return an output of all batches as one column. Raises StepError if it is not as declared."""
    arrays = [to_array(name, kind, part[name]) for part in parts]
    column = pa.chunked_array(arrays, type=kind)
    assert len(column) == num_rows  # each part was checked
    return column


def to_array(name: str, kind: pa.DataType, values: Any) -> pa.Array:
    """Return an output of one batch as an Arrow array of its declared type.

    Args:
        values: a numpy array [B] or [B, L], or an Arrow array.

    Raises StepError if its type or its shape is another one.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if values.type != kind:
            raise StepError(
                f"the output {name!r} must be {kind}, as declared, but is {values.type}; correct "
                "outputs, or the model"
            )
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not isinstance(values, np.ndarray):
        raise StepError(
            f"the output {name!r} must be an Arrow or numpy array, but is a "
            f"{type(values).__name__}; correct the model"
        )
    is_vector = pa.types.is_fixed_size_list(kind)
    if not is_vector and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    item = kind.value_type if is_vector else kind
    expected = f"[rows, {kind.list_size}]" if is_vector else "[rows]"
    fits = values.ndim == 2 and values.shape[1] == kind.list_size if is_vector else values.ndim == 1
    if not fits or values.dtype != np.dtype(item.to_pandas_dtype()):
        raise StepError(
            f"the output {name!r} must be {item} of shape {expected}, as declared, but is "
            f"{values.dtype} of shape {list(values.shape)}; correct outputs, or the model"
        )
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), type=item)
    return pa.FixedSizeListArray.from_arrays(flat, type=kind) if is_vector else flat


def _check_values(columns: Mapping[str, pa.ChunkedArray], *, fills: bool) -> Scored:
    """Return the outputs, with nulls in rows where one has a NaN.

    Raises StepError if there is one and `fills` is false.
    """
    invalid = None
    for name, column in columns.items():
        nans = _find_nans(column)
        count = 0 if nans is None else int(np.count_nonzero(nans))
        if count and not fills:
            raise StepError(
                f"the output {name!r} must be a number, but is NaN in {count:,} of "
                f"{len(column):,} rows; mend the model, or set onInvalid: SetNull"
            )
        if count:
            invalid = nans if invalid is None else invalid | nans
    if invalid is None:
        return Scored(columns=columns)
    places = pa.array(np.arange(len(invalid)), mask=invalid)
    taken = {name: column.take(places) for name, column in columns.items()}
    return Scored(columns=taken, nan_outputs=int(np.count_nonzero(invalid)))


def _find_nans(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return for each row whether a value of it is NaN; None for other types than floats."""
    kind = column.type
    is_vector = pa.types.is_fixed_size_list(kind)
    if not pa.types.is_floating(kind.value_type if is_vector else kind):
        return None
    found = []
    for chunk in column.chunks:
        size = kind.list_size if is_vector else 1
        # `flatten` would leave out what lies below null vectors.
        items = chunk.values.slice(chunk.offset * size, len(chunk) * size) if is_vector else chunk
        nans = np.isnan(items.to_numpy(zero_copy_only=False))
        if items.null_count:  # numpy has NaN for them
            nans &= items.is_valid().to_numpy(zero_copy_only=False)
        nans = nans.reshape(len(chunk), size).any(axis=1)
        if chunk.null_count:
            nans &= chunk.is_valid().to_numpy(zero_copy_only=False)
        found.append(nans)
    return np.concatenate(found) if found else None
