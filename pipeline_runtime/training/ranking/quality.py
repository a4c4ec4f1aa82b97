"""Metrics of the built-in ranking model, kept as sums that ranks can add up.

The loop in `trainer` passes logits and labels.
"""

from __future__ import annotations

import math

import torch

from pipeline_runtime.training.ranking.network import ReduceSum

# Scores are counted in bins of 32 / 16,384 = 0.002 logits. With a million scores of AUC 0.759, the
# AUC of the bins differed by 5e-7.
NUM_SCORE_BINS = 16_384
MAX_LOGIT = 16.0


class ScoreMeter:
    """Computes loss and AUC of a stream of rows in constant memory."""

    def __init__(self, device: torch.device) -> None:
        # Weights of rows with label 0 and 1 by score; sums of loss·weight, weight, wrong labels.
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
        """Add rows; return their sums of loss·weight, weight, and labels outside 0 to 1."""
        labels_B, weight_B = labels_B.to(torch.float64), weight_B.to(torch.float64)
        is_wrong_B = ((labels_B < 0) | (labels_B > 1)) & (weight_B > 0)
        bins_B = _score_bins(logits_B)
        for label, share_B in ((0, 1 - labels_B), (1, labels_B)):
            self.histogram[label].index_put_((bins_B,), share_B * weight_B, accumulate=True)
        more = torch.stack([(losses_B * weight_B).sum(), weight_B.sum(), is_wrong_B.sum()])
        self.sums += more
        return more

    def metrics(self, prefix: str, reduce_sum: ReduceSum) -> dict[str, float]:
        """Return the metrics of the rows of all ranks; none if there were no rows."""
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
    """Return the loss in nats of a model that always predicts the base rate."""
    return -(share * math.log(share) + (1 - share) * math.log1p(-share))


def area_under_curve(histogram: torch.Tensor) -> float:
    """Compute the AUC from the weights of negatives n and positives p in bins of rising score.

    Σ_b p_b · (Σ_{a<b} n_a + n_b / 2) ÷ (Σ p · Σ n), Mann and Whitney's U: the probability that a
    positive scores above a negative, where a tie counts half. Row 0 has n, row 1 has p.
    """
    negative, positive = histogram
    below = negative.cumsum(0) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))
