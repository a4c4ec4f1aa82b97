"""A script that would not reach the pods is refused by `submit`, before anything is sent."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from experiments import build_experiment

from dataset_operator.cli.submit import check_script
from pipeline_runtime.config import load_manifests


@pytest.mark.parametrize(
    ("script", "code", "fact"),
    [
        (None, {}, None),
        ("train.py", {}, "workingDir"),
        ("train.py", {"workingDir": "."}, None),
        ("more/train.py", {"workingDir": "."}, None),
        ("train.py", {"workingDir": "more"}, None),
        ("lost.py", {"workingDir": "."}, "lost.py"),
        ("more/lost.py", {"workingDir": "."}, "more/lost.py"),
        ("train.py", {"workingDir": "s3://bucket/code.zip"}, None),  # nobody here can look into it
        ("train.py", {"workingDir": "/opt/team"}, None),  # in the image
        ("/opt/team/train.py", {}, None),
        ("train.py", {"workingDir": "nowhere"}, None),  # the folder is refused instead
    ],
)
def test_a_script_must_reach_the_pods(
    script: str | None, code: dict[str, Any], fact: str | None, tmp_path: Path
) -> None:
    for folder in (tmp_path, tmp_path / "more"):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").touch()
    training = {} if script is None else {"script": script}
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(build_experiment(training=training, code=code)))
    [manifest] = load_manifests([str(file)])

    found = [str(problem) for problem in check_script(manifest)]

    assert len(found) == (fact is not None)
    assert all("spec.training.script: " in each and str(fact) in each for each in found)
