"""Exported models give the logits of the loaded ones, for any number of rows."""

import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from documented_code import run_documented
from trained_models import build_flights, train_flights, write_flights
from typer.testing import CliRunner

from pipeline_runtime import load_model
from pipeline_runtime.batches import Batch, to_batch
from pipeline_runtime.cli import app
from pipeline_runtime.errors import ExportError
from pipeline_runtime.models.exporting import INPUTS_FILE, export_model
from pipeline_runtime.training.ranking.export_form import ExportForm
from pipeline_runtime.training.ranking.features import choose_features, parse_config
from pipeline_runtime.training.ranking.network import RankingModel

SIZES = (1, 2, 7)


def make_batch(rows: int) -> Batch:
    return to_batch(build_flights(rows, seed=2), weight_column=None, label_column=None)


def assert_close(found: Any, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-4, atol=1e-5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The file that the command wrote, and what it printed."""

    path: Path
    output: str


@pytest.fixture(scope="module")
def written(users_run: Path, flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Export the user's model by the command, once: torch imports its compiler for that."""
    assert users_run.exists()
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    place = ["--root", str(flights / "build"), "--output", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])  # the command adds to it
        result = CliRunner().invoke(app, ["export", "flights", "--checkpoint", "best", *place])
    assert result.exit_code == 0, result.output
    return Written(path=path, output=result.output)


def check_logits(path: Path, model: torch.nn.Module) -> None:
    """Check that an exported program returns the logits of a model for any number of rows."""
    names = {INPUTS_FILE: ""}
    program = torch.export.load(path, extra_files=names).module()
    inputs = json.loads(names[INPUTS_FILE])
    assert "delayed" not in inputs
    for rows in SIZES:
        batch = make_batch(rows)
        with torch.inference_mode():
            expected = model(batch)
        assert_close(program({name: batch[name] for name in inputs}).detach(), expected)


def test_torch_export_gives_the_same_logits(users_run: Path, written: Written) -> None:
    check_logits(written.path, load_model(users_run, checkpoint="best"))


@pytest.mark.slow
def test_export_of_the_built_in_model_gives_the_same_logits(
    built_in_run: Path, tmp_path: Path
) -> None:
    exported = export_model(built_in_run, tmp_path / "model.pt2")
    check_logits(exported.path, load_model(built_in_run))


def test_the_command_writes_the_documented_file(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "carrier, distance, recent_delays" in written.output
    monkeypatch.chdir(written.path.parent)
    run_documented("models.md", "Export", batch=make_batch(3))


@pytest.mark.slow
def test_onnx_gives_the_same_logits(built_in_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    exported = export_model(built_in_run, tmp_path / "model.onnx", format="onnx")
    session = reference.ReferenceEvaluator(str(exported.path))
    model = load_model(built_in_run)
    for rows in SIZES:
        batch = make_batch(rows)
        with torch.inference_mode():
            expected = model(batch)
        [logits] = session.run(None, {name: batch[name].numpy() for name in exported.inputs})
        assert_close(logits, expected)


LISTS = [[], [5], [1, 2, 3, 4, 5, 6], [0, 7, 0, 0, 2], [], [3, 3], []]
CONFIGS = [
    {"column": column, "target": target, "paddingId": padding}
    for column, target, padding in itertools.product(("ragged", "fixed"), ("item", None), (None, 3))
]


@pytest.mark.parametrize("sequence", CONFIGS, ids=lambda each: "-".join(map(str, each.values())))
@pytest.mark.parametrize("limits", [{}, {"sequenceLength": 3, "attentionLength": 2}])
def test_the_form_for_export_gives_the_same_logits(
    sequence: dict[str, Any], limits: dict[str, int]
) -> None:
    padded = [(each + [0] * 6)[:6] for each in LISTS]
    table = pa.table(
        {
            "label": [0.0, 1.0] * 3 + [0.0],
            "item": [1, 3, 5, 7, 2, 3, 40],
            "number": [0.5, None, -2.0, 1e9, 0.0, 3.0, 4.0],
            "ragged": pa.array(LISTS, pa.list_(pa.int64())),
            "fixed": pa.array(padded, pa.list_(pa.int64(), 6)),
        }
    )
    given = {"hashSize": 8, "embeddingDim": 4, "hidden": [8], "sequences": [sequence], **limits}
    config = parse_config(given)
    torch.manual_seed(0)
    features = choose_features(config, table.schema, label="label", weight=None)
    model = RankingModel(features, config).eval()
    batch = to_batch(table, weight_column=None, label_column=None)
    model.scaler.observe(batch, lambda sums: sums)
    with torch.inference_mode():
        assert_close(ExportForm(model)(batch), model(batch))


DATA_DEPENDENT = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, batch):
        x = batch["distance"].nan_to_num()[:, None]
        return self.layer(x if x.sum() > 0 else -x)

def build(config, schema):
    return Net()
"""


def test_a_model_that_cannot_be_exported_is_refused(
    users_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dependent.py").write_text(DATA_DEPENDENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_flights(tmp_path / "root")
    run, _ = train_flights(tmp_path / "root", model="dependent:build", columns=["distance"])
    with pytest.raises(ExportError):
        export_model(run, tmp_path / "model.pt2")
    with pytest.raises(ExportError):
        export_model(users_run, tmp_path / "model.onnx", format="onnx")
    assert not list(tmp_path.glob("model*"))
