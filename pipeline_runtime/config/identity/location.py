"""Locates the artifacts of an experiment's runs, from the spec alone."""

from __future__ import annotations

from pipeline_runtime.config.experiment import DatasetExperiment
from pipeline_runtime.config.texts.storage_uri import is_absolute


def locate_artifacts(
    experiment: DatasetExperiment, storage_root: str | None, *, wins: bool = False
) -> str:
    """Return the experiment's folder, in which each run has a folder named TIME-HASH.

    Args:
        storage_root: the base of a URI without a scheme; None leaves the URI as it is.
        wins: whether `storage_root` overrides the spec's own.
    """
    spec = experiment.spec
    root = storage_root if wins else spec.storage.root or storage_root
    uri = spec.artifacts.uri
    if root and not is_absolute(uri):
        uri = f"{root.rstrip('/')}/{uri}"
    return f"{uri.rstrip('/')}/{experiment.metadata.name}/"
