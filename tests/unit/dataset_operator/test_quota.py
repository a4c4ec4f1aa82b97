"""A quota's refusal tells its numbers side by side; other words stay as they are."""

import pytest
from facts import assert_told
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.quota import explain_quota


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(
            'pods "a" is forbidden: exceeded quota: team, requested: pods=1, used: pods=40, '
            "limited: pods=40",
            'pods "a" is forbidden: exceeded quota: team … pods: 1 … 40',
            id="one resource",
        ),
        pytest.param(
            "exceeded quota: gpus, requested: requests.memory=2Gi,requests.nvidia.com/gpu=8, "
            "used: requests.memory=0,requests.nvidia.com/gpu=4, "
            "limited: requests.memory=1Gi,requests.nvidia.com/gpu=8",
            "exceeded quota: gpus … requests.memory: 2Gi … 1Gi … requests.nvidia.com/gpu: 8 … 4",
            id="two, one of a vendor",
        ),
        pytest.param(
            "failed: exceeded quota: a, requested: pods=1, used: pods=1, limited: pods=1: again",
            "failed: exceeded quota: a … pods: 1 … : again",
            id="words behind it",
        ),
        pytest.param(
            "failed quota: team: must specify limits.cpu for: ray-head",
            "failed quota: team: must specify limits.cpu for: ray-head",
            id="a quota that asks for limits",
        ),
    ],
)
def test_a_quotas_numbers_stand_side_by_side(message: str, said: str) -> None:
    explained = explain_quota(message)
    assert_told(explained, said)
    assert "requested: " not in explained


@given(st.text())
def test_other_words_stay_as_they_are(message: str) -> None:
    assert explain_quota(message) == message or "exceeded quota: " in message
