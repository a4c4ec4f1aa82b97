"""Checks of pods agree with Kubernetes' level `baseline`, by upstream's examples."""

from typing import Any

import pytest
import yaml

from pipeline_runtime.config.pods.pod_security import check_pod_security
from pipeline_runtime.config.pods.pod_template import check_template
from tools.build_tools import POD_SECURITY, find_built


def load(folder: str) -> dict[str, dict[str, Any]]:
    paths = sorted((find_built(POD_SECURITY) / folder).glob("*.yaml"))
    assert len(paths) >= 10
    return {path.stem: yaml.safe_load(path.read_text()) for path in paths}


def test_allowed_examples_pass() -> None:
    broken = {name: list(check_pod_security("pod", pod)) for name, pod in load("pass").items()}
    assert {name: found for name, found in broken.items() if found} == {}


@pytest.mark.parametrize("kind", ["containers", "ephemeralContainers"])
def test_forbidden_examples_are_refused(kind: str) -> None:
    for name, pod in load("fail").items():
        pod["spec"][kind] = pod["spec"].pop("containers")
        assert list(check_pod_security("pod", pod)), name
        template = {"metadata": {**pod["metadata"]}, "spec": pod["spec"]}
        assert list(check_template("template", template)), name
