"""The recipe of a materialization: everything that decides how its rows are computed.

Two experiments with equal recipes compute equal rows from equal partitions, so they share a cache
table. The image, the model's code, resources and names of steps are no part of it. The rows that
the recipe is applied to are the `coverage`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.config.dataset import SourceChoice
from pipeline_runtime.config.identity.run_hash import diff_configs, hash_config, run_config
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.materialization.imports import describe_imports

RECIPE_VERSION = 1
# Raise it if a step, an expression or a kernel yields other rows for the same fields.
SEMANTICS_VERSION = 1

# Fields of an Iceberg side table that choose its rows: they are part of the coverage.
_STATE_FIELDS = ("snapshotId", "branch", "tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a cache table's files."""

    bucket_by: str
    buckets: int
    sort_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumn:
    """A column, of the source or of a side table, that the steps read.

    Attributes:
        field_id: Iceberg's id of the column; None for other sources.
        type: type and ids of nested fields, as the table's format writes them.
        mapping: the table's name mapping of the column, which finds it in files without field ids.
    """

    name: str
    field_id: int | None
    type: str
    mapping: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe; `parts` is a JSON object."""

    parts: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """Return 16 hexadecimal digits of the SHA-256 of the parts."""
        return hash_config(self.parts)

    def diff(self, other: Recipe) -> list[str]:
        """Return a line per part that differs, such as `layout.buckets: 64 → 128`."""
        return diff_configs(self.parts, other.parts)

    def to_json(self) -> str:
        """Return the parts as a text."""
        return json.dumps(self.parts, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Recipe | None:
        """Return the recipe in a text, which comes from a table; None if it holds none."""
        try:
            parts = json.loads(text)
        except ValueError:
            return None
        is_known = isinstance(parts, dict) and parts.get("version") == RECIPE_VERSION
        return cls(parts=parts) if is_known else None


def build_recipe(
    experiment: DatasetExperiment,
    num_steps: int,
    *,
    source: str,
    columns: Iterable[ReadColumn],
    sides: Iterable[Iterable[ReadColumn]] = (),
    where: Sequence[str],
    layout: Layout,
    models: Sequence[str] = (),
) -> Recipe:
    """Describe how an experiment computes the rows after its first steps.

    Args:
        num_steps: steps before `materialize`.
        source: identity of the table, which stays if the table is renamed.
        columns: columns that these steps read or pass on.
        sides: columns that are read of each Iceberg table that is joined.
        models: digests of the models that the steps call.
        where: conditions of `dataset.where` on rows, without those that choose partitions.
    """
    config = run_config(experiment)
    steps = [step.config for step in experiment.spec.pipeline[:num_steps]]
    code = describe_imports(_list_modules(experiment, steps))
    parts: dict[str, Any] = {
        "version": RECIPE_VERSION,
        "semantics": [SEMANTICS_VERSION, config["version"]],
        "source": source,
        "reading": _list_reading(config["dataset"]),
        "columns": _name_columns(columns),
        "sides": [_name_columns(side) for side in sides],
        "where": sorted(where),
        "steps": [_trim_step(step) for step in config.get("pipeline", ())[:num_steps]],
        "rowKey": list(experiment.spec.dataset.row_key or ()),
        "modules": code.modules,
        "packages": code.packages,
        "models": sorted(models),
        "limits": [
            [str(getattr(step, name)) for name in step.limits] for step in steps if step.limits
        ],
        "layout": {
            "bucketBy": layout.bucket_by,
            "buckets": layout.buckets,
            "sortBy": list(layout.sort_by),
        },
    }
    return Recipe(parts={name: part for name, part in parts.items() if part})


def _list_modules(experiment: DatasetExperiment, steps: Iterable[StepModel]) -> Iterator[str]:
    """Yield the modules that compute the rows. Those of Lastmile do not count (`imports`)."""
    yield experiment.spec.dataset.source.module
    for step in steps:
        yield from (function.partition(":")[0] for function in step.find_functions())
        if (side := step.find_side_table()) is not None:
            yield side.source.module
        package = type(step).__module__.rpartition(".")[0]
        yield from (f"{package}.model", f"{package}.transform")  # of steps from elsewhere


def _name_columns(columns: Iterable[ReadColumn]) -> dict[str, Any]:
    return {
        column.name: [column.field_id, column.type, *([column.mapping] if column.mapping else [])]
        for column in columns
    }


def _list_reading(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an Iceberg source that choose its rows, such as `sampleBuckets`.

    Those of another source are in the identity of its content.
    """
    known = ("catalog", "table", "columns", *_STATE_FIELDS)
    return {name: part for name, part in dataset.get("iceberg", {}).items() if name not in known}


def _trim_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step of a run config without what is not about its rows.

    `applyTo` is left out: with an evaluation, a step for the training alone cannot come before
    `materialize`.
    """
    return {
        kind: dict(_trim_fields(body)) if isinstance(body, Mapping) else body
        for kind, body in step.items()
    }


def _trim_fields(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    sources = SourceChoice.source_models()
    for name, value in body.items():
        if name in sources and isinstance(value, Mapping):
            yield name, {n: v for n, v in value.items() if n not in _STATE_FIELDS}
        elif name != "applyTo":
            yield name, value
