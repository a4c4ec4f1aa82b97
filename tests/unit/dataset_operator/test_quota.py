"""What a quota's refusal becomes, and that nothing else is touched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.quota import explain_quota

ADVICE = "; ask for less, wait until others end, or have it raised"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(
            'pods "a" is forbidden: exceeded quota: team, requested: pods=1, used: pods=40, '
            "limited: pods=40",
            'pods "a" is forbidden: exceeded quota: team (pods: 1 more asked for, 40 of 40 in use)'
            + ADVICE,
            id="one resource",
        ),
        pytest.param(
            "exceeded quota: gpus, requested: requests.memory=2Gi,requests.nvidia.com/gpu=8, "
            "used: requests.memory=0,requests.nvidia.com/gpu=4, "
            "limited: requests.memory=1Gi,requests.nvidia.com/gpu=8",
            "exceeded quota: gpus (requests.memory: 2Gi more asked for, 0 of 1Gi in use; "
            "requests.nvidia.com/gpu: 8 more asked for, 4 of 8 in use)" + ADVICE,
            id="two, one of a vendor",
        ),
        pytest.param(
            "failed: exceeded quota: a, requested: pods=1, used: pods=1, limited: pods=1: again",
            f"failed: exceeded quota: a (pods: 1 more asked for, 1 of 1 in use){ADVICE}: again",
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
    assert explain_quota(message) == said


@given(st.text())
def test_other_words_stay_as_they_are(message: str) -> None:
    assert explain_quota(message) == message or "exceeded quota: " in message
