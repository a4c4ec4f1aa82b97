"""Looks a materialization up: which rows an experiment needs, and which of them a table has.

The planner calls `look_up` with the steps before `materialize`, bound to the source. The source is
pinned by then, so that the result is the same for all who plan the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from pipeline_runtime import expressions
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.config.dataset import IcebergSource, SourceChoice
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.formatting import format_bytes, plain_spaces
from pipeline_runtime.iceberg.catalogs import (
    ask_catalog,
    asking_catalog,
    describe,
    find_catalog,
    load_table,
    open_catalog,
)
from pipeline_runtime.iceberg.pins import Reference
from pipeline_runtime.materialization.coverage import (
    Change,
    Coverage,
    Covered,
    Input,
    IsSame,
    find_missing,
    read_coverage,
)
from pipeline_runtime.materialization.recipe import Layout, ReadColumn, Recipe, build_recipe
from pipeline_runtime.materialization.states import (
    WHOLE,
    Dimension,
    PartitionState,
    TableState,
    find_changed,
    read_state,
)
from pipeline_runtime.materialization.tables import (
    find_nearest,
    list_tables,
    load_cache,
    name_table,
)
from pipeline_runtime.materialization.windows import split_where
from pipeline_runtime.sources import Opening, Source
from pipeline_runtime.steps.base import Transform
from pipeline_runtime.steps.join.model import SideTableStep
from pipeline_runtime.steps.materialize.model import MaterializeStep

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import NameMapping

State = Literal["Hit", "Partial", "Miss"]
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """The rows that an experiment computes, and those of them that a table has.

    Attributes:
        table: name of the table.
        wanted: the partitions, and what they are made of.
        missing: the partitions that the table lacks, and the reason.
        partitions: the wanted partitions of the source.
        snapshot_id: the snapshot of the table; None if there is none.
    """

    table: str
    recipe: Recipe
    wanted: Coverage
    missing: Mapping[str, Change]
    partitions: Mapping[str, PartitionState]
    snapshot_id: int | None = None

    @property
    def state(self) -> State:
        """Return `Hit` if the table has all rows, `Miss` if it has none."""
        if self.snapshot_id is not None and not self.missing:
            return "Hit"
        return "Partial" if len(self.missing) < len(self.wanted) else "Miss"

    def explain(self) -> Iterator[str]:
        """Yield lines about the table, for people."""
        num_wanted, num_missing = len(self.wanted), len(self.missing)
        counts = f"{num_wanted - num_missing:,} of {num_wanted:,} partitions are in {self.table}"
        yield f"{self.state.lower()}: {counts}"
        if self.state == "Hit":
            return
        rows = sum(self.partitions[key].rows for key in self.missing)
        num_bytes = sum(self.partitions[key].num_bytes for key in self.missing)
        size = plain_spaces(format_bytes(num_bytes))
        yield f"a run computes and keeps the others first: {rows:,} rows from {size}"
        yield from self._explain_recipe()
        if self.snapshot_id is not None:
            yield from self._explain_missing()

    def _explain_recipe(self) -> Iterator[str]:
        yield from ()

    def _explain_missing(self) -> Iterator[str]:
        words: dict[Change, str] = {
            "new": "not computed yet",
            "recipe": "the recipe changed",
            "window": "other rows are wanted",
            "source": "the source changed",
            "side": "a side table changed",
        }
        for change, text in words.items():
            keys = [key for key, found in self.missing.items() if found == change]
            more = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
            if keys:
                yield f"{text}: {', '.join(map(name_partition, keys[:_MAX_NAMED]))}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialization(Completeness):
    """The rows that an experiment needs at its step `materialize`, and those that a table has.

    Attributes:
        place: index of the step.
        changes: differences to the recipe of the nearest table, if this recipe has no table.
    """

    place: int
    step: MaterializeStep
    changes: tuple[str, ...] = ()
    nearest: str = ""

    def _explain_recipe(self) -> Iterator[str]:
        if self.changes:
            yield f"the recipe is not that of {self.nearest}: {'; '.join(self.changes)}"


def name_partition(key: str) -> str:
    """Return the key of a partition for people, such as `day=2026-01-01`."""
    values = json.loads(key)
    texts = {name: "null" if value is None else value for name, value in values.items()}
    return "/".join(f"{name}={text}" for name, text in texts.items()) or "the whole table"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRequest:
    """The rows after the first steps of an experiment.

    Attributes:
        place: number of these steps.
        transforms: the steps, bound.
        columns: columns of the source that these steps read or pass on.
    """

    experiment: DatasetExperiment
    place: int
    transforms: Sequence[Transform]
    columns: Sequence[str]
    source: Source
    opening: Opening


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(RowsRequest):
    """The rows before a step `materialize`, which `place` is the index of."""

    step: MaterializeStep


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """The rows of a request, by partition of the source.

    Attributes:
        coverage: the partitions, and what they are made of.
        partitions: these partitions of the source.
        dimensions: the fields of the source's partitions.
        is_same: compares what partitions were made of then and now.
    """

    recipe: Recipe
    coverage: Coverage
    partitions: Mapping[str, PartitionState]
    dimensions: tuple[Dimension, ...]
    is_same: IsSame


@dataclass(slots=True)
class _Inputs:
    """The tables that the rows are made of, by identity and snapshot: a table may join itself."""

    _tables: dict[tuple[str, int | None], tuple[Table, TableState]] = field(default_factory=dict)
    _changed: dict[tuple[str, int, int | None], frozenset[str] | None] = field(default_factory=dict)

    def read(
        self, model: IcebergSource, opening: Opening, names: Iterable[str]
    ) -> tuple[TableState, list[ReadColumn]]:
        """Read the state and columns of a table, at which the run is pinned.

        Args:
            names: the columns; those that the table lacks are left out.
        """
        table = load_table(opening.catalogs, model.catalog, model.table)
        reference = Reference(
            model.catalog, model.table, model.snapshot_id, model.branch, model.tag
        )
        pin = opening.pins.pin(reference, table.metadata)
        schema = table.schemas()[pin.schema_id]
        with asking_catalog(describe(model.catalog, f"read the metadata of {model.table!r}")):
            if pin.snapshot_id is None:
                state = TableState(
                    uuid=pin.table_uuid, snapshot_id=None, dimensions=(), partitions={}
                )
            else:
                state = read_state(table, int(pin.snapshot_id), schema)
            mapping = table.name_mapping()
        self._tables[state.uuid, state.snapshot_id] = (table, state)
        return state, _find_columns(schema, names, mapping)

    def is_same(self, then: Input, now: Input, partition: str | None) -> bool:
        """Return whether only snapshots that keep the rows are between two states."""
        place = (now.table, now.snapshot_id)
        if then.table != now.table or then.snapshot_id is None or place not in self._tables:
            return False
        key = (then.table, then.snapshot_id, now.snapshot_id)
        if key not in self._changed:
            table, state = self._tables[place]
            with asking_catalog(f"{'.'.join(table.name())}: cannot read the history"):
                self._changed[key] = find_changed(table, state, then.snapshot_id)
        changed = self._changed[key]
        return changed is not None and (partition not in changed if partition else not changed)


def look_up(request: Request) -> Materialization:
    """Find the cache table of an experiment, and the partitions that it lacks.

    Raises ManifestError if the namespace of the cache table does not exist, SourceError if a
    catalog or a table cannot be read, StoreError if there is no answer.
    """
    step = request.step
    layout = Layout(
        bucket_by=step.bucket_by, buckets=step.buckets, sort_by=tuple(step.sort_by or ())
    )
    rows = find_rows(request, layout)
    name = name_table(step.iceberg.table, rows.recipe)
    catalog = open_catalog(find_catalog(request.opening.catalogs, step.iceberg.catalog))
    cache = load_cache(catalog, name)
    found = Materialization(
        place=request.place,
        step=step,
        table=name,
        recipe=rows.recipe,
        wanted=rows.coverage,
        missing=dict.fromkeys(rows.coverage, "new"),
        partitions=rows.partitions,
    )
    if cache is None:
        _check_namespace(request, catalog)
        return _compare_recipes(found, catalog)
    return _find_best(found, cache, request.opening, rows.is_same)


def find_rows(request: RowsRequest, layout: Layout) -> WantedRows:
    """Find the partitions of the source that an experiment reads, and what they are made of.

    Args:
        layout: of the table that is to hold the rows.

    Raises SourceError if a catalog or a table cannot be read, StoreError if there is no answer.
    """
    inputs = _Inputs()
    state, fields = _read_source(request, inputs)
    sides, side_fields = _read_sides(request, inputs)
    dataset = request.experiment.spec.dataset
    where = expressions.parse(dataset.where) if dataset.where else None
    window, others = split_where(where, state.dimensions, request.source.schema)
    recipe = build_recipe(
        request.experiment,
        request.place,
        source=state.uuid,
        columns=fields,
        sides=side_fields,
        where=[each.text for each in others],
        layout=layout,
        models=[digest for step in request.transforms for digest in step.digests],
    )
    wanted = {
        key: Covered(inputs=(_to_input(state, state.partitions[key]), *sides), window=text)
        for key, text in window.judge(state.partitions).items()
    }
    return WantedRows(
        recipe=recipe,
        coverage=wanted,
        partitions={key: state.partitions[key] for key in wanted},
        dimensions=state.dimensions,
        is_same=inputs.is_same,
    )


def _check_namespace(request: Request, catalog: Catalog) -> None:
    target = request.step.iceberg
    namespace = target.table.rpartition(".")[0]
    what = describe(target.catalog, f"look for the namespace {namespace!r}")
    if not ask_catalog(what, lambda: catalog.namespace_exists(namespace)):
        path = f"spec.pipeline[{request.place}].materialize.iceberg.table"
        message = (
            f"must be in a namespace that exists, but catalog {target.catalog!r} has no "
            f"{namespace!r}. Correct it, or create it: pyiceberg --catalog {target.catalog} create "
            f"namespace {namespace}"
        )
        raise ManifestError([Problem(path=path, message=message)])


def _find_best(
    found: Materialization, cache: Table, opening: Opening, is_same: IsSame
) -> Materialization:
    """Return the state at the newest snapshot, or at the one that the run is pinned at already.

    Another run may have replaced partitions since this one began.
    """
    pinned = [
        int(pin.snapshot_id)
        for pin in opening.pins.found
        if pin.table == found.table and pin.given and pin.snapshot_id
    ]
    newest = cache.current_snapshot()
    with asking_catalog(f"{found.table}: cannot read the cache table"):
        states = [
            replace(
                found,
                snapshot_id=number,
                missing=find_missing(found.wanted, read_coverage(cache, number), is_same),
            )
            for number in (*pinned, *([newest.snapshot_id] if newest else []))
            if cache.snapshot_by_id(number) is not None
        ]
    return next((each for each in states if each.state == "Hit"), states[-1] if states else found)


def _compare_recipes(found: Materialization, catalog: Catalog) -> Materialization:
    tables = list_tables(catalog, found.step.iceberg.table)
    if not tables:
        return found
    nearest, changes = find_nearest(tables, found.recipe)
    return replace(found, nearest=nearest.name, changes=tuple(changes))


def _read_source(request: RowsRequest, inputs: _Inputs) -> tuple[TableState, list[ReadColumn]]:
    """Return the state of the source, and the columns that are read of it."""
    model = request.experiment.spec.dataset.iceberg
    if model is None:
        state = _read_whole(request.experiment.spec.dataset, request.source)
        kinds = {name: request.source.schema.field(name).type for name in request.columns}
        return state, [ReadColumn(name=n, field_id=None, type=str(t)) for n, t in kinds.items()]
    return inputs.read(model, request.opening, request.columns)


def _find_columns(
    schema: Schema, names: Iterable[str], mapping: NameMapping | None
) -> list[ReadColumn]:
    fields = {field.name: field for field in schema.fields}
    mapped = {each.field_id: each.model_dump(mode="json") for each in mapping or ()}
    return [
        ReadColumn(
            name=each.name,
            field_id=each.field_id,
            type=str(each.field_type),
            mapping=mapped.get(each.field_id),
        )
        for each in (fields[name] for name in names if name in fields)
    ]


def _read_whole(choice: SourceChoice, source: Source) -> TableState:
    """Return the state of a table of another kind, which is one partition."""
    scan = source.scan(())
    partition = PartitionState(
        values=(),
        fingerprint=source.digest(scan.units),
        rows=scan.pruning.rows_total,
        num_bytes=sum(unit.num_bytes for unit in scan.units),
        places=frozenset(unit.place for unit in scan.units),
    )
    return TableState(
        uuid=f"{choice.source_kind}:{source.description}",
        snapshot_id=None,
        dimensions=(),
        partitions={WHOLE: partition},
    )


def _read_sides(
    request: RowsRequest, inputs: _Inputs
) -> tuple[tuple[Input, ...], list[list[ReadColumn]]]:
    """Return the side tables, and the columns that are read of each Iceberg table among them."""
    found: list[Input] = []
    columns: list[list[ReadColumn]] = []
    steps = request.experiment.spec.pipeline[: request.place]
    for step, transform in zip(steps, request.transforms, strict=True):
        choice, side = step.config.find_side_table(), transform.side_table
        if choice is None or side is None:
            continue
        if choice.iceberg is None:
            found.append(Input(table=side.place or side.description, fingerprint=side.digest))
            continue
        assert isinstance(step.config, SideTableStep), "only these have a side table"
        where = expressions.parse(step.config.where).columns if step.config.where else ()
        names = (*side.schema.names, *sorted(where))
        state, read = inputs.read(choice.iceberg, request.opening, names)
        found.append(_to_input(state, state))
        columns.append(read)
    return tuple(found), columns


def _to_input(table: TableState, rows: TableState | PartitionState) -> Input:
    return Input(table=table.uuid, fingerprint=rows.fingerprint, snapshot_id=table.snapshot_id)
