"""Parses the config of the built-in ranking model, and chooses the columns of its features.

`network` then builds the network for these features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pydantic import Field, ValidationError

from pipeline_runtime.arrays.conversion import ROW_WEIGHT, is_ragged, plain_type
from pipeline_runtime.config.base import Column, Count, PositiveInt, SpecModel
from pipeline_runtime.config.introspect import field_names, model_at
from pipeline_runtime.config.reading.wording import explain_errors, find_similar
from pipeline_runtime.config.texts.yaml_documents import Path, format_path
from pipeline_runtime.errors import ManifestError, Problem

CONFIG_PATH: Path = ("spec", "training", "config")
# The label if the run names none; the sample data and many logs have a column of this name.
DEFAULT_LABEL = "clicked"
# padSequence pads with 0 by default, so 0 in a list of fixed size is not an item.
DEFAULT_PADDING_ID = 0
HiddenSize = Annotated[int, Field(ge=1, le=65_536)]
_Config = TypeVar("_Config", bound="LoopConfig")


class SequenceConfig(SpecModel):
    """A list column; `target` names the column of the candidate, which shares its embedding."""

    column: Column
    target: Column | None = None
    padding_id: int | None = None  # not an item; by default 0 in lists of fixed size


class LoopConfig(SpecModel):
    """The fields of `spec.training.config` that the built-in loop reads, whatever it trains."""

    optimizer: Literal["adam", "adagrad"] = "adam"
    learning_rate: Annotated[float, Field(ge=1e-9, le=100)] = 1e-2
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Count = 0
    decay_steps: PositiveInt | None = None  # the step at which the rate reaches 0
    report_every_steps: PositiveInt = 10

    def rules(self) -> Iterator[tuple[str, str]]:
        is_constant = self.schedule == "constant"
        if is_constant and self.decay_steps is not None:
            yield "decaySteps", "must come with schedule linear or cosine, got constant; remove it"
        if not is_constant and (self.decay_steps or 0) <= self.warmup_steps:
            got = self.decay_steps or "none"
            rule = f"must be above warmupSteps ({self.warmup_steps}) for schedule {self.schedule}"
            yield "decaySteps", f"{rule}, got {got}; give the number of steps of the run"


class RankingConfig(LoopConfig):
    """The fields of `spec.training.config` for the built-in model; docs/training.md lists them."""

    label: Column | None = None
    dense: tuple[Column, ...] | None = None
    categorical: tuple[Column, ...] | None = None
    sequences: tuple[SequenceConfig, ...] | None = None
    hash_size: Annotated[int, Field(ge=1, le=1 << 28)] = 32_768  # rows of each embedding table
    out_of_range: Literal["hash", "error"] = "hash"
    embedding_dim: Annotated[int, Field(ge=1, le=4096)] = 16
    hidden: tuple[HiddenSize, ...] = (128, 64)
    dropout: Annotated[float, Field(ge=0, le=0.95)] = 0.0
    sequence_length: PositiveInt | None = None  # items from a list's start; None for all
    attention_length: PositiveInt = 32  # items from a list's start

    def rules(self) -> Iterator[tuple[str, str]]:
        lists = {
            "dense": self.dense or (),
            "categorical": self.categorical or (),
            "sequences": tuple(sequence.column for sequence in self.sequences or ()),
        }
        for field, names in lists.items():
            for name in sorted({name for name in names if names.count(name) > 1}):
                yield field, f"must not repeat an item, got {name!r} twice; remove one"
        yield from super().rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFeature:
    """A list column that the model reads."""

    column: str
    target: str | None
    padding_id: int | None
    is_ragged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The columns that the model reads, by their role."""

    label: str
    dense: tuple[str, ...]
    categorical: tuple[str, ...]  # the sequences' targets included
    sequences: tuple[SequenceFeature, ...]


def parse_config(document: Mapping[str, Any]) -> RankingConfig:
    """Parse `spec.training.config`. Raises a ManifestError that names every wrong field."""
    return _parse(RankingConfig, document)


def parse_loop_config(document: Mapping[str, Any]) -> LoopConfig:
    """Parse the loop's fields of `spec.training.config`; all others are the model's own.

    Raises a ManifestError that names every wrong field, and those in another spelling.
    """
    known = {_plain(name): name for name in field_names(LoopConfig)}
    misspelt = [name for name in document if known.get(_plain(name), name) != name]
    if misspelt:
        raise _manifest_error(
            [
                ((name,), f"must be written {known[_plain(name)]}, which the built-in loop reads")
                for name in misspelt
            ]
        )
    return _parse(LoopConfig, {n: v for n, v in document.items() if n in known.values()})


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _parse(model: type[_Config], document: Mapping[str, Any]) -> _Config:
    try:
        text = json.dumps(dict(document))
        return model.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
    unknown = [tuple(e["loc"]) for e in details if e["type"] == "extra_forbidden"]
    found = explain_errors([e for e in details if e["type"] != "extra_forbidden"], dict(document))
    raise _manifest_error([*((path, _unknown_field(path)) for path in unknown), *found])


def _unknown_field(path: Path) -> str:
    model = model_at(RankingConfig, path[:-1])
    known = sorted(field_names(model)) if model else []
    near = find_similar(str(path[-1]), known)
    hint = f"did you mean {near}?" if near else f"the fields here are {', '.join(known)}"
    return f"unknown field; {hint}"


def _manifest_error(found: Sequence[tuple[Path, str]]) -> ManifestError:
    return ManifestError(
        [Problem(path=format_path((*CONFIG_PATH, *path)), message=text) for path, text in found]
    )


def choose_features(
    config: RankingConfig, schema: pa.Schema, *, label: str | None, weight: str | None
) -> Features:
    """Choose the columns that the config names; for a role without names, all of a fitting type.

    Args:
        config: the config of the model.
        schema: of the batches' columns, before they became tensors.
        label: the run's label column; `config.label` takes precedence.
        weight: the run's weight column. It is a feature only if named, since it often reveals the
            label.

    Raises:
        ManifestError: a named column is missing or has a wrong type, or no feature is left.
    """
    label = config.label or label or DEFAULT_LABEL
    roles = {field.name: _role(field.type) for field in schema}
    found = list(_wrong_columns(config, label, schema))
    free = {name: role for name, role in roles.items() if name not in (label, weight, ROW_WEIGHT)}
    features = _build_features(config, label, free, schema) if not found else None
    if features is not None and not (features.dense or features.categorical or features.sequences):
        found.append(((), "must leave a column to learn from, got only the label; add one"))
    if features is None or found:
        raise _manifest_error(found)
    return features


def _role(data_type: pa.DataType) -> str:
    """Return the role of a column of the type: number, id, ids (a list) or other."""
    plain = plain_type(data_type)
    if pa.types.is_floating(plain) or pa.types.is_boolean(plain):
        return "number"
    if pa.types.is_integer(plain):
        return "id"
    is_list = is_ragged(plain) or pa.types.is_fixed_size_list(plain)
    return "ids" if is_list and pa.types.is_integer(plain_type(plain.value_type)) else "other"


def _build_features(
    config: RankingConfig, label: str, free: Mapping[str, str], schema: pa.Schema
) -> Features:
    def columns(role: str) -> tuple[str, ...]:
        return tuple(name for name, its_role in free.items() if its_role == role)

    sequences = config.sequences
    if sequences is None:
        sequences = tuple(SequenceConfig(column=name) for name in columns("ids"))
    categorical = columns("id") if config.categorical is None else config.categorical
    targets = [sequence.target for sequence in sequences if sequence.target]
    return Features(
        label=label,
        dense=columns("number") if config.dense is None else config.dense,
        categorical=tuple(dict.fromkeys([*categorical, *targets])),
        sequences=tuple(_sequence_feature(sequence, schema) for sequence in sequences),
    )


def _sequence_feature(sequence: SequenceConfig, schema: pa.Schema) -> SequenceFeature:
    ragged = is_ragged(schema.field(sequence.column).type)
    default = None if ragged else DEFAULT_PADDING_ID
    return SequenceFeature(
        column=sequence.column,
        target=sequence.target,
        padding_id=default if sequence.padding_id is None else sequence.padding_id,
        is_ragged=ragged,
    )


def _wrong_columns(
    config: RankingConfig, label: str, schema: pa.Schema
) -> Iterator[tuple[Path, str]]:
    for path, name, kind, roles in _named_columns(config, label):
        if name not in schema.names:
            near = find_similar(name, schema.names)
            hint = f"did you mean {near}?" if near else "add it to the pipeline or training.columns"
            yield path, f"must be a column of the batches, got {name!r}; {hint}"
        elif _role(schema.field(name).type) not in roles:
            yield path, f"must be {kind}, got {name!r} of type {schema.field(name).type}; cast it"


def _named_columns(
    config: RankingConfig, label: str
) -> Iterator[tuple[Path, str, str, tuple[str, ...]]]:
    """Yield for each named column: its field, its name, the required type in words, its roles."""
    number, integer = ("number", "id"), ("id",)
    yield ("label",), label, "a number or a boolean", number
    for i, name in enumerate(config.dense or ()):
        yield ("dense", i), name, "a number or a boolean", number
    for i, name in enumerate(config.categorical or ()):
        yield ("categorical", i), name, "an integer", integer
    for i, sequence in enumerate(config.sequences or ()):
        yield ("sequences", i, "column"), sequence.column, "a list of integers", ("ids",)
        if sequence.target is not None:
            yield ("sequences", i, "target"), sequence.target, "an integer", integer
