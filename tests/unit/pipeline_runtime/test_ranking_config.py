"""The ranking model's config: messages of what is wrong, columns chosen by type, schedules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipeline_runtime.errors import LastmileError, ManifestError
from pipeline_runtime.training.ranking import check_config, learning_rate
from pipeline_runtime.training.ranking_config import choose_features, parse_config

WITH_TARGET: dict[str, Any] = {"sequences": [{"column": "history", "target": "item"}]}


FIELD = "spec.training.config"
SCHEMA = pa.schema(
    {
        "dense": pa.float32(),
        "is_new": pa.bool_(),
        "item": pa.int64(),
        "history": pa.list_(pa.int64()),
        "scores": pa.list_(pa.float32()),
        "at": pa.timestamp("us"),
        "clicked": pa.bool_(),
        "sample_weight": pa.float32(),
    }
)
WRONG_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt field": (
        {"hashsize": 8},
        f"{FIELD}.hashsize: unknown field; did you mean hashSize?",
    ),
    "misspelt field of a sequence": (
        {"sequences": [{"column": "history", "targt": "item"}]},
        f"{FIELD}.sequences[0].targt: unknown field; did you mean target?",
    ),
    "unknown field": (
        {"sequences": [{"column": "history", "x": 1}]},
        f"{FIELD}.sequences[0].x: unknown field; the fields here are column, paddingId, target",
    ),
    "wrong type": (
        {"embeddingDim": "16"},
        f"{FIELD}.embeddingDim: must be an integer, got '16' (a string); remove the quotes",
    ),
    "out of bounds": (
        {"hashSize": 0},
        f"{FIELD}.hashSize: must be ≥ 1, got 0; raise it",
    ),
    "a size of hidden layers": (
        {"hidden": [64, 0]},
        f"{FIELD}.hidden[1]: must be ≥ 1, got 0; raise it",
    ),
    "unknown choice": (
        {"optimizer": "adma"},
        f"{FIELD}.optimizer: must be one of adam, adagrad, got 'adma'; did you mean adam?",
    ),
    "schedule without an end": (
        {"schedule": "cosine", "warmupSteps": 10},
        f"{FIELD}.decaySteps: must be above warmupSteps (10) for schedule cosine, got none; give "
        "the number of steps of the run",
    ),
    "end without a schedule": (
        {"decaySteps": 10},
        f"{FIELD}.decaySteps: must come with schedule linear or cosine, got constant; remove it",
    ),
    "a column twice": (
        {"dense": ["dense", "dense"]},
        f"{FIELD}.dense: must not repeat an item, got 'dense' twice; remove one",
    ),
    "a sequence twice": (
        {"sequences": [{"column": "history"}, {"column": "history", "target": "item"}]},
        f"{FIELD}.sequences: must not repeat an item, got 'history' twice; remove one",
    ),
    "two errors at once": (
        {"hashSize": 0, "hiden": [1]},
        f"{FIELD}.hiden: unknown field; did you mean hidden?\n"
        f"{FIELD}.hashSize: must be ≥ 1, got 0; raise it",
    ),
    "misspelt column": (
        {"dense": ["dens"]},
        f"{FIELD}.dense[0]: must be a column of the batches, got 'dens'; did you mean dense?",
    ),
    "column that is not there": (
        {"categorical": ["qqq"]},
        f"{FIELD}.categorical[0]: must be a column of the batches, got 'qqq'; add it to the "
        "pipeline or training.columns",
    ),
    "number as category": (
        {"categorical": ["dense"]},
        f"{FIELD}.categorical[0]: must be an integer, got 'dense' of type float; cast it",
    ),
    "list as number": (
        {"dense": ["scores"]},
        f"{FIELD}.dense[0]: must be a number or a boolean, got 'scores' of type "
        "list<item: float>; cast it",
    ),
    "list of numbers as sequence": (
        {"sequences": [{"column": "scores", "target": "dense"}]},
        f"{FIELD}.sequences[0].column: must be a list of integers, got 'scores' of type "
        f"list<item: float>; cast it\n"
        f"{FIELD}.sequences[0].target: must be an integer, got 'dense' of type float; cast it",
    ),
    "unknown label": (
        {"label": "click"},
        f"{FIELD}.label: must be a column of the batches, got 'click'; did you mean clicked?",
    ),
    "nothing to learn from": (
        {"dense": [], "categorical": [], "sequences": []},
        f"{FIELD}: must leave a column to learn from, got only the label; add one",
    ),
}


@pytest.mark.parametrize(("config", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS.keys())
def test_each_wrong_config_has_its_message(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        check_config(config, SCHEMA, label="clicked", weight="sample_weight")
    assert str(caught.value) == message


def test_columns_are_chosen_by_type_without_label_and_weight() -> None:
    features = choose_features(parse_config({}), SCHEMA, label="clicked", weight="sample_weight")
    assert (features.label, features.dense) == ("clicked", ("dense", "is_new"))
    assert features.categorical == ("item",)
    assert [sequence.column for sequence in features.sequences] == ["history"]


def test_the_label_is_the_configs_or_the_runs_or_clicked() -> None:
    labels = [
        choose_features(parse_config(config), SCHEMA, label=label, weight=None).label
        for config, label in (({"label": "is_new"}, "item"), ({}, "item"), ({}, None))
    ]
    assert labels == ["is_new", "item", "clicked"]


def test_a_target_is_looked_up_even_if_no_category() -> None:
    config = parse_config({"categorical": [], **WITH_TARGET})
    assert choose_features(config, SCHEMA, label=None, weight=None).categorical == ("item",)


def test_a_missing_default_label_is_an_error() -> None:
    with pytest.raises(LastmileError, match=r"spec\.training\.config\.label: must be a column"):
        choose_features(parse_config({}), pa.schema({"a": pa.int64()}), label=None, weight=None)


RATES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "constant": ({}, [1, 1, 1, 1, 1, 1]),
    "warm-up": ({"warmupSteps": 3}, [0.25, 0.5, 0.75, 1, 1, 1]),
    "linear": ({"schedule": "linear", "decaySteps": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
    "cosine": ({"schedule": "cosine", "decaySteps": 2}, [1, 0.5, 0, 0, 0, 0]),
    "warm-up, then linear": (
        {"schedule": "linear", "warmupSteps": 1, "decaySteps": 5},
        [0.5, 1, 0.75, 0.5, 0.25, 0],
    ),
}


@pytest.mark.parametrize(("config", "rates"), RATES.values(), ids=RATES.keys())
def test_the_learning_rate_follows_the_schedule(config: dict[str, Any], rates: list[float]) -> None:
    parsed = parse_config({"learningRate": 1.0, **config})
    assert [learning_rate(parsed, step) for step in range(6)] == pytest.approx(rates)
