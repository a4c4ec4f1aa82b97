"""Logistic regression on sample data, and how well it ranks: small, exact and without torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.sample_data.population import NUM_CLUSTERS

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def fit_logistic(features: FloatArray, labels: BoolArray) -> FloatArray:
    """Return the weight of each feature."""
    weights = np.zeros(features.shape[1])
    for _ in range(6):  # Newton's method
        share = 1 / (1 + np.exp(-features @ weights))
        curvature = (features * (share * (1 - share))[:, None]).T @ features
        weights += np.linalg.solve(curvature, features.T @ (labels - share))
    return weights


def measure_auc(labels: BoolArray, scores: FloatArray) -> float:
    """Return the probability that a positive row has a higher score than a negative one."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / pairs)


def share_topics(histories: pa.ChunkedArray, item_ids: pa.ChunkedArray) -> FloatArray:
    """Return the share of each row's history that has the topic of the row's item; 0 if empty."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(histories), 0)).astype(np.int64)
    topics = np.asarray(pc.list_flatten(histories)) % NUM_CLUSTERS
    is_topic = topics == np.repeat(np.asarray(item_ids) % NUM_CLUSTERS, lengths)
    sums = np.concatenate([[0], np.cumsum(is_topic)])
    ends = np.cumsum(lengths)
    return np.asarray((sums[ends] - sums[ends - lengths]) / np.maximum(lengths, 1))
