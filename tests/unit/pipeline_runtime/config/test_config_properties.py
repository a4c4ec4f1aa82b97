"""Random documents: valid ones round-trip, and mutated ones raise nothing but ManifestError."""

import copy
import json
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.config import (
    DatasetExperiment,
    ManifestError,
    Problem,
    parse_experiment,
    parse_manifests,
    run_config,
    run_hash,
)
from pipeline_runtime.config.base import MAX_SAFE_INTEGER
from pipeline_runtime.config.introspect import walk_fields
from pipeline_runtime.config.texts.yaml_documents import read_documents

PROFILE = settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
columns = st.lists(names, min_size=1, max_size=4, unique=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(
    str.strip
)
uris = st.one_of(names.map(lambda name: f"{name}/"), names.map(lambda name: f"s3://{name}/x/"))
seeds = st.integers(0, 2**31 - 1)
scalars = st.one_of(st.booleans(), st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER), texts)
sources = st.one_of(
    st.fixed_dictionaries(
        {"parquet": st.fixed_dictionaries({"uri": uris}, optional={"columns": columns})}
    ),
    st.fixed_dictionaries(
        {
            "parquet": st.fixed_dictionaries(
                {"uris": st.lists(uris, min_size=1, max_size=3)},
                optional={"s3": st.just({"region": "eu-west-1", "anonymous": True})},
            )
        }
    ),
    st.just({"iceberg": {"catalog": "main", "table": "db.t", "snapshotId": "3"}}),
)
side_tables = st.builds(lambda source, keys: source | {"keys": keys}, sources, columns)


def named(field: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Lists of columns, each with another field."""
    return st.dictionaries(names, values, min_size=1, max_size=3).map(
        lambda columns: [{"name": name, field: value} for name, value in columns.items()]
    )


percents = st.integers(0, 100) | st.sampled_from(["0.5", "12.25", "99.999999"])
steps = st.one_of(
    st.fixed_dictionaries({"filter": st.fixed_dictionaries({"where": texts})}),
    st.fixed_dictionaries(
        {"derive": st.fixed_dictionaries({"columns": named("expression", texts)})}
    ),
    st.fixed_dictionaries({"antiJoin": side_tables}),
    st.fixed_dictionaries({"join": side_tables}),
    st.fixed_dictionaries(
        {
            "downsample": st.fixed_dictionaries(
                {"keepPercent": percents}, optional={"where": texts, "seed": seeds}
            )
        }
    ),
    st.fixed_dictionaries({"select": st.fixed_dictionaries({"columns": columns})}),
    st.fixed_dictionaries(
        {"fillNull": st.fixed_dictionaries({"columns": named("value", scalars)})}
    ),
    st.fixed_dictionaries(
        {"padSequence": st.fixed_dictionaries({"columns": columns, "length": st.integers(1, 99)})}
    ),
)
workers = st.builds(
    lambda low, more: {"minReplicas": low, "maxReplicas": low + more},
    st.integers(1, 1000),
    st.integers(0, 1000),
)
specs = st.fixed_dictionaries(
    {"dataset": sources, "catalogs": st.just([{"name": "main", "type": "Sql"}])},
    optional={
        "pipeline": st.lists(steps, max_size=5),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "batchSize": st.integers(1, 10_000_000),
                "epochs": st.integers(1, 100_000),
                "lastBatch": st.sampled_from(["Pad", "Drop"]),
                "evaluation": st.just({"holdoutPercent": 5}),
                "config": st.dictionaries(names, scalars, max_size=3),
            },
        ),
        "dataWorkers": workers,
        "trainers": st.just({"resources": {"requests": {"cpu": 4, "memory": "8Gi"}}}),
        "env": st.just([{"name": "A", "value": "1"}]),
        "suspend": st.booleans(),
        "ttlSecondsAfterFinished": seeds,
    },
)
documents = st.builds(
    lambda name, spec: {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": spec,
    },
    st.from_regex(r"[a-z][-a-z0-9]{0,38}[a-z0-9]", fullmatch=True),
    specs,
)


@PROFILE
@given(documents)
def test_a_valid_document_round_trips(document: dict[str, Any]) -> None:
    experiment = parse_experiment(document)
    assert experiment.to_document() == document
    again = parse_experiment(experiment.to_document())
    assert again == experiment
    assert run_hash(again) == run_hash(experiment)
    assert json.loads(json.dumps(run_config(experiment))) == run_config(experiment)


@PROFILE
@given(documents)
def test_a_document_written_as_json_reads_as_yaml(document: dict[str, Any]) -> None:
    (read,) = read_documents(json.dumps(document, ensure_ascii=True))
    assert read.problems == ()
    assert read.value == document


def problems_in(text: str, overrides: tuple[str, ...] = ()) -> list[Problem]:
    """The problems of a manifest; anything raised but ManifestError fails the test."""
    try:
        parse_manifests(text, file="m.yaml", overrides=overrides)
    except ManifestError as error:
        return list(error.problems) or [Problem(path="", message="")]
    return []


FIELDS = sorted({str(path[-1]) for path, _ in walk_fields(DatasetExperiment)} | {"", "[0]", "a.b"})
junk = st.recursive(
    st.one_of(st.none(), scalars, st.integers(-(10**30), 10**30), st.sampled_from(FIELDS)),
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(st.sampled_from(FIELDS) | texts, below, max_size=3),
    ),
    max_leaves=8,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [path, *(found for key, item in items for found in paths_in(item, (*path, key)))]


def mutate(data: st.DataObject, document: Any) -> Any:
    """Replace, remove or add something at a random place."""
    path = data.draw(st.sampled_from(paths_in(document)))
    if not path:
        return data.draw(junk)
    above = document
    for part in path[:-1]:
        above = above[part]
    change = data.draw(st.sampled_from(["replace", "remove", "add"]))
    if change == "remove":
        del above[path[-1]]
    elif change == "replace":
        above[path[-1]] = data.draw(junk)
    elif isinstance(above, dict):
        above[data.draw(st.sampled_from(FIELDS))] = data.draw(junk)
    else:
        above.append(data.draw(junk))
    return document


@PROFILE
@given(documents, st.data())
def test_a_mutated_document_raises_nothing_but_manifest_error(
    document: dict[str, Any], data: st.DataObject
) -> None:
    mutated: Any = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 4))):
        if not isinstance(mutated, dict | list):
            break
        mutated = mutate(data, mutated)
    text = yaml.safe_dump(mutated, allow_unicode=True)
    problems = problems_in(text)
    assert all(problem.message for problem in problems)
    assert len({(p.path, p.message, p.line, p.column) for p in problems}) == len(problems)


@PROFILE
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_raises_nothing_but_manifest_error(text: str) -> None:
    assert all(problem.message for problem in problems_in(text))


@PROFILE
@given(documents, st.lists(st.text(max_size=30), max_size=3), st.sampled_from(FIELDS))
def test_any_override_raises_nothing_but_manifest_error(
    document: dict[str, Any], overrides: list[str], field: str
) -> None:
    chosen = [*overrides, f"{field}=1", f"pipeline[0].{field}=[", f"training.{field}.x=a"]
    problems = problems_in(json.dumps(document), tuple(chosen))
    assert all(problem.message for problem in problems)
