"""The watches that the operator requests of the API server."""

import pytest
from kopf import Resource

from dataset_operator.api import EXPERIMENT_LABEL
from dataset_operator.handlers import build_kopf_settings
from pipeline_runtime.config import GROUP, VERSION

CHILDREN = [
    Resource("", "v1", "pods"),
    Resource("", "v1", "configmaps"),
    Resource("networking.k8s.io", "v1", "networkpolicies"),
    Resource("policy", "v1", "poddisruptionbudgets"),
    Resource("ray.io", "v1", "rayclusters"),
]


@pytest.mark.parametrize("resource", CHILDREN, ids=lambda resource: resource.plural)
def test_other_peoples_objects_are_not_sent(resource: Resource) -> None:
    selectors = build_kopf_settings().watching.label_selectors
    assert selectors.collect(resource) == [EXPERIMENT_LABEL]


def test_experiments_are_all_sent() -> None:
    experiments = Resource(GROUP, VERSION, "datasetexperiments")
    assert build_kopf_settings().watching.label_selectors.collect(experiments) == []
