"""Where an experiment's runs leave what outlives them, told from the spec alone."""

from __future__ import annotations

from pipeline_runtime.config.experiment import DatasetExperiment
from pipeline_runtime.config.storage_uri import has_scheme


def locate_artifacts(
    experiment: DatasetExperiment, storage_root: str | None, *, wins: bool = False
) -> str:
    """The folder below which each run has one of its own, named TIME-HASH.

    Args:
        storage_root: where a URI without a scheme starts; None: it is left as it is.
        wins: whether it does so although the spec names another.
    """
    spec = experiment.spec
    root = storage_root if wins else spec.storage.root or storage_root
    uri = spec.artifacts.uri
    if root and not has_scheme(uri) and not uri.startswith("/"):
        uri = f"{root.rstrip('/')}/{uri}"
    return f"{uri.rstrip('/')}/{experiment.metadata.name}/"
