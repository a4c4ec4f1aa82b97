"""Templates merge as Kubernetes' strategic merge patches do."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.builders.template_merge import merge

BASE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [{"name": "ray", "image": "r", "env": [{"name": "A", "value": "1"}]}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "tolerations": [{"key": "gpu"}],
        "priorityClassName": "low",
    },
}

MERGES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "maps merge key by key": (
        {"metadata": {"labels": {"b": "2"}}},
        lambda pod: pod["metadata"]["labels"],
        {"a": "1", "b": "2"},
    ),
    "a scalar is replaced": (
        {"spec": {"priorityClassName": "high"}},
        lambda pod: pod["spec"]["priorityClassName"],
        "high",
    ),
    "null removes": (
        {"spec": {"priorityClassName": None}},
        lambda pod: "priorityClassName" in pod["spec"],
        False,
    ),
    "a container of the same name is changed where it stands": (
        {"spec": {"containers": [{"name": "side"}, {"name": "ray", "image": "mine"}]}},
        lambda pod: [(c["name"], c.get("image")) for c in pod["spec"]["containers"]],
        [("ray", "mine"), ("side", None)],
    ),
    "variables merge by name, below a container too": (
        {
            "spec": {
                "containers": [{"name": "ray", "env": [{"name": "B"}, {"name": "A", "value": "2"}]}]
            }
        },
        lambda pod: pod["spec"]["containers"][0]["env"],
        [{"name": "A", "value": "2"}, {"name": "B"}],
    ),
    "a list without keys is replaced": (
        {"spec": {"tolerations": [{"key": "spot"}]}},
        lambda pod: pod["spec"]["tolerations"],
        [{"key": "spot"}],
    ),
    "a keyed item can be deleted": (
        {"spec": {"volumes": [{"name": "shm", "$patch": "delete"}]}},
        lambda pod: pod["spec"]["volumes"],
        [],
    ),
    "a keyed item can be replaced": (
        {"spec": {"volumes": [{"name": "shm", "$patch": "replace", "emptyDir": {}}]}},
        lambda pod: pod["spec"]["volumes"],
        [{"name": "shm", "emptyDir": {}}],
    ),
}


@pytest.mark.parametrize(("patch", "look", "expected"), MERGES.values(), ids=MERGES)
def test_merge(patch: dict[str, Any], look: Any, expected: Any) -> None:
    before = copy.deepcopy(BASE)
    assert look(merge(BASE, patch)) == expected
    assert before == BASE


VALUES = st.recursive(
    st.booleans() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)
MAPS = st.dictionaries(st.sampled_from(["spec", "labels", "env", "x", "y"]), VALUES)


@given(base=MAPS, patch=MAPS)
def test_a_patch_is_worked_in_once_and_for_all(base: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge(base, patch)
    assert merge(once, patch) == once
    assert merge(base, {}) == base
