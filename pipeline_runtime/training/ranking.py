"""The built-in entrypoint: a model that predicts a label from dense, categorical and list columns.

Owned here: its config, which columns become features, the model, its metrics and its loop. The
context runs before it and hands over batches; nothing runs after it but the context's `report`.

    dense         standardised by statistics of the rows seen so far, with a flag for missing
    categorical   an embedding each, ids modulo `hashSize`
    sequences     the mean of the items' embeddings; with a `target` also attention by the candidate

Shapes: B rows, F dense columns, C looked-up columns, K first items of a sequence, D embedding,
R rows of all embedding tables, N items of all sequences of a batch, G sequences of a batch,
M rows looked up one by one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError
from torch import nn

from pipeline_runtime.batches import (
    OFFSETS_SUFFIX,
    ROW_WEIGHT,
    VALUES_SUFFIX,
    Batch,
    is_ragged,
    plain_type,
)
from pipeline_runtime.config.base import Column, Count, PositiveInt, SpecModel
from pipeline_runtime.config.documents import Path, format_path
from pipeline_runtime.config.introspect import field_names, model_at
from pipeline_runtime.config.problems import explain_errors, find_similar
from pipeline_runtime.errors import CheckpointError, ManifestError, Problem, TrainingError

if TYPE_CHECKING:
    from pipeline_runtime.training.context import TrainContext

CHECKPOINT_VERSION = 1
CONFIG_PATH: Path = ("spec", "training", "config")
# Where the run names no label: the column that the sample data and many logs call it.
DEFAULT_LABEL = "clicked"
# padSequence fills up with 0 unless told otherwise, so 0 in a list of fixed size is no item.
DEFAULT_PADDING_ID = 0
# Standard deviation of fresh embeddings: small beside the 1 of a standardised dense column.
EMBEDDING_STD = 0.05
# A dense value farther than so many standard deviations off is as good as there.
MAX_DEVIATIONS = 8.0
# Scores fall into bins of 32 / 16,384 = 0.002 logits: AUC is exact to about 1e-6 of that.
NUM_SCORE_BINS = 16_384
MAX_LOGIT = 16.0
# torch splits an index_put_ over threads, in any order, from this many numbers on (its GRAIN_SIZE).
SERIAL_NUMBERS = 32_768

ReduceSum = Callable[[torch.Tensor], torch.Tensor]
HiddenSize = Annotated[int, Field(ge=1, le=65_536)]


# --- config and columns ---------------------------------------------------------------------------


class SequenceConfig(SpecModel):
    """A list column; `target` names the column of the candidate, which shares its embedding."""

    column: Column
    target: Column | None = None
    padding_id: int | None = None  # not an item; 0 in lists of fixed size when absent


class RankingConfig(SpecModel):
    """What `spec.training.config` may say to this entrypoint (table in docs/training.md)."""

    label: Column | None = None
    dense: tuple[Column, ...] | None = None
    categorical: tuple[Column, ...] | None = None
    sequences: tuple[SequenceConfig, ...] | None = None
    hash_size: Annotated[int, Field(ge=1, le=1 << 28)] = 32_768  # rows of each embedding table
    out_of_range: Literal["hash", "error"] = "hash"
    embedding_dim: Annotated[int, Field(ge=1, le=4096)] = 16
    hidden: tuple[HiddenSize, ...] = (128, 64)
    dropout: Annotated[float, Field(ge=0, le=0.95)] = 0.0
    sequence_length: PositiveInt | None = None  # items from a list's start; all when absent
    attention_length: PositiveInt = 32  # items from a list's start
    optimizer: Literal["adam", "adagrad"] = "adam"
    learning_rate: Annotated[float, Field(ge=1e-9, le=100)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Count = 0
    decay_steps: PositiveInt | None = None  # the step at which the rate reaches 0
    report_every_steps: PositiveInt = 10

    def rules(self) -> Iterator[tuple[str, str]]:
        lists = {
            "dense": self.dense or (),
            "categorical": self.categorical or (),
            "sequences": tuple(sequence.column for sequence in self.sequences or ()),
        }
        for field, names in lists.items():
            for name in sorted({name for name in names if names.count(name) > 1}):
                yield field, f"must not repeat an item, got {name!r} twice; remove one"
        is_constant = self.schedule == "constant"
        if is_constant and self.decay_steps is not None:
            yield "decaySteps", "must come with schedule linear or cosine, got constant; remove it"
        if not is_constant and (self.decay_steps or 0) <= self.warmup_steps:
            got = self.decay_steps or "none"
            rule = f"must be above warmupSteps ({self.warmup_steps}) for schedule {self.schedule}"
            yield "decaySteps", f"{rule}, got {got}; give the number of steps of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFeature:
    """A list column as the model reads it."""

    column: str
    target: str | None
    padding_id: int | None
    is_ragged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Which columns the model reads, and as what."""

    label: str
    dense: tuple[str, ...]
    categorical: tuple[str, ...]  # the sequences' targets included
    sequences: tuple[SequenceFeature, ...]


def parse_config(document: Mapping[str, Any]) -> RankingConfig:
    """The config of `spec.training.config`; a ManifestError names every field that is wrong."""
    try:
        text = json.dumps(dict(document))
        return RankingConfig.model_validate_json(text, by_alias=True, by_name=False)
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
    """The columns that the config names, or those whose type fits where it names none.

    Args:
        config: of the model.
        schema: of the batches' columns, before they became tensors.
        label: the run's label column; `config.label` goes before it.
        weight: the run's weight column, never a feature unless named: it often tells the label.

    Raises:
        ManifestError: a named column is missing or of another kind, or nothing is left.
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
    """What a column of the type is to the model: number, id, ids (a list) or other."""
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
    """Every column that is named: where, its name, what it must be in words, and its roles."""
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


# --- the model ------------------------------------------------------------------------------------


class DenseScaler(nn.Module):
    """Dense columns as numbers of about one deviation, whatever their scale and tail.

    Each column enters twice, as it is and as sign(x)·log(1 + |x|), standardised by the mean and
    variance of the rows seen so far, and with a flag that is 1 where the value is missing (NaN or
    infinite). The statistics are of all ranks' rows, so no rank's model differs.
    """

    moments: torch.Tensor

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__()
        self.columns = tuple(columns)
        # Rows (count), mean and sum of squared deviations, after Welford; float64 for long runs.
        self.register_buffer("moments", torch.zeros(3, 2 * len(columns), dtype=torch.float64))

    @property
    def num_outputs(self) -> int:
        return 3 * len(self.columns)

    def _values(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Values [B, 2F], and whether each is known [B, 2F]."""
        columns = [batch[name].to(torch.float64) for name in self.columns]
        x_BF = torch.stack(columns, dim=1)
        is_known_BF = torch.isfinite(x_BF)
        x_BF = torch.where(is_known_BF, x_BF, 0.0)
        return torch.cat([x_BF, x_BF.sign() * x_BF.abs().log1p()], 1), is_known_BF.repeat(1, 2)

    @torch.no_grad()
    def observe(self, batch: Batch, reduce_sum: ReduceSum) -> None:
        """Add the rows of positive weight of all ranks' batches to the statistics."""
        if not self.columns:
            return
        count, mean, squares = self.moments.unbind()
        x, is_known = self._values(batch)
        counts = is_known & (batch[ROW_WEIGHT] > 0)[:, None]
        shift = torch.where(counts, x - mean, 0.0)
        more, shift_sum, shift_squares = reduce_sum(
            torch.stack([counts.sum(0).to(x.dtype), shift.sum(0), shift.square().sum(0)])
        )
        total = (count + more).clamp_min(1.0)
        squares += shift_squares - shift_sum.square() / total
        mean += shift_sum / total
        count += more

    def forward(self, batch: Batch) -> torch.Tensor:
        """float32 [B, 3F]: as it is, its logarithm, is missing."""
        count, mean, squares = self.moments.unbind()
        x, is_known = self._values(batch)
        deviation = (squares / count.clamp_min(1.0)).clamp_min(0.0).sqrt()
        scaled = (x - mean) / torch.where(deviation > 0, deviation, 1.0)
        scaled = torch.where(is_known, scaled.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS), 0.0)
        is_missing_BF = ~is_known[:, : len(self.columns)]
        return torch.cat([scaled.float(), is_missing_BF.float()], 1)


class _Lookup(torch.autograd.Function):
    """Rows of the tables one by one, and means of bags of rows, with one gradient for both.

    Four times as fast on a CPU as torch's own backward of embedding_bag, which sorts the ids, and
    the sum has the same order whatever the number of threads.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight_RD: torch.Tensor,
        rows_M: torch.Tensor,
        items_N: torch.Tensor,
        starts_G1: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(rows_M, items_N, starts_G1)
        ctx.shape = weight_RD.shape
        means_GD = F.embedding_bag(
            items_N, weight_RD, starts_G1, mode="mean", include_last_offset=True
        )
        return F.embedding(rows_M, weight_RD), means_GD

    @staticmethod
    def backward(
        ctx: Any, grad_MD: torch.Tensor, grad_GD: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        rows_M, items_N, starts_G1 = ctx.saved_tensors
        lengths_G = starts_G1.diff()
        bags_N = torch.repeat_interleave(lengths_G, output_size=items_N.shape[0])
        share_GD = grad_GD / lengths_G.clamp_min(1)[:, None]
        grad_RD = grad_MD.new_zeros(ctx.shape)
        for at in _chunks(rows_M, ctx.shape[1]):
            grad_RD.index_put_((rows_M[at],), grad_MD[at], accumulate=True)
        for at in _chunks(items_N, ctx.shape[1]):
            shares = share_GD.index_select(0, bags_N[at])
            grad_RD.index_put_((items_N[at],), shares, accumulate=True)
        return grad_RD, None, None, None


def look_up(
    weight_RD: torch.Tensor, rows_M: torch.Tensor, items_N: torch.Tensor, starts_G1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows [M, D], and the mean of each bag of items [G, D], 0 for an empty one."""
    found: tuple[torch.Tensor, torch.Tensor] = _Lookup.apply(weight_RD, rows_M, items_N, starts_G1)
    return found


def _chunks(ids_N: torch.Tensor, width: int) -> Iterator[slice]:
    """Slices that torch works on in one thread, and that fit its cache; all at once on a GPU."""
    is_cpu = ids_N.device.type == "cpu"
    size = max(1, (SERIAL_NUMBERS - 1) // width) if is_cpu else max(1, ids_N.shape[0])
    return (slice(start, start + size) for start in range(0, ids_N.shape[0], size))


class RankingModel(nn.Module):
    """Logits of the label for each row of a batch."""

    def __init__(self, features: Features, config: RankingConfig) -> None:
        super().__init__()
        self.features, self.config = features, config
        self.tables = _number_tables(features)
        num_rows = config.hash_size * len(set(self.tables.values()))
        self.weight_RD = nn.Parameter(torch.randn(num_rows, config.embedding_dim) * EMBEDDING_STD)
        self.scaler = DenseScaler(features.dense)
        # (number of the sequence, number of its target among the categorical columns)
        self.targeted = [
            (number, features.categorical.index(sequence.target))
            for number, sequence in enumerate(features.sequences)
            if sequence.target
        ]
        width = len(features.categorical) * config.embedding_dim
        self.queries = nn.ModuleList(nn.Linear(width, config.embedding_dim) for _ in self.targeted)
        # Of each sequence its mean; of those with a target also what the candidate makes of it.
        vectors = len(features.sequences) + 2 * len(self.targeted)
        width += self.scaler.num_outputs + vectors * config.embedding_dim
        self.mlp = _build_mlp(width, config)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        sequences = [self._sequence_rows(batch, feature) for feature in self.features.sequences]
        heads = [sequences[i].head(self.config.attention_length) for i, _ in self.targeted]
        rows = [self._categorical_rows(batch), *(rows_BK for rows_BK, _ in heads)]
        (values_BCD, *keys), means = self._look_up(rows, sequences)
        context_BX = values_BCD.flatten(1)
        inputs = [context_BX, *means]
        for number, (sequence, target) in enumerate(self.targeted):
            query_BD = values_BCD[:, target] + self.queries[number](context_BX)
            inputs.append(query_BD * means[sequence])
            inputs.append(attend(query_BD, keys[number], heads[number][1]))
        if self.features.dense:
            inputs.append(self.scaler(batch))
        logits_B1: torch.Tensor = self.mlp(torch.cat(inputs, 1))
        return logits_B1.squeeze(1)

    def _row_ids(self, column: str, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding tables for the ids of a column, or of a sequence's items."""
        size = self.config.hash_size
        if self.config.out_of_range == "error":
            _check_range(column, ids, size)
        return torch.remainder(ids.to(torch.int64), size) + self.tables[column] * size

    def _categorical_rows(self, batch: Batch) -> torch.Tensor:
        columns = [self._row_ids(name, batch[name]) for name in self.features.categorical]
        if columns:
            return torch.stack(columns, 1)
        return torch.zeros(batch[ROW_WEIGHT].shape[0], 0, dtype=torch.int64, device=self.device)

    def _sequence_rows(self, batch: Batch, feature: SequenceFeature) -> Ragged:
        ragged = _read_ragged(batch, feature)
        if self.config.sequence_length is not None:
            ragged = ragged.truncate(self.config.sequence_length)
        items_N = self._row_ids(feature.column, ragged.items_N)
        return Ragged(items_N=items_N, starts_B1=ragged.starts_B1)

    def _look_up(
        self, rows: Sequence[torch.Tensor], sequences: Sequence[Ragged]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Embeddings of each tensor of rows [..., D], and the mean [B, D] of each sequence."""
        bags = _concatenate(sequences, self.device)
        rows_M = torch.cat([each.flatten() for each in rows])
        found_MD, means_GD = look_up(self.weight_RD, rows_M, bags.items_N, bags.starts_B1)
        parts = torch.split(found_MD, [each.numel() for each in rows])
        found = [part.unflatten(0, each.shape) for part, each in zip(parts, rows, strict=True)]
        return found, list(means_GD.chunk(len(sequences))) if sequences else []

    @property
    def device(self) -> torch.device:
        return self.weight_RD.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Lists of a batch: the items of all, and where each list starts and the last one ends."""

    items_N: torch.Tensor
    starts_B1: torch.Tensor

    def truncate(self, length: int) -> Ragged:
        """The first `length` items of each list."""
        lengths_B = self.starts_B1.diff()
        first_N = torch.repeat_interleave(
            self.starts_B1[:-1], lengths_B, output_size=self.items_N.shape[0]
        )
        place_N = torch.arange(self.items_N.shape[0], device=first_N.device) - first_N
        return Ragged(
            items_N=self.items_N[place_N < length],
            starts_B1=F.pad(lengths_B.clamp_max(length).cumsum(0), (1, 0)),
        )

    def head(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first items of each list [B, K], and which of them there are [B, K]."""
        steps_K = torch.arange(size, device=self.starts_B1.device)
        at_BK = self.starts_B1[:-1, None] + steps_K
        is_item_BK = at_BK < self.starts_B1[1:, None]
        if self.items_N.shape[0] == 0:
            return torch.zeros_like(at_BK), is_item_BK
        return self.items_N[at_BK.clamp_max(self.items_N.shape[0] - 1)], is_item_BK


def _read_ragged(batch: Batch, feature: SequenceFeature) -> Ragged:
    """A list column of a batch, fixed size or not, without its padding."""
    if feature.is_ragged:
        items_N = batch[feature.column + VALUES_SUFFIX]
        starts_B1 = batch[feature.column + OFFSETS_SUFFIX]
        if feature.padding_id is None:
            return Ragged(items_N=items_N, starts_B1=starts_B1)
        is_item_N = items_N != feature.padding_id
        return Ragged(
            items_N=items_N[is_item_N], starts_B1=F.pad(is_item_N.cumsum(0), (1, 0))[starts_B1]
        )
    items_BL = batch[feature.column]
    is_item_BL = torch.ne(items_BL, feature.padding_id or 0)
    starts_B1 = F.pad(is_item_BL.sum(1).cumsum(0), (1, 0))
    return Ragged(items_N=items_BL[is_item_BL], starts_B1=starts_B1)


def _concatenate(sequences: Sequence[Ragged], device: torch.device) -> Ragged:
    """All lists of all columns, one column after another."""
    lengths = [sequence.starts_B1.diff() for sequence in sequences]
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return Ragged(
        items_N=torch.cat([none, *(sequence.items_N for sequence in sequences)]),
        starts_B1=F.pad(torch.cat([none, *lengths]).cumsum(0), (1, 0)),
    )


def _check_range(column: str, ids: torch.Tensor, size: int) -> None:
    is_out = (ids < 0) | (ids >= size)
    if is_out.any():
        got = f"got {int(ids[is_out][0])} (one of {int(is_out.sum())} in this batch)"
        advice = "raise hashSize, hashBucket the column, or set outOfRange: hash"
        raise TrainingError(
            f"column {column!r}: must hold ids from 0 to {size - 1} (hashSize), {got}; {advice}"
        )


def _number_tables(features: Features) -> dict[str, int]:
    """Which embedding table each column uses; a sequence with a target shares the target's."""
    tables = {name: number for number, name in enumerate(features.categorical)}
    for sequence in features.sequences:
        tables[sequence.column] = tables.get(sequence.target or "", len(set(tables.values())))
    return tables


def _build_mlp(width: int, config: RankingConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in config.hidden:
        layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(config.dropout)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def attend(
    query_BD: torch.Tensor, keys_BKD: torch.Tensor, is_item_BK: torch.Tensor
) -> torch.Tensor:
    """Mean of the keys weighted by softmax(query · key ÷ √D) over the items; 0 without items."""
    scores_BK = torch.einsum("bd,bkd->bk", query_BD, keys_BKD) / math.sqrt(query_BD.shape[1])
    # The lowest number and not -inf, of which softmax over a list without items would make NaN.
    scores_BK = scores_BK.masked_fill(~is_item_BK, torch.finfo(scores_BK.dtype).min)
    weights_BK = scores_BK.softmax(1) * is_item_BK
    return torch.einsum("bk,bkd->bd", weights_BK, keys_BKD)


# --- metrics --------------------------------------------------------------------------------------


class ScoreMeter:
    """Loss and AUC of rows as they pass, in memory that does not grow with them."""

    def __init__(self, device: torch.device) -> None:
        # Weight of the rows of label 0 and 1 by score; sums of loss·weight, weight, wrong labels.
        self.histogram = torch.zeros(2, NUM_SCORE_BINS, dtype=torch.float64, device=device)
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(
        self,
        logits_B: torch.Tensor,
        labels_B: torch.Tensor,
        losses_B: torch.Tensor,
        weight_B: torch.Tensor,
    ) -> torch.Tensor:
        """Count rows; returns what they add to (loss·weight, weight, labels outside 0 to 1)."""
        labels_B, weight_B = labels_B.to(torch.float64), weight_B.to(torch.float64)
        is_wrong_B = ((labels_B < 0) | (labels_B > 1)) & (weight_B > 0)
        bins_B = _score_bins(logits_B)
        for label, share_B in ((0, 1 - labels_B), (1, labels_B)):
            self.histogram[label].index_put_((bins_B,), share_B * weight_B, accumulate=True)
        more = torch.stack([(losses_B * weight_B).sum(), weight_B.sum(), is_wrong_B.sum()])
        self.sums += more
        return more

    def metrics(self, prefix: str, reduce_sum: ReduceSum) -> dict[str, float]:
        """What can be told of the rows of all ranks; nothing if there were none."""
        loss_sum, weight, _ = reduce_sum(self.sums).tolist()
        histogram = reduce_sum(self.histogram)
        if weight == 0:
            return {}
        metrics = {f"{prefix}_loss": loss_sum / weight}
        positive = float(histogram[1].sum() / weight)
        if 0 < positive < 1:
            base_rate_loss = _entropy(positive)
            metrics[f"{prefix}_auc"] = area_under_curve(histogram)
            metrics[f"{prefix}_base_rate_loss"] = base_rate_loss
            metrics[f"{prefix}_normalized_entropy"] = loss_sum / weight / base_rate_loss
        return metrics


def _score_bins(logits_B: torch.Tensor) -> torch.Tensor:
    place_B = (logits_B.float() + MAX_LOGIT) * (NUM_SCORE_BINS / (2 * MAX_LOGIT))
    return place_B.nan_to_num().clamp(0, NUM_SCORE_BINS - 1).long()


def _entropy(share: float) -> float:
    """Loss of a model that knows the base rate and nothing else, in nats."""
    return -(share * math.log(share) + (1 - share) * math.log1p(-share))


def area_under_curve(histogram: torch.Tensor) -> float:
    """AUC from the weights of negatives n (row 0) and positives p (row 1) in bins of rising score.

    Σ_b p_b · (Σ_{a<b} n_a + n_b / 2) ÷ (Σ p · Σ n), Mann and Whitney's U: the chance that a
    positive scores above a negative, where a tie counts half.
    """
    negative, positive = histogram
    below = negative.cumsum(0) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))


# --- the loop -------------------------------------------------------------------------------------


def train_loop(ctx: TrainContext) -> None:
    """Train the ranking model for the epochs that are left; `spec.training.entrypoint`'s default.

    Raises:
        ManifestError: `spec.training.config` is wrong, or does not fit the columns.
        TrainingError: an id is out of range, a label is not from 0 to 1, or the loss is not finite.
        CheckpointError: the checkpoint is of another version, or of a model of other columns.
    """
    run = _Run(ctx)
    if ctx.checkpoint is not None:
        run.restore(ctx.checkpoint)
    for _ in ctx.epochs():
        run.train_epoch()


def check_config(
    training_config: Mapping[str, Any], schema: pa.Schema, *, label: str | None, weight: str | None
) -> None:
    """Raise the ManifestError that `train_loop` would, before anything runs."""
    choose_features(parse_config(training_config), schema, label=label, weight=weight)


def step_seed(seed: int, rank: int, step: int) -> int:
    """The one way in which randomness depends on the run's seed, the rank and the step."""
    return int(np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)[0])


def learning_rate(config: RankingConfig, step: int) -> float:
    """The rate of a step, counted from 0: up in `warmupSteps`, then down by the schedule."""
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    if config.decay_steps is None:
        return config.learning_rate * warmup
    steps = config.decay_steps - config.warmup_steps
    done = min(1.0, max(0.0, (step - config.warmup_steps) / steps))
    left = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate * warmup * left


class _Run:
    """The live objects of one rank's training."""

    def __init__(self, ctx: TrainContext) -> None:
        self.ctx = ctx
        self.config = parse_config(ctx.config)
        self.features = choose_features(
            self.config, ctx.schema, label=ctx.label_column, weight=ctx.weight_column
        )
        torch.manual_seed(step_seed(ctx.seed, 0, 0))  # every rank begins with the same weights
        self.module = RankingModel(self.features, self.config)
        self.model = ctx.prepare(self.module)
        self.optimizer = _build_optimizer(self.module, self.config)
        self.scaler = ctx.scaler()
        self.step = 0
        self.window = torch.zeros(3, dtype=torch.float64, device=ctx.device)

    def train_epoch(self) -> None:
        """The batches of an epoch that are left, then the evaluation, then a checkpoint."""
        meter = ScoreMeter(self.ctx.device)
        self.model.train()
        for batch in self.ctx.batches():
            self._train_step(batch, meter)
            is_due = self.ctx.checkpoint_due()
            if is_due or self.step % self.config.report_every_steps == 0:
                self.ctx.report(self._flush_window(), self.state() if is_due else None)
        metrics = self._flush_window() | meter.metrics("train", self.ctx.reduce_sum)
        self.ctx.report(metrics | self._evaluate(), self.state())

    def _train_step(self, batch: Batch, meter: ScoreMeter) -> None:
        torch.manual_seed(step_seed(self.ctx.seed, self.ctx.rank, self.step + 1))  # for dropout
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step)
        self.module.scaler.observe(batch, self.ctx.reduce_sum)
        logits_B, losses_B = self._losses(self.model, batch)
        loss = self.ctx.weighted_mean(losses_B, batch)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        label_B = batch[self.features.label]
        self.window += meter.add(logits_B, label_B, losses_B, batch[ROW_WEIGHT])

    def _losses(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B], and their binary cross-entropy with the labels [B] in nats, unweighted."""
        with self.ctx.autocast():
            logits_B = model(batch)
        labels_B = batch[self.features.label].float()
        logits_B = logits_B.float()
        return logits_B, F.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        meter = ScoreMeter(self.ctx.device)
        self.module.eval()
        for batch in self.ctx.evaluation_batches():
            # Not through DistributedDataParallel, which would wait for ranks that have no batch.
            logits_B, losses_B = self._losses(self.module, batch)
            meter.add(logits_B, batch[self.features.label], losses_B, batch[ROW_WEIGHT])
        return meter.metrics("eval", self.ctx.reduce_sum)

    def _flush_window(self) -> dict[str, float]:
        """The mean loss since the last flush; all ranks call it at the same step."""
        loss_sum, weight, num_wrong = self.ctx.reduce_sum(self.window).tolist()
        self.window.zero_()
        if num_wrong:
            rule = f"label column {self.features.label!r}: must be from 0 to 1"
            raise TrainingError(f"{rule}, got {num_wrong:.0f} others; derive one that is")
        if not math.isfinite(loss_sum):
            got = f"got {loss_sum} in the steps up to {self.step}"
            raise TrainingError(f"loss: must be finite, {got}; lower training.config.learningRate")
        return {"loss": loss_sum / weight} if weight else {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; the learning rate follows from the step."""
        return {
            "version": CHECKPOINT_VERSION,
            "features": asdict(self.features),
            "step": self.step,
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        for key, mine in (("version", CHECKPOINT_VERSION), ("features", asdict(self.features))):
            if checkpoint.get(key) != mine:
                got = f"got {checkpoint.get(key)!r}, this run has {mine!r}"
                raise CheckpointError(
                    f"ranking model's {key}: must be this run's, {got}; start anew"
                )
        self.step = checkpoint["step"]
        self.module.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scaler.load_state_dict(checkpoint["scaler"])


def _build_optimizer(module: nn.Module, config: RankingConfig) -> torch.optim.Optimizer:
    decay, parameters = config.weight_decay, list(module.parameters())
    if config.optimizer == "adam":
        return torch.optim.AdamW(parameters, weight_decay=decay, fused=True)
    fused = parameters[0].device.type == "cpu"  # torch has no fused Adagrad for GPUs
    return torch.optim.Adagrad(parameters, weight_decay=decay, fused=fused)
