"""The built-in ranking model: embeddings, attention over sequences, an MLP on top.

`features` chooses its features before it is built; `trainer` trains it.

Shapes: B rows, F dense columns, C looked-up columns, K first items of a sequence, D embedding,
R rows of all embedding tables, N items of all sequences of a batch, G sequences of a batch,
M rows looked up one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pipeline_runtime.batches import (
    OFFSETS_SUFFIX,
    ROW_WEIGHT,
    VALUES_SUFFIX,
    Batch,
)
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.request_batches import expand, expand_rows
from pipeline_runtime.training.ranking.features import Features, RankingConfig, SequenceFeature

# Standard deviation of initial embeddings, small compared to the 1 of a standardised dense column.
# Items of sequences begin with length 1 instead, so that an item's product with itself differs from
# that with others: AUC after one epoch of the sample data was 0.777, instead of 0.746 with 0.05 and
# without products.
EMBEDDING_STD = 0.05
# Dense values are clipped at this many standard deviations from the mean.
MAX_DEVIATIONS = 8.0
# From this many numbers on, torch splits an index_put_ over threads in any order (its GRAIN_SIZE).
SERIAL_NUMBERS = 32_768

ReduceSum = Callable[[torch.Tensor], torch.Tensor]


class DenseScaler(nn.Module):
    """Scales dense columns to a deviation of about one, whatever their scale and tail.

    Each column enters twice, as x and as sign(x)·log(1 + |x|), standardised by the mean and
    variance of all rows so far, and with a flag that is 1 if the value is missing (NaN or
    infinite). The statistics include the rows of all ranks, so all ranks have the same model.
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
        """Return values [B, 2F], and marks of the known ones [B, 2F]."""
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
        more, shift_sum = reduce_sum(torch.stack([counts.sum(0).to(x.dtype), shift.sum(0)]))
        shift_mean = shift_sum / more.clamp_min(1.0)
        # Around the mean of these rows: squares of times in seconds since 1970 would cancel out.
        rest = torch.where(counts, shift - shift_mean, 0.0)
        squares += reduce_sum(rest.square().sum(0))
        total = (count + more).clamp_min(1.0)
        squares += shift_mean.square() * count * more / total
        mean += shift_mean * more / total
        count += more

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return float32 [B, 3F]: the values, their logarithms, and flags of missing ones."""
        count, mean, squares = self.moments.unbind()
        x, is_known = self._values(batch)
        deviation = (squares / count.clamp_min(1.0)).clamp_min(0.0).sqrt()
        scaled = (x - mean) / torch.where(deviation > 0, deviation, 1.0)
        scaled = torch.where(is_known, scaled.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS), 0.0)
        is_missing_BF = ~is_known[:, : len(self.columns)]
        return torch.cat([scaled.float(), is_missing_BF.float()], 1)


class _Lookup(torch.autograd.Function):
    """Looks up single rows of the tables, and means of bags of rows, with one gradient for both.

    torch's backward of embedding_bag sorts the ids: 105 ms for 614,400 ids of 16 numbers on one
    thread, compared to 33 ms here. The sum has the same order for any number of threads.
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
    """Return the rows [M, D], and the mean of each bag of items [G, D]; 0 for an empty bag."""
    found: tuple[torch.Tensor, torch.Tensor] = _Lookup.apply(weight_RD, rows_M, items_N, starts_G1)
    return found


def _chunks(ids_N: torch.Tensor, width: int) -> Iterator[slice]:
    """Yield slices that torch processes in one thread and that fit its cache; one on a GPU."""
    is_cpu = ids_N.device.type == "cpu"
    size = max(1, (SERIAL_NUMBERS - 1) // width) if is_cpu else max(1, ids_N.shape[0])
    return (slice(start, start + size) for start in range(0, ids_N.shape[0], size))


class RankingModel(nn.Module):
    """The model: logits of the label for each row of a batch.

    Results of columns that batches hold once per request are computed once per request.
    """

    def __init__(
        self,
        features: Features,
        config: RankingConfig,
        request_columns: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.features, self.config = features, config
        self.request_columns = frozenset(request_columns)
        self.tables = _number_tables(features)
        self.weight_RD = nn.Parameter(_fresh_tables(features, self.tables, config))
        self.scaler = DenseScaler(features.dense)
        # (number of the sequence, number of its target among the categorical columns)
        self.targeted = [
            (number, features.categorical.index(sequence.target))
            for number, sequence in enumerate(features.sequences)
            if sequence.target
        ]
        num_columns, num_vectors = len(features.categorical), len(features.sequences)
        num_vectors += len(self.targeted)
        width = (num_columns + num_vectors) * config.embedding_dim + num_columns * num_vectors
        self.mlp, width = _build_mlp(width + self.scaler.num_outputs, config)
        self.output = nn.Linear(width, 1)

    def by_row(self, batch: Batch) -> Batch:
        """Return the batch with one value per row for every column except lists."""
        lists = {sequence.column for sequence in self.features.sequences}
        read = {self.features.label, *self.features.dense, *self.features.categorical}
        return expand(batch, (self.request_columns & read) - lists)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return logits [B] for a batch that `by_row` returned."""
        sequences = [self._sequence_rows(batch, feature) for feature in self.features.sequences]
        heads = [sequences[i].head(self.config.attention_length) for i, _ in self.targeted]
        rows = [self._categorical_rows(batch), *(rows_BK for rows_BK, _ in heads)]
        (columns_BCD, *keys), vectors = self._look_up(rows, sequences)
        vectors = [self._expanded(i, vector, batch) for i, vector in enumerate(vectors)]
        for (i, target), keys_KD, (_, is_item_K) in zip(self.targeted, keys, heads, strict=True):
            keys_BKD, is_item_BK = (self._expanded(i, x, batch) for x in (keys_KD, is_item_K))
            vectors.append(attend(columns_BCD[:, target], keys_BKD, is_item_BK))
        inputs = [columns_BCD.flatten(1), *vectors]
        inputs += [torch.einsum("bcd,bd->bc", columns_BCD, vector_BD) for vector_BD in vectors]
        if self.features.dense:
            inputs.append(self.scaler(batch))
        logits_B1: torch.Tensor = self.output(self.mlp(torch.cat(inputs, 1)))
        return logits_B1.squeeze(1)

    @torch.no_grad()
    def begin_at(self, base_rate: float) -> None:
        """Make the untrained model predict the base rate, from where it learns faster."""
        if 0 < base_rate < 1:
            self.output.bias.fill_(math.log(base_rate) - math.log1p(-base_rate))

    def _expanded(self, sequence: int, values: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Expand values of a sequence from requests to rows [B, …]."""
        is_shared = self.features.sequences[sequence].column in self.request_columns
        return expand_rows(values, batch) if is_shared else values

    def _row_ids(self, column: str, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the embedding tables for the ids of a column, or of a sequence's items."""
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
        """Return embeddings of each tensor of rows [..., D], and vectors of each sequence's lists.

        A list's vector is the sum of its items ÷ √their number, so its length does not depend on
        the number of random items.
        """
        bags = _concatenate(sequences, self.device)
        rows_M = torch.cat([each.flatten() for each in rows])
        found_MD, means_GD = look_up(self.weight_RD, rows_M, bags.items_N, bags.starts_B1)
        parts = torch.split(found_MD, [each.numel() for each in rows])
        found = [
            part.view(*each.shape, part.shape[-1]) for part, each in zip(parts, rows, strict=True)
        ]
        vectors_GD = means_GD * bags.starts_B1.diff().sqrt()[:, None]
        sizes = [sequence.starts_B1.shape[0] - 1 for sequence in sequences]
        return found, list(torch.split(vectors_GD, sizes)) if sequences else []

    @property
    def device(self) -> torch.device:
        return self.weight_RD.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Lists of a batch: all their items, the starts of the lists, and the end of the last one."""

    items_N: torch.Tensor
    starts_B1: torch.Tensor

    def truncate(self, length: int) -> Ragged:
        """Keep the first `length` items of each list."""
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
        """Return the first items of each list [B, K], and marks of those that exist [B, K]."""
        steps_K = torch.arange(size, device=self.starts_B1.device)
        at_BK = self.starts_B1[:-1, None] + steps_K
        is_item_BK = at_BK < self.starts_B1[1:, None]
        if self.items_N.shape[0] == 0:
            return torch.zeros_like(at_BK), is_item_BK
        return self.items_N[at_BK.clamp_max(self.items_N.shape[0] - 1)], is_item_BK


def _read_ragged(batch: Batch, feature: SequenceFeature) -> Ragged:
    """Return a list column of a batch, of fixed size or not, without its padding."""
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
    """Concatenate the lists of all columns, one column after another."""
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
    """Number the embedding tables by column; a sequence with a target shares the target's table."""
    tables = {name: number for number, name in enumerate(features.categorical)}
    for sequence in features.sequences:
        tables[sequence.column] = tables.get(sequence.target or "", len(set(tables.values())))
    return tables


def _fresh_tables(
    features: Features, tables: Mapping[str, int], config: RankingConfig
) -> torch.Tensor:
    """Return random embeddings [R, D], table after table."""
    std = torch.full((len(set(tables.values())),), EMBEDDING_STD)
    for sequence in features.sequences:
        std[tables[sequence.column]] = config.embedding_dim**-0.5
    weight = torch.randn(std.shape[0], config.hash_size, config.embedding_dim)
    return (weight * std[:, None, None]).flatten(0, 1)


def _build_mlp(width: int, config: RankingConfig) -> tuple[nn.Sequential, int]:
    """Build the hidden layers; return them and the width of their output."""
    layers: list[nn.Module] = []
    for size in config.hidden:
        layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(config.dropout)]
        width = size
    return nn.Sequential(*layers), width


def attend(
    query_BD: torch.Tensor, keys_BKD: torch.Tensor, is_item_BK: torch.Tensor
) -> torch.Tensor:
    """Return the mean of the keys weighted by softmax(query · key ÷ √D); 0 without items."""
    scores_BK = torch.einsum("bd,bkd->bk", query_BD, keys_BKD) / math.sqrt(query_BD.shape[1])
    # The lowest number instead of -inf: with -inf, the softmax of a list without items is NaN.
    scores_BK = scores_BK.masked_fill(~is_item_BK, torch.finfo(scores_BK.dtype).min)
    weights_BK = scores_BK.softmax(1) * is_item_BK
    return torch.einsum("bk,bkd->bd", weights_BK, keys_BKD)
