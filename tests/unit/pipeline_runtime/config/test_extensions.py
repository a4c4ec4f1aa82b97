"""The environment adds kinds of step and of source by the import paths of their models."""

from __future__ import annotations

import pytest
from toy_source.model import ToySource

from pipeline_runtime.config.dataset import ParquetSource, build_other_fields
from pipeline_runtime.config.extensions import load_extensions
from pipeline_runtime.config.source_model import SourceModel
from pipeline_runtime.config.step_registry import load_models

TOY = "toy_source.model:ToySource"


@pytest.mark.parametrize(
    ("paths", "models"),
    [
        ("", []),
        (" , ", []),
        (TOY, [ToySource]),
        (f"{TOY}, pipeline_runtime.config.dataset:ParquetSource,{TOY}", [ToySource, ParquetSource]),
    ],
)
def test_models_come_in_the_order_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, paths: str, models: list[type[SourceModel]]
) -> None:
    monkeypatch.setenv("EXTENSIONS", paths)
    assert load_extensions("EXTENSIONS", SourceModel) == models


@pytest.mark.parametrize(
    "path",
    [
        "toy_source.model",
        ":ToySource",
        "toy_source.model:",
        "no_such_package.model:ToySource",
        "toy_source.model:NoSuchSource",
        "toy_source.model:Annotated",
        "pipeline_runtime.config.source_model:SourceModel",
        "pipeline_runtime.steps.cast.model:CastStep",
    ],
)
def test_a_wrong_path_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("EXTENSIONS", path)
    with pytest.raises(ImportError) as raised:
        load_extensions("EXTENSIONS", SourceModel)
    assert "EXTENSIONS" in str(raised.value)
    assert path in str(raised.value)


def test_no_extension_replaces_a_kind_that_lastmile_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTMILE_STEPS", "pipeline_runtime.steps.cast.model:CastStep")
    with pytest.raises(ImportError, match=r"LASTMILE_STEPS: .*cast"):
        load_models.__wrapped__()
    monkeypatch.setenv("LASTMILE_SOURCES", "pipeline_runtime.config.dataset:ParquetSource")
    with pytest.raises(ImportError, match=r"LASTMILE_SOURCES: .*parquet"):
        build_other_fields()
