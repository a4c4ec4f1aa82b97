"""A shell completes `--set` from the models: fields, then constants."""

import pytest

from pipeline_runtime.config import complete_override

CASES = [
    pytest.param(
        "training.shu", ["training.shuffle.unit=", "training.shuffle.windowRows="], id="on"
    ),
    pytest.param("pipelineOptions.fe", ["pipelineOptions.feed=Auto"], id="constants of one field"),
    pytest.param("pipelineOptions.feed=R", ["pipelineOptions.feed=RayData"], id="constants"),
    pytest.param("suspend=", ["suspend=true", "suspend=false"], id="boolean"),
    pytest.param("spec.pipe", ["spec.pipeline[", "spec.pipelineOptions."], id="from the root"),
    pytest.param("pipeline[thin].downsample.se", ["pipeline[thin].downsample.seed="], id="name"),
]


@pytest.mark.parametrize(("text", "words"), CASES)
def test_the_beginning_of_an_override_is_completed(text: str, words: list[str]) -> None:
    assert set(words) <= set(complete_override(text))


@pytest.mark.parametrize("text", ["nothing.here", "pipeline[0].clip.", "pipeline[", "=", "a[b=c"])
def test_an_unknown_beginning_has_no_completion(text: str) -> None:
    assert complete_override(text) == []
