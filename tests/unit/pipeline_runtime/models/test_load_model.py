"""Models of finished runs: what is loaded, from where, and what is refused."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from documented_code import run_documented
from torch import nn
from trained_models import KEEP_BEST, build_flights, train_flights, write_flights

from pipeline_runtime import load_model
from pipeline_runtime.batches import ROW_WEIGHT, to_batch
from pipeline_runtime.errors import CheckpointError, SourceError, TrainingError
from pipeline_runtime.models.loading import load_run
from pipeline_runtime.sources import open_location
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.header import CheckpointHeader
from pipeline_runtime.training.ranking.quality import ScoreMeter

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def open_store(run: Path) -> CheckpointStore:
    return CheckpointStore(location=open_location(str(run / "checkpoints")))


def measure_auc(model: nn.Module, table: Any) -> float:
    batch = to_batch(table, weight_column=None, label_column=None)
    with torch.inference_mode():
        logits = model(batch)
    meter = ScoreMeter(torch.device("cpu"))
    meter.add(logits, batch["delayed"], torch.zeros_like(logits), batch[ROW_WEIGHT])
    return meter.metrics("eval", lambda sums: sums)["eval_auc"]


@pytest.mark.parametrize("kind", ["users_run", "built_in_run"])
def test_a_loaded_model_scores_unseen_rows(kind: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(kind)
    model = load_model(run)
    assert not model.training
    assert measure_auc(model, build_flights(seed=1)) > 0.65


def test_weights_are_those_of_the_checkpoint(users_run: Path) -> None:
    saved = open_store(users_run).load(open_store(users_run).headers()[0])["user"]["model"]
    loaded = load_model(users_run).state_dict()
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)


@pytest.mark.parametrize("place", ["folder", "uri", "experiment", "name", "name and run"])
def test_a_run_is_named_in_every_way(
    place: str, users_run: Path, flights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(flights)
    names = {
        "folder": str(users_run),
        "uri": f"file://{users_run}",
        "experiment": str(users_run.parent),
        "name": "flights",
        "name and run": f"flights/{users_run.name}",
    }
    assert load_run(names[place]).header.name == open_store(users_run).headers()[0].name


def test_the_documented_code_scores(
    users_run: Path, flights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(flights)
    defined = run_documented("models.md", "Load it and score")
    assert users_run.exists()
    assert 0 <= float(defined["probabilities"].min()) <= float(defined["probabilities"].max()) <= 1
    assert len(defined["batch"][ROW_WEIGHT]) == 5


def test_the_best_checkpoint_has_the_best_metric(users_run: Path) -> None:
    scores = [h.score.value for h in open_store(users_run).headers() if h.score is not None]
    best = load_run(users_run, checkpoint="best").header
    assert len(scores) == 3
    assert best.score is not None
    assert best.score.value == max(scores)


def test_a_run_resumes_from_its_last_checkpoint_not_the_best(tmp_path: Path) -> None:
    write_flights(tmp_path)
    worse = {"metric": "loss", "mode": "Max"}  # the first loss is the highest
    settings: dict[str, Any] = {"config": {"hashSize": 16}, "columns": ["distance", "carrier"]}
    checkpoint = {"keep": 1, "everySteps": 3, "keepBest": worse}
    run, _ = train_flights(tmp_path, maxSteps=20, checkpoint=checkpoint, epochs=3, **settings)
    headers = open_store(run).headers()
    best = load_run(run, checkpoint="best").header
    assert len(headers) == 2
    assert best.step < headers[0].step
    resumed, state = train_flights(
        tmp_path, maxSteps=20, checkpoint=checkpoint, epochs=3, resume=True, **settings
    )
    assert resumed == run
    assert state.ranks[0].resumed_step == headers[0].step


def test_a_metric_that_no_checkpoint_has_is_a_warning(tmp_path: Path) -> None:
    write_flights(tmp_path)
    keep_best = {"metric": "eval_precision", "mode": "Max"}
    run, state = train_flights(
        tmp_path, columns=["distance"], checkpoint={"keepBest": keep_best}, maxSteps=2
    )
    assert any("eval_precision" in warning for warning in state.warnings)
    with pytest.raises(CheckpointError):
        load_model(run, checkpoint="best")


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture
def changed(users_run: Path, tmp_path: Path) -> Callable[[Change], Path]:
    """Return a function that copies the run, with a change of its last header and state."""

    def change_run(change: Change) -> Path:
        copy = tmp_path / users_run.name
        shutil.copytree(users_run, copy)
        store = open_store(copy)
        header = store.headers()[0]
        state = store.load(header)
        change(header.run_config["training"], state["user"])
        rewrite(copy, header, state)
        return copy

    return change_run


def rewrite(run: Path, header: CheckpointHeader, state: dict[str, Any]) -> None:
    """Write a checkpoint again, as somebody who can write to the store would."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    folder = run / "checkpoints" / header.name
    (folder / "state.pt").write_bytes(data)
    content = replace(header, num_bytes=len(data), sha256=digest).to_bytes()
    (folder / "checkpoint.json").write_bytes(content)


class Opens:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("unpickled",)


def set_model(path: Any) -> Change:
    return lambda training, _: training.update(model=path)


CHANGES: dict[str, tuple[Change, type[Exception]]] = {
    "a function of Python": (set_model("os:system"), CheckpointError),
    "a function below Python": (set_model("os.path:join"), CheckpointError),
    "no function": (set_model(["x"]), CheckpointError),
    "another module": (set_model("nowhere:build"), TrainingError),
    "a config of another type": (lambda t, _: t.update(config=[1]), CheckpointError),
    "an entrypoint": (lambda t, _: t.update(model=None, entrypoint="a:b"), CheckpointError),
    "a script": (lambda t, _: t.update(script="train.py"), CheckpointError),
    "no features": (lambda t, _: t.pop("model"), CheckpointError),
    "no schema": (lambda _, state: state.pop("schema"), CheckpointError),
    "a broken schema": (lambda _, state: state.update(schema=b"x"), CheckpointError),
    "no weights": (lambda _, state: state.pop("model"), CheckpointError),
    "a weight too few": (lambda _, state: state["model"].popitem(), CheckpointError),
    "weights of other shapes": (lambda t, _: t["config"].update(hidden=5), CheckpointError),
    "weights that are none": (lambda _, state: state["model"].update(x=1), CheckpointError),
    "an object that runs code": (lambda _, state: state.update(x=Opens()), CheckpointError),
}


@pytest.mark.parametrize(("change", "error"), CHANGES.values(), ids=CHANGES)
def test_a_hostile_checkpoint_is_refused_and_runs_nothing(
    change: Change,
    error: type[Exception],
    changed: Callable[[Change], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = changed(change)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        load_model(run)
    assert not (tmp_path / "unpickled").exists()


def test_a_given_module_takes_weights_and_imports_nothing(
    changed: Callable[[Change], Path], users_run: Path
) -> None:
    run = changed(lambda training, _: training.update(entrypoint="nowhere:loop", model=None))
    given = load_model(users_run)
    for parameter in given.parameters():
        nn.init.zeros_(parameter)
    assert load_model(run, model=given) is given
    assert any(parameter.any() for parameter in given.parameters())


@pytest.mark.parametrize("features", [{"sequences": 7}, {"label": None}, {"dense": ["x"] * 9}])
def test_hostile_features_of_the_built_in_model_are_refused(
    features: dict[str, Any], built_in_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / built_in_run.name
    shutil.copytree(built_in_run, copy)
    header = open_store(copy).headers()[0]
    state = open_store(copy).load(header)
    state["user"]["features"] |= features
    rewrite(copy, header, state)
    with pytest.raises(CheckpointError):
        load_model(copy)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param({"checkpoint": "newest"}, ValueError, id="another checkpoint"),
        pytest.param({"checkpoint": "best"}, CheckpointError, id="no best one"),
    ],
)
def test_a_checkpoint_that_does_not_exist_is_refused(
    words: dict[str, Any], error: type[Exception], built_in_run: Path
) -> None:
    with pytest.raises(error):
        load_model(built_in_run, **words)


def test_a_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        load_model(tmp_path / "nowhere")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError):
        load_model(tmp_path)


def test_headers_of_older_releases_have_no_score(users_run: Path) -> None:
    header = open_store(users_run).headers()[0]
    plain = json.loads(replace(header, score=None).to_bytes())
    assert "score" not in plain
    assert header.score is not None
    assert (header.score.metric, header.score.mode) == (KEEP_BEST["metric"], KEEP_BEST["mode"])
