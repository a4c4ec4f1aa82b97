"""The advice about a bottleneck names options that a manifest has."""

import re

import pytest

from dataset_operator.autoscaling.bottleneck import find_bottleneck
from dataset_operator.autoscaling.estimates import Estimate
from dataset_operator.autoscaling.interface import Rules
from dataset_operator.autoscaling.signals import Pods, Sample
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.config.introspect import walk_fields

STAGES = ["transfer", "batching", "collate", "ordering", "rankSkew", "production", "another"]


def build_estimate(stage: str, *, starved: bool) -> Estimate:
    share = 0.3 if starved else 0.0
    zero = dict.fromkeys(
        ("demand", "worker_rate", "required", "required_low", "required_high"), 1.0
    )
    return Estimate(
        **zero,
        production_share=share,
        production_low=share,
        production_high=share,
        blocked_share=0.4,
        read_share=0.1,
        rows_per_second=1.0,
        waits={stage: 0.3},
    )


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("starved", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_advice_names_options_that_exist(stage: str, starved: bool, is_ordered: bool) -> None:
    paths = {".".join(map(str, path)) for path, _ in walk_fields(DatasetExperiment)}
    rules = Rules(min_workers=1, max_workers=9, is_ordered=is_ordered)
    sample = Sample(at=0.0, attempt=1, desired=1, pods=Pods(ready=1))
    found = find_bottleneck(build_estimate(stage, starved=starved), rules, sample)
    assert found is not None
    named = re.findall(r"\b[a-z][A-Za-z]*(?:\.[a-zA-Z]+)+", found.message)
    assert [name for name in named if f"spec.{name}" not in paths] == []
    assert named or found.stage in ("Model", "RankSkew")
