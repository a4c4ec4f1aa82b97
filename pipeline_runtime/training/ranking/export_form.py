"""The built-in model in a form that torch.export and ONNX can trace.

`network` drops what is no item of a list, so its shapes depend on the values of a batch. Here every
item stays, and a mask leaves it out: the same logits, by more work on lists of fixed size. Ids that
are out of range are taken modulo `hashSize` even if `outOfRange` is `error`, as a trace cannot
raise.

Shapes: B rows, C looked-up columns, L items of a list of fixed size, N items of all lists, K first
items of a list, D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from pipeline_runtime.batches import OFFSETS_SUFFIX, VALUES_SUFFIX, Batch
from pipeline_runtime.training.ranking.features import SequenceFeature
from pipeline_runtime.training.ranking.network import RankingModel, attend


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lists:
    """Vectors of a column's lists, and their first items for the attention."""

    vector_BD: torch.Tensor
    keys_BKD: torch.Tensor
    is_item_BK: torch.Tensor


class ExportForm(nn.Module):
    """The trained model, which takes batches of one value per row for every column except lists."""

    def __init__(self, model: RankingModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return logits [B], those of `RankingModel.forward`."""
        features = self.model.features
        lists = [self._read(batch, feature) for feature in features.sequences]
        columns = [self._embed(name, batch[name]) for name in features.categorical]
        vectors = [each.vector_BD for each in lists]
        for i, target in self.model.targeted:
            vectors.append(attend(columns[target], lists[i].keys_BKD, lists[i].is_item_BK))
        inputs = [*columns, *vectors]
        if columns:
            columns_BCD = torch.stack(columns, 1)
            inputs += [(columns_BCD * vector_BD[:, None]).sum(2) for vector_BD in vectors]
        if features.dense:
            inputs.append(self.model.scaler(batch))
        logits_B1: torch.Tensor = self.model.output(self.model.mlp(torch.cat(inputs, 1)))
        return logits_B1.squeeze(1)

    def _embed(self, column: str, ids: torch.Tensor) -> torch.Tensor:
        size = self.model.config.hash_size
        rows = torch.remainder(ids.to(torch.int64), size) + self.model.tables[column] * size
        return F.embedding(rows, self.model.weight_RD)

    def _read(self, batch: Batch, feature: SequenceFeature) -> _Lists:
        return (
            self._read_ragged(batch, feature) if feature.is_ragged else self._fixed(batch, feature)
        )

    def _fixed(self, batch: Batch, feature: SequenceFeature) -> _Lists:
        config, items_BL = self.model.config, batch[feature.column]
        is_item_BL = torch.ne(items_BL, feature.padding_id or 0)
        place_BL = is_item_BL.to(torch.int64).cumsum(1) - 1
        if config.sequence_length is not None:
            is_item_BL = is_item_BL & (place_BL < config.sequence_length)
        items_BLD = self._embed(feature.column, items_BL)
        count_B = is_item_BL.sum(1).clamp_min(1).to(items_BLD.dtype)
        return _Lists(
            vector_BD=(items_BLD * is_item_BL[:, :, None]).sum(1) / count_B.sqrt()[:, None],
            keys_BKD=items_BLD,
            is_item_BK=is_item_BL & (place_BL < config.attention_length),
        )

    def _read_ragged(self, batch: Batch, feature: SequenceFeature) -> _Lists:
        config = self.model.config
        items_N = batch[feature.column + VALUES_SUFFIX]
        offsets_B1 = batch[feature.column + OFFSETS_SUFFIX]
        num_rows, width = offsets_B1.shape[0] - 1, config.attention_length
        list_N = _number_lists(offsets_B1, items_N)
        is_item_N = torch.ones_like(items_N, dtype=torch.bool)
        if feature.padding_id is not None:
            is_item_N = torch.ne(items_N, feature.padding_id)
        before_N1 = F.pad(is_item_N.to(torch.int64).cumsum(0), (1, 0))
        place_N = before_N1[:-1] - before_N1[offsets_B1[:-1]][list_N]
        if config.sequence_length is not None:
            is_item_N = is_item_N & (place_N < config.sequence_length)
        items_ND = self._embed(feature.column, items_N)
        sums_BD = items_ND.new_zeros(num_rows, config.embedding_dim).scatter_add(
            0, list_N[:, None].expand(-1, config.embedding_dim), items_ND * is_item_N[:, None]
        )
        count_B = torch.zeros_like(offsets_B1[1:]).scatter_add(0, list_N, is_item_N.to(torch.int64))
        # Each list has a place more, for the items that the attention leaves out.
        is_first_N = is_item_N & (place_N < width)
        at_N = list_N * (width + 1) + torch.where(is_first_N, place_N, width)
        places = torch.zeros(num_rows * (width + 1), dtype=torch.int64, device=items_N.device)
        ids_BK = places.scatter(0, at_N, items_N.to(torch.int64)).view(num_rows, width + 1)
        is_item_BK = torch.arange(width, device=items_N.device) < count_B[:, None]
        return _Lists(
            vector_BD=sums_BD / count_B.clamp_min(1).to(sums_BD.dtype).sqrt()[:, None],
            keys_BKD=self._embed(feature.column, ids_BK[:, :-1]),
            is_item_BK=is_item_BK,
        )


def _number_lists(offsets_B1: torch.Tensor, items_N: torch.Tensor) -> torch.Tensor:
    """Return the number of each item's list [N]: the lists that begin at or before the item."""
    begun = items_N.new_zeros(items_N.shape[0] + 1, dtype=torch.int64)
    starts_B = offsets_B1[:-1]
    return begun.scatter_add(0, starts_B, torch.ones_like(starts_B))[:-1].cumsum(0) - 1
