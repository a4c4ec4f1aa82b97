"""A module of the user's in the built-in loop: what it gets, how it resumes, what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from trained_models import train_flights, write_flights

from pipeline_runtime import load_model
from pipeline_runtime.errors import ManifestError, TrainingError
from pipeline_runtime.training.ranking.features import parse_loop_config
from pipeline_runtime.training.ranking.user_module import (
    build_module,
    check_logits,
)

SCHEMA = pa.schema(
    {"x": pa.float32(), "ids": pa.list_(pa.int64(), 3), "_lastmile_row": pa.uint64()}
)
SEEN = """
import torch
seen = {"config": None, "schema": None, "batches": []}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, batch):
        seen["batches"].append({name: list(tensor.shape) for name, tensor in batch.items()})
        return self.layer(batch["distance"].nan_to_num()[:, None])

def build(config, schema):
    seen.update(config=config, schema=schema)
    return Net()
"""
FUNCTIONS = """
import torch

def number(config, schema):
    return 7

def nothing(config, schema):
    return torch.nn.ReLU()

def frozen(config, schema):
    return torch.nn.Linear(1, 1).requires_grad_(False)

def lazy(config, schema):
    return torch.nn.LazyLinear(1)

def one(config):
    return torch.nn.Linear(1, 1)
"""


def test_a_module_gets_config_schema_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seen_model.py").write_text(SEEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_flights(tmp_path)
    config = {"depth": {"layers": 2}, "learningRate": 0.5, "optimizer": "adagrad"}
    columns = ["distance", "legs", "stops"]
    train_flights(tmp_path, model="seen_model:build", columns=columns, config=config, maxSteps=2)

    import seen_model  # type: ignore[import-not-found]

    assert seen_model.seen["config"] == config
    assert seen_model.seen["schema"].names == columns
    assert seen_model.seen["schema"].field("legs").type.list_size == 3
    batch = seen_model.seen["batches"][0]
    assert batch["distance"] == batch["row_weight"] == [64]
    assert (batch["legs"], batch["stops.offsets"]) == ([64, 3], [65])


def test_a_resumed_module_ends_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "resumed_model.py").write_text(SEEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings: dict[str, Any] = {
        "model": "resumed_model:build",
        "columns": ["distance"],
        "checkpoint": {"everySteps": 2},
        "epochs": 2,
    }
    weights = []
    for attempts in (1, 2):
        root = tmp_path / str(attempts)
        write_flights(root)
        if attempts == 2:
            leave_after(root, settings, step=3)
        run, _ = train_flights(root, resume=attempts == 2, **settings)
        weights.append(load_model(run).state_dict()["layer.weight"])
    assert torch.equal(*weights)


def leave_after(root: Path, settings: dict[str, Any], step: int) -> None:
    """Train, and remove the checkpoints after a step, as if the run had been killed then."""
    run, _ = train_flights(root, **{**settings, "checkpoint": {"everySteps": 2, "keep": 1000}})
    for folder in (run / "checkpoints").glob("step-*"):
        if int(folder.name.split("-")[1]) > step:
            shutil.rmtree(folder)
    assert list((run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    "name", ["number", "nothing", "frozen", "lazy", "one", "gone", "seen.deep"]
)
def test_what_builds_no_trainable_module_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TrainingError, match=r"^spec\.training\.model: "):
        build_module(f"functions:{name}", {}, SCHEMA, label=None, weight=None)


def test_a_wrong_function_is_refused_before_the_run(tmp_path: Path) -> None:
    write_flights(tmp_path)
    with pytest.raises(ManifestError, match=r"^spec\.training\.model: "):
        train_flights(tmp_path, model="nowhere:build")


@pytest.mark.parametrize(
    ("output", "is_good"),
    [
        (torch.zeros(3), True),
        (torch.zeros(3, 1), True),
        (torch.zeros(3, dtype=torch.bfloat16), True),
        (torch.zeros(3, 2), False),
        (torch.zeros(()), False),
        (torch.zeros(2), False),
        (torch.zeros(3, dtype=torch.int64), False),
        ((torch.zeros(3),), False),
    ],
)
def test_logits_are_one_number_per_row(output: Any, is_good: bool) -> None:
    batch = {"row_weight": torch.ones(3)}
    if is_good:
        assert check_logits(output, batch, "m").shape == (3,)
        return
    with pytest.raises(TrainingError):
        check_logits(output, batch, "m")


def test_the_loop_reads_its_own_fields_of_the_config() -> None:
    given = {"learningRate": 0.1, "depth": 3, "label": "x", "rate": [1]}
    assert parse_loop_config(given).learning_rate == 0.1
    assert parse_loop_config({}).optimizer == "adam"


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        ({"learning_rate": 0.1}, ["learning_rate"]),
        ({"learningrate": 0.1, "warmup-steps": 3}, ["learningrate", "warmup-steps"]),
        ({"learningRate": "fast"}, ["learningRate"]),
        ({"schedule": "linear"}, ["decaySteps"]),
    ],
)
def test_wrong_fields_of_the_loop_are_refused(config: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_loop_config(config)
    assert [each.path for each in caught.value.problems] == [
        f"spec.training.config.{path}" for path in paths
    ]


def test_a_module_gets_the_features_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seen_features.py").write_text(SEEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    schema = SCHEMA.append(pa.field("label", pa.bool_())).append(pa.field("w", pa.float32()))

    build_module("seen_features:build", {}, schema, label="label", weight="w")

    import seen_features  # type: ignore[import-not-found]

    assert seen_features.seen["schema"].names == ["x", "ids"]
