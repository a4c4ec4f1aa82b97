"""Loading a checkpoint runs no foreign code, unless the manifest trusts it."""

import collections
import dataclasses
import enum
import io
import os
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from facts import assert_told
from saved_checkpoints import make_header, make_store
from torch import serialization

from pipeline_runtime.errors import CheckpointError, ManifestError
from pipeline_runtime.training.checkpoints.safe_state import TRUST_FIELD, check_state, load_state


class Phase(enum.Enum):
    """A user's enum."""

    WARM = 1


@dataclasses.dataclass
class Settings:
    """A user's dataclass."""

    rate: float = 0.1


class Harmful:
    """An object that creates a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def to_bytes(user: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"user": user, "rng": [torch.get_rng_state()]}, buffer)
    return buffer.getvalue()


def build_adam_state() -> dict[str, Any]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }


SAFE = {
    "an optimizer, a schedule, a scaler": build_adam_state(),
    "plain values": {"a": [1, 2.5, "text", None, True, b"bytes", 10**30, 1j, (1, {2})]},
    "ordered and counted": {"o": collections.OrderedDict(a=1), "c": collections.Counter("aab")},
    "numpy numbers": {"f": np.float32(1), "i": np.int64(2), "b": np.bool_(True)},
    "numpy arrays": {code: np.zeros(3, dtype=code) for code in "?bBhHiIlLqQefdFD"},
    "big-endian numbers": {"a": np.arange(3, dtype=">i4")},
    "numpy's random state": {"r": np.random.RandomState(1).get_state()},
    "torch's own kinds": {"t": torch.float32, "d": torch.device("cpu"), "s": torch.Size([1])},
    "sparse tensors": {"s": torch.eye(3).to_sparse()},
    "parameters": {"p": torch.nn.Parameter(torch.ones(2)), "h": torch.ones(2).bfloat16()},
}

UNSAFE = {
    "an enum": ({"a": {"b": [1, Phase.WARM]}}, "checkpoint['a']['b'][1] … test_safe_state.Phase"),
    "a dataclass": ({"settings": Settings()}, "checkpoint['settings'] … test_safe_state.Settings"),
    "a path": ({"p": (PurePosixPath("a"),)}, "checkpoint['p'][0] … PurePosixPath"),
    "a deque": ({"d": collections.deque([1])}, "checkpoint['d'] … collections.deque"),
    "a key": ({Phase.WARM: 1}, "Phase.WARM … checkpoint … test_safe_state.Phase"),
    "numpy objects": ({"n": np.array([1, "a"], dtype=object)}, "checkpoint['n'] … object"),
    "numpy texts": ({"n": np.array(["a"])}, "checkpoint['n'] … <U1"),
}


def to_native(value: Any) -> Any:
    """Convert an array to native byte order, as numpy's pickles restore it."""
    if isinstance(value, np.ndarray):
        return value.astype(f"{value.dtype.kind}{value.dtype.itemsize}")
    return value


@pytest.mark.filterwarnings("ignore:Validating sparse tensor")  # torch warns once
@pytest.mark.parametrize("user", SAFE.values(), ids=SAFE)
def test_safe_types_are_saved_and_loaded(user: dict[str, Any]) -> None:
    content = to_bytes(user)
    check_state(user, content)
    loaded = load_state("x", content, trust_pickle=False)
    expected = {name: to_native(value) for name, value in user.items()}
    assert repr(loaded["user"]) == repr(expected)


@pytest.mark.parametrize(("user", "facts"), UNSAFE.values(), ids=UNSAFE)
def test_an_unsafe_type_is_named_with_its_place(user: dict[Any, Any], facts: str) -> None:
    content = to_bytes(user)
    with pytest.raises(ManifestError) as caught:
        check_state(user, content)
    assert_told(str(caught.value), f"{TRUST_FIELD} … {facts}")
    with pytest.raises(CheckpointError, match="trustPickle"):
        load_state("x", content, trust_pickle=False)
    assert load_state("x", content, trust_pickle=True)["user"].keys() == user.keys()


def test_loading_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    content = to_bytes({"weights": Harmful(made)})
    with pytest.raises(CheckpointError) as caught:
        load_state("s3://b/step-1", content, trust_pickle=False)
    assert_told(str(caught.value), f"s3://b/step-1 … posix.mkdir … {TRUST_FIELD}")
    assert not made.exists()


@pytest.mark.parametrize("state", [None, [1], {"user": 1, "rng": []}, {"user": {}}])
def test_a_foreign_state_is_refused(state: Any) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with pytest.raises(CheckpointError):
        load_state("x", buffer.getvalue(), trust_pickle=False)


def test_types_allowed_by_the_users_code_stay_allowed() -> None:
    before = serialization.get_safe_globals()
    with serialization.safe_globals([Phase]):
        with pytest.raises(ManifestError):  # a resuming trainer has not run the user's code yet
            check_state({"a": Phase.WARM}, to_bytes({"a": Phase.WARM}))
        assert set(serialization.get_safe_globals()) == {*before, Phase}


def test_a_store_checks_states_unless_they_are_trusted(tmp_path: Path) -> None:
    state = {"user": {"phase": Phase.WARM}, "rng": []}
    strict, trusting = make_store(tmp_path), make_store(tmp_path, trust_pickle=True)
    with pytest.raises(ManifestError):
        strict.save(state, make_header(1), checked=True)
    assert strict.headers() == []
    trusting.save(state, make_header(2), checked=True)
    [header] = strict.headers()
    assert trusting.load(header)["user"] == state["user"]
    with pytest.raises(CheckpointError, match=r"test_safe_state\.Phase"):
        strict.load(header)
