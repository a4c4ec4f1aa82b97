"""The ranking model's config: what is wrong is told, columns chosen by type, schedules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from facts import assert_all_told

from pipeline_runtime.errors import LastmileError, ManifestError
from pipeline_runtime.training.ranking.features import choose_features, parse_config
from pipeline_runtime.training.ranking.trainer import check_config, learning_rate

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
        f"{FIELD}.hashsize: … hashSize",
    ),
    "misspelt field of a sequence": (
        {"sequences": [{"column": "history", "targt": "item"}]},
        f"{FIELD}.sequences[0].targt: … target",
    ),
    "unknown field": (
        {"sequences": [{"column": "history", "x": 1}]},
        f"{FIELD}.sequences[0].x: … column, paddingId, target",
    ),
    "wrong type": (
        {"embeddingDim": "16"},
        f"{FIELD}.embeddingDim: … integer … '16' … string",
    ),
    "out of bounds": (
        {"hashSize": 0},
        f"{FIELD}.hashSize: … 1 … 0",
    ),
    "a size of hidden layers": (
        {"hidden": [64, 0]},
        f"{FIELD}.hidden[1]: … 1 … 0",
    ),
    "unknown choice": (
        {"optimizer": "adma"},
        f"{FIELD}.optimizer: … adam, adagrad … 'adma'",
    ),
    "schedule without an end": (
        {"schedule": "cosine", "warmupSteps": 10},
        f"{FIELD}.decaySteps: … warmupSteps … 10 … cosine",
    ),
    "end without a schedule": (
        {"decaySteps": 10},
        f"{FIELD}.decaySteps: … linear … cosine … constant",
    ),
    "a column twice": (
        {"dense": ["dense", "dense"]},
        f"{FIELD}.dense: … 'dense'",
    ),
    "a sequence twice": (
        {"sequences": [{"column": "history"}, {"column": "history", "target": "item"}]},
        f"{FIELD}.sequences: … 'history'",
    ),
    "two errors at once": (
        {"hashSize": 0, "hiden": [1]},
        f"{FIELD}.hiden: … hidden\n{FIELD}.hashSize: … 1 … 0",
    ),
    "misspelt column": (
        {"dense": ["dens"]},
        f"{FIELD}.dense[0]: … 'dens'",
    ),
    "column that is not there": (
        {"categorical": ["qqq"]},
        f"{FIELD}.categorical[0]: … 'qqq'",
    ),
    "number as category": (
        {"categorical": ["dense"]},
        f"{FIELD}.categorical[0]: … integer … 'dense' … float",
    ),
    "list as number": (
        {"dense": ["scores"]},
        f"{FIELD}.dense[0]: … 'scores' … list<item: float>",
    ),
    "list of numbers as sequence": (
        {"sequences": [{"column": "scores", "target": "dense"}]},
        f"{FIELD}.sequences[0].column: … 'scores' … list<item: float>\n"
        f"{FIELD}.sequences[0].target: … integer … 'dense' … float",
    ),
    "unknown label": (
        {"label": "click"},
        f"{FIELD}.label: … 'click' … clicked",
    ),
    "nothing to learn from": (
        {"dense": [], "categorical": [], "sequences": []},
        f"{FIELD}: … label",
    ),
}


@pytest.mark.parametrize(("config", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS.keys())
def test_a_wrong_config_is_told_by_field_and_value(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        check_config(config, SCHEMA, label="clicked", weight="sample_weight")
    assert_all_told(str(caught.value).splitlines(), message.splitlines())


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
    with pytest.raises(LastmileError, match=r"spec\.training\.config\.label: .*'clicked'"):
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
