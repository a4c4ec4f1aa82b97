"""The examples of docs/steps.md are run as they stand."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from pipeline_runtime.config.steps import Step, list_kinds
from pipeline_runtime.config.texts.yaml_documents import read_documents
from pipeline_runtime.models.scoring import open_model
from pipeline_runtime.models.text.testing import EchoGenerator, LengthEmbedder
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import (
    BindContext,
    ModelRequest,
    OpenedModel,
    SideTable,
    SideTableRequest,
)
from pipeline_runtime.steps.binding import bind_pipeline
from pipeline_runtime.steps.side_tables import side_table_of

DOCUMENT = (Path(__file__).parents[4] / "docs" / "steps.md").read_text()
BLOCKS = re.findall(r"```(yaml|python)\n(.*?)```", DOCUMENT, re.S)
YAML = [text for language, text in BLOCKS if language == "yaml"]
PYTHON = [text for language, text in BLOCKS if language == "python"]

TABLE = pa.table(
    {
        "impression_id": [1, 2],
        "user_id": [1, 2],
        "item_id": [5, 6],
        "country": ["de", None],
        "title": ["shoes", "hat"],
        "price": [1.0, 2.0],
        "predicted": [1.5, 2.5],
        "click": [True, False],
        "history": [[1, 2], []],
        "prices": [[1.5], None],
        "_lastmile_row_hash": pa.array([1, 2], pa.uint64()),
    }
)
SIDE = pa.table({"user_id": [9], "id": [5], "brand": ["b"], "category": ["c"]})


def open_side_table(request: SideTableRequest) -> SideTable:
    return side_table_of(SIDE)


def open_shown_model(request: ModelRequest) -> OpenedModel:
    """Open a function as it is; no run of the experiment that the guide names exists here."""
    if request.model.experiment_ref is None:
        return open_model(request, "", Opening(storage_root=""))
    model = request.model.model_copy(
        update={"function": "my_team.models:build", "inputs": ("price",), "options": {}}
    )
    return open_model(replace(request, model=model), "", Opening(storage_root=""))


def build_constant() -> Callable[[Any], torch.Tensor]:
    return lambda batch: batch["price"].float()


def add_ctr(table: pa.Table, window: int) -> pa.Table:
    return table.append_column("ctr", pc.divide(table["user_id"].cast(pa.float64()), window))


def parse(text: str) -> list[Step]:
    (document,) = read_documents(text)
    assert isinstance(document.value, list)
    assert not (document.problems)
    assert not (document.warnings)
    return [Step.model_validate_json(json.dumps(item)) for item in document.value]


@pytest.mark.parametrize("text", YAML, ids=lambda text: text.split(":")[0].strip("- "))
def test_an_example_in_yaml_runs(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_project", types.ModuleType("my_project"))
    for name, found in {"features": ("add_ctr", add_ctr), "metrics": ("MeanError", Mock)}.items():
        module = types.ModuleType(f"my_project.{name}")
        setattr(module, *found)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    table = TABLE
    [program] = [text for text in PYTHON if "def load(" in text]
    models = types.ModuleType("my_team.models")
    exec(program, vars(models))
    models.build = build_constant  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_team", types.ModuleType("my_team"))
    monkeypatch.setitem(sys.modules, "my_team.models", models)
    context = BindContext(
        open_side_table=open_side_table,
        open_model=open_shown_model,
        open_generator=lambda _: EchoGenerator(),
        open_embedder=lambda _: LengthEmbedder(size=384),
    )
    for transform in bind_pipeline(parse(text), TABLE.schema, context):
        table = transform(table)
    names = [name for name in table.schema.names if not name.startswith("_")]
    assert sorted(names) == sorted(transform.output_schema.names)


@pytest.mark.parametrize("text", PYTHON, ids=range(len(PYTHON)))
def test_an_example_in_python_holds(text: str) -> None:
    assert "\nassert " in text  # what it shows
    exec(text, {})


def test_every_kind_of_step_is_described() -> None:
    shown = {step.kind for text in YAML for step in parse(text)}
    assert shown == set(list_kinds())
