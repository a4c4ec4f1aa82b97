"""Placement on a Ray cluster: data work on the labelled nodes, training on the others.

The operator labels its groups by `ray-subcluster`, the one key that Ray Data counts its budget by
too (a selector on any other key places tasks and still budgets over all nodes). A cluster without
such labels, as on a laptop, is one pool.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

SUBCLUSTER_LABEL = "ray-subcluster"
DATA_SUBCLUSTER = "data"
TRAINING_SUBCLUSTER = "training"
INFERENCE_SUBCLUSTER = "inference"
ROLE_VARIABLE = "LASTMILE_ROLE"  # set in the operator's pods
JOIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Placement of executions and ranks.

    Attributes:
        data: labels of the nodes for data work; None: any node.
        training: labels of the nodes for ranks; None: any node.
        takes_gpus: whether each rank holds one of Ray's GPUs.
        has_cuda: whether torch finds CUDA where the ranks run.
    """

    data: dict[str, str] | None
    training: dict[str, str] | None
    takes_gpus: bool
    has_cuda: bool


def find_placement(world_size: int, *, wants_gpus: bool) -> Placement:
    """Look at the cluster that this driver is connected to.

    In a pod of ours the nodes of both kinds are waited for: after a head was replaced the others
    join again one by one.
    """
    deadline = time.monotonic() + (JOIN_SECONDS if is_in_pod() else 0.0)
    while True:
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        alive = [node for node in nodes if node["Alive"]]
        labels = [node.get("Labels", {}) for node in alive]
        data, training = _select(labels, DATA_SUBCLUSTER), _select(labels, TRAINING_SUBCLUSTER)
        gpus = sum(node["Resources"].get("GPU", 0) for node in alive if not _is_inference(node))
        takes_gpus = wants_gpus and gpus >= world_size
        has_gpus = takes_gpus or not wants_gpus or gpus == 0  # none: the operator's setting
        is_whole = data and (training or not world_size) and has_gpus
        if is_whole or time.monotonic() >= deadline:
            break
        time.sleep(1.0)
    return Placement(
        data=data,
        training=training,
        takes_gpus=takes_gpus,
        has_cuda=takes_gpus and _finds_cuda(training),
    )


def _is_inference(node: Mapping[str, Any]) -> bool:
    """Return whether a node has inference workers alone, whose GPUs no trainer gets."""
    labels: Mapping[str, str] = node.get("Labels", {})
    return labels.get(SUBCLUSTER_LABEL) == INFERENCE_SUBCLUSTER


def is_in_pod() -> bool:
    """Return whether this driver runs on a cluster that the operator made."""
    return bool(os.environ.get(ROLE_VARIABLE))


def _select(labels: Iterable[Mapping[str, str]], value: str) -> dict[str, str] | None:
    is_there = any(node.get(SUBCLUSTER_LABEL) == value for node in labels)
    return {SUBCLUSTER_LABEL: value} if is_there else None


def _finds_cuda(training: dict[str, str] | None) -> bool:
    """Ask torch on a node of the ranks: Ray counts what it was told, not what works there."""
    import torch  # for seconds, which only GPUs are worth

    if torch.cuda.is_available():
        return True
    ask = ray.remote(torch.cuda.is_available)
    return bool(ray.get(ask.options(num_cpus=0, num_gpus=1, label_selector=training).remote()))
