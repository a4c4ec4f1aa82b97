"""The raw table: its location, the rows and columns to read, and the key that identifies a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints, create_model

from pipeline_runtime.config.base import (
    MAX_INT64,
    CelRule,
    Column,
    Columns,
    Expression,
    Label,
    Seed,
    SpecModel,
    StoreUri,
    TableUri,
    Text,
    Uri,
    check_one_of,
    rule_error,
)
from pipeline_runtime.config.cluster import ObjectReference
from pipeline_runtime.config.decimals import HoldoutPercent
from pipeline_runtime.config.extensions import load_extensions
from pipeline_runtime.config.introspect import field_names, find_model
from pipeline_runtime.config.source_model import SourceModel

_PART = r"[^.\p{Z}\t-\r\x{85}]+"  # no dot, no white space
ICEBERG_TABLE_PATTERN = rf"^{_PART}(\.{_PART})+$"  # namespace.table, namespaces may nest
REF_PATTERN = r"^\S+$"
MAX_KEEP_DAYS = 3650  # ten years
SNAPSHOT_PATTERN = r"^[1-9][0-9]{0,18}$"


def check_snapshot(value: str) -> str:
    """Refuse an id beyond Iceberg's 64 bits."""
    if int(value) > MAX_INT64:
        raise rule_error(f"must be at most {MAX_INT64}, got {value!r}; correct it")
    return value


SnapshotId = Annotated[
    str, StringConstraints(max_length=19, pattern=SNAPSHOT_PATTERN), AfterValidator(check_snapshot)
]
RefName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=REF_PATTERN)]
Uris = Annotated[tuple[TableUri, ...], Field(min_length=1, max_length=10_000)]


class S3Options(SpecModel):
    """Access to an S3-compatible store. Keys come from the environment, never from the manifest."""

    endpoint: Uri | None = None
    """`http(s)://host:port` of a store other than AWS."""
    region: Text | None = None
    """The bucket's region."""
    anonymous: bool = False
    """True sends requests unsigned, for public buckets."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            yield (
                "endpoint",
                f"must be an http:// or https:// address, got {self.endpoint!r}; add the scheme",
            )


class ParquetSource(SourceModel):
    """A Parquet table: a file, a directory (hive partitions read as columns), a glob, or a list."""

    uri: TableUri | None = None
    """A file, a directory (hive partitions become columns) or a glob."""
    uris: Uris | None = None
    """Several files, directories or globs, as one table."""
    columns: Columns | None = None
    """Columns to read; all if absent."""
    s3: S3Options | None = None

    module: ClassVar[str] = "pipeline_runtime.sources.parquet"

    def rules(self) -> Iterator[tuple[str, str]]:
        given = [name for name in ("uri", "uris") if getattr(self, name) is not None]
        if message := check_one_of(("uri", "uris"), given):
            yield "", message

    @classmethod
    def shorten(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {name: value for name, value in fields.items() if value != {}}  # s3: {}
        if len(uris := given.get("uris", ())) != 1:
            return given
        return {"uri": uris[0]} | {name: v for name, v in given.items() if name != "uris"}

    @property
    def locations(self) -> tuple[str, ...]:
        """The URIs, from whichever of the two fields is set."""
        return self.uris or ((self.uri,) if self.uri else ())

    @property
    def label(self) -> str:
        return self.locations[0]

    @property
    def wanted_columns(self) -> tuple[str, ...] | None:
        return self.columns


class Catalog(SpecModel):
    """An Iceberg catalog; credentials come from its Secret or from the environment."""

    name: Label
    """Name of the catalog, by which `iceberg.catalog` refers to it."""
    type: Literal["Rest", "Sql", "Hive", "Glue", "DynamoDb"] = "Rest"
    """The kind of catalog; in lower case, it is pyiceberg's name of it."""
    uri: Uri | None = None
    """The catalog's address, without credentials."""
    warehouse: StoreUri | None = None
    """The warehouse's location."""
    secret_ref: ObjectReference | None = None
    """The Secret with the catalog's credentials: `name`. Its keys are properties of pyiceberg, such
    as `credential` or `token`."""


class SampleBuckets(SpecModel):
    """A sample of the buckets of a table: of the values of the column that it is bucketed by."""

    percent: HoldoutPercent
    """Share of the buckets to read, rounded up to whole buckets: more than 0, at most 50."""
    seed: Seed = 0
    """Seed of the choice. Tables that are sampled with the same seed keep the same values."""


class IcebergSource(SourceModel):
    """An Iceberg table, read at one snapshot: the newest when a run first plans, or a given one."""

    catalog: Label
    """The catalog, by its name in `spec.catalogs`."""
    table: Annotated[str, Field(pattern=ICEBERG_TABLE_PATTERN, max_length=512)]
    """The table, as `namespace.table`."""
    snapshot_id: SnapshotId | None = None
    """The snapshot to read, as a text: ids have up to 19 digits. The newest of `main` if absent."""
    branch: RefName | None = None
    """The branch whose newest snapshot to read, instead of `main`."""
    tag: RefName | None = None
    """The tag whose snapshot to read, with the columns that it was written with."""
    sample_buckets: SampleBuckets | None = None
    """Read some of the buckets only, for a table that is partitioned by buckets of a column."""
    columns: Columns | None = None
    """Columns to read; all if absent."""
    keep_days: Annotated[int, Field(ge=0, le=MAX_KEEP_DAYS)] | None = None
    """Days after a run for which a tag keeps the snapshot from expiring; no tag if absent. It needs
    permission to change the table."""

    module: ClassVar[str] = "pipeline_runtime.sources.iceberg"
    needs_row_key: ClassVar[bool] = True  # compaction moves rows
    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "(has(self.snapshotId) ? 1 : 0) + (has(self.branch) ? 1 : 0)"
            " + (has(self.tag) ? 1 : 0) <= 1",
            "must have at most one of snapshotId, branch and tag; remove the others",
        ),
        CelRule(
            # Texts of equal length are ordered as their numbers are.
            "!has(self.snapshotId) || self.snapshotId.size() < 19 || "
            f"self.snapshotId <= '{MAX_INT64}'",
            f"must be at most {MAX_INT64}; correct it",
            "snapshotId",
        ),
    )

    def rules(self) -> Iterator[tuple[str, str]]:
        names = {"snapshotId": self.snapshot_id, "branch": self.branch, "tag": self.tag}
        given = [name for name, value in names.items() if value is not None]
        if len(given) > 1:
            yield (
                "",
                f"must have at most one of snapshotId, branch and tag, got {', '.join(given)}; "
                "remove the others",
            )

    @classmethod
    def shorten(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: value for name, value in fields.items() if name != "keepDays"}

    @property
    def label(self) -> str:
        return self.table

    @property
    def wanted_columns(self) -> tuple[str, ...] | None:
        return self.columns


class _ShippedSources(SpecModel):
    parquet: ParquetSource | None = None
    iceberg: IcebergSource | None = None


def build_other_fields() -> dict[str, Any]:
    """Return a field for each kind of source from elsewhere, as `create_model` takes it."""
    fields: dict[str, Any] = {}
    for model in load_extensions("LASTMILE_SOURCES", SourceModel):
        name = model.field_name()
        if name in fields or name in _ShippedSources.model_fields:
            raise ImportError(f"LASTMILE_SOURCES: there is a source {name!r} already; rename one")
        fields[name] = (model | None, None)
    return fields


if TYPE_CHECKING:
    _Sources = _ShippedSources
else:
    _Sources = create_model("_Sources", __base__=_ShippedSources, **build_other_fields())


class SourceChoice(_Sources):
    """A table from exactly one kind of source."""

    @classmethod
    def source_models(cls) -> Mapping[str, type[SourceModel]]:
        """Return the models of all kinds of source, by their field in the manifest."""
        return _find_source_models(cls)

    def rules(self) -> Iterator[tuple[str, str]]:
        if message := check_one_of(tuple(self.source_models()), list(self._given())):
            yield "", message

    @property
    def source_kind(self) -> str:
        """The kind of source, as the manifest writes it, such as `parquet`."""
        return next(iter(self._given()))

    @property
    def source(self) -> SourceModel:
        """The model of the kind."""
        return next(iter(self._given().values()))

    def _given(self) -> Mapping[str, SourceModel]:
        names = field_names(type(self))
        values = {alias: getattr(self, names[alias]) for alias in self.source_models()}
        return {alias: value for alias, value in values.items() if value is not None}


@cache
def _find_source_models(choice: type[SourceChoice]) -> Mapping[str, type[SourceModel]]:
    fields = choice.model_fields
    found = {alias: find_model(fields[n].annotation) for alias, n in field_names(choice).items()}
    return {
        alias: model
        for alias, model in found.items()
        if model is not None and issubclass(model, SourceModel)
    }


class Dataset(SourceChoice):
    """The raw table and what is known about its rows."""

    where: Expression | None = None
    """Condition for the rows to read; pushed down to partitions and row groups."""
    row_key: Columns | None = None
    """Columns that identify a row, for sampling and checksums."""
    request_key: Column | None = None
    """Rows with an equal value share `requestColumns`."""
    request_columns: Columns | None = None
    """Columns that are equal within a request; needs `requestKey`."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        if self.request_columns and not self.request_key:
            yield "requestColumns", "must come with requestKey, got no requestKey; add it"
