"""A small valid experiment, to which a test adds the fields that it is about."""

from typing import Any


def build_experiment(**spec: Any) -> dict[str, Any]:
    """Return the document of an experiment with these fields of the spec."""
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "first"},
        "spec": {"dataset": {"parquet": {"uri": "impressions/"}}, **spec},
    }
