"""The repeats of `lastmile run --seeds N`: the same manifest with N seeds of training.

Only `training.seed` changes: initial weights, order of rows, and dropout. The seeds of the steps
and of the evaluation stay, so that all repeats train on the same rows and are judged on the same.
`lastmile compare` finds them by the hash of all other fields (`run.seedGroup` of summary.json).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import yaml

from pipeline_runtime.config import LoadedManifest, ManifestError, Problem, parse_manifests
from pipeline_runtime.formatting import format_metric

MAX_SEEDS = 100


def repeat(manifest: LoadedManifest, num_seeds: int) -> Iterator[LoadedManifest]:
    """Yield the manifest with each of the seeds, the first of which is its own.

    Raises:
        ManifestError: it does not train, or a seed is too large.
    """
    spec = manifest.experiment.spec
    if spec.consumer:
        message = "must be there with --seeds, which repeats a training; remove --seeds"
        raise ManifestError([Problem(path="spec.training", message=message, file=manifest.file)])
    for number in range(num_seeds):
        change = f"training.seed={spec.training.seed + number}"
        [changed] = parse_manifests(dump(manifest), file=manifest.file, overrides=[change])
        yield changed


def dump(manifest: LoadedManifest) -> str:
    """Return a manifest as YAML, with all changes that were made to it."""
    return yaml.safe_dump(manifest.document, sort_keys=False, allow_unicode=True)


def describe_repeats(name: str, summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about the metrics of all repeats, given their summaries."""
    seeds = ", ".join(str(summary["seeds"]["training"]) for summary in summaries)
    yield f"{len(summaries)} seeds ({seeds}), mean ± deviation:"
    metrics = [summary["training"]["metrics"] for summary in summaries]
    for metric in metrics[0]:
        values = [float(each[metric]) for each in metrics if metric in each]
        if len(values) > 1 and all(map(math.isfinite, values)):
            yield f"  {metric}: {format_metric(mean(values))} ± {format_metric(stdev(values))}"
    run = str(summaries[0]["run"]["artifactsUri"]).rstrip("/").rpartition("/")[2]
    yield f"compare with another variant: lastmile compare {name}/{run} OTHER"
