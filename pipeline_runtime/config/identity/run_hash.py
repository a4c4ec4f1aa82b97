"""The identity of a run: a hash of everything in the spec that decides which model comes out.

A checkpoint carries the hash and the hashed part of the spec, the run config. Only an equal run
resumes from it. The run config has the data side, the code and the image as the spec names them.
Left out is what changes how a run is carried out and not what it trains on:

- the cluster side (trainers, dataWorkers, inferenceWorkers, head, autoscaling, env, storage,
  deadlines, suspend):
  a run may move, grow and wait; the checkpoint has the number of ranks, to which `preserveOrder`
  holds it;
- catalogs that no table uses, and the Secrets of the others;
- artifacts and training.checkpoint: where and how often state is kept;
- the fields that a consumer declares as `unhashed_fields`, such as output.mode;
- pipelineOptions whose rows are the same either way; `preserveOrder: true` and `rowsPerBlock` stay
  in, as the position in a checkpoint counts batches and blocks. Without it, the checkpoint has the
  order that the run took, whatever machine resumes it;
- names of steps, and the fields that a step declares as `unhashed_fields`;
- the spelling, where two mean the same: the models of steps and sources `shorten` both to one, and
  leave out what changes no row;
- `applyTo` of steps without an evaluation, as there is nothing else to apply them to;
- every field that has its default, so that a field that a later release adds changes no hash.

`image` is what the spec says, not what the operator's default was, so that an upgrade of the
operator starts no new run.

If a release changes the meaning of a field, the version of the run config rises for the specs that
use the field, and for no other: see `CHANGES`. A changed default is such a change too. What the
field meant before, `upgrade_config` says in today's words if they can. Version 1
had the defaults filled in, and older words; `upgrade_config` reads it, so that its checkpoints
resume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from pipeline_runtime.config.base import RuleSet
from pipeline_runtime.config.dataset import Catalog, Dataset, SourceChoice
from pipeline_runtime.config.experiment import API_VERSION, KIND, DatasetExperiment
from pipeline_runtime.config.identity.version_1 import translate
from pipeline_runtime.config.reading.validation import parse_stored
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.config.step_registry import load_models
from pipeline_runtime.config.texts.credentials import hide_credentials
from pipeline_runtime.errors import ManifestError

RUN_CONFIG_VERSION = 2
_FILLED_VERSION = 1  # run configs with the defaults filled in
# A change of meaning: the version that it began, and a predicate that tells from a run config
# whether the spec uses what changed. A spec has the highest version of the changes that it uses.
Change = tuple[int, Callable[[Mapping[str, Any]], bool]]


def _samples_without_evaluation(config: Mapping[str, Any]) -> bool:
    """Return whether a step `downsample` leaves the rows of an evaluation alone, by default."""
    return _has_evaluation(config) and any(map(_is_undeclared, config.get("pipeline", ())))


def _has_evaluation(config: Mapping[str, Any]) -> bool:
    return "evaluation" in config.get("training", {})


def _is_undeclared(step: Mapping[str, Any]) -> bool:
    return "downsample" in step and "applyTo" not in step["downsample"]


# Version 3: `downsample.applyTo` is Training by default; before, it thinned the evaluation too.
CHANGES: tuple[Change, ...] = ((3, _samples_without_evaluation),)
HASH_CHARS = 16
MAX_SHOWN_CHARS = 80

_OPTIONS_KEPT = ("preserveOrder", "rowsPerBlock")
_STEPS = {model.kind(): model for model in load_models().values()}


def run_config(
    experiment: DatasetExperiment, *, changes: Sequence[Change] = CHANGES
) -> dict[str, Any]:
    """Return the part of the spec that decides what is trained, as canonical JSON values.

    Args:
        changes: the changes of meaning so far.
    """
    config = _build_config(experiment)
    used = (version for version, is_used in changes if is_used(config))
    return {"version": max(used, default=RUN_CONFIG_VERSION), **config}


def run_hash(experiment: DatasetExperiment) -> str:
    """Return the run's identity: 16 hexadecimal digits of the SHA-256 of `run_config`."""
    return hash_config(run_config(experiment))


def seed_group(experiment: DatasetExperiment) -> str:
    """Return the hash that runs share which differ in `training.seed` alone.

    The seeds of steps and of the evaluation stay in it: with another one, a run has other rows.
    """
    config = run_config(experiment)
    training = {key: part for key, part in config.get("training", {}).items() if key != "seed"}
    return hash_config({**config, "training": training})


def upgrade_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the run config that this release builds from the spec behind an older one.

    Anything that is no older run config is returned as it is. It comes from a store, so it may be
    any JSON object.
    """
    if config.get("version") == RUN_CONFIG_VERSION:
        return _declare_samples(config)
    if config.get("version") != _FILLED_VERSION:
        return config
    document: dict[str, JsonValue] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "checkpoint"},
        "spec": {name: part for name, part in translate(config).items() if name != "version"},
    }
    try:
        experiment, unknown = parse_stored(document, RuleSet.NONE)
    except ManifestError:
        return config
    # Without changes of meaning: the older release trained with what the fields meant then.
    return config if unknown else _declare_samples(run_config(experiment, changes=()))


def _declare_samples(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a run config of version 2 with the meaning that `downsample` had, in today's words.

    It comes from a store, so parts that have another shape are returned as they are.
    """
    training, pipeline = config.get("training"), config.get("pipeline")
    if not (isinstance(training, dict) and isinstance(pipeline, list)):
        return config
    if not _has_evaluation(config):
        return config
    return {**config, "pipeline": [_declare_sample(step) for step in pipeline]}


def _declare_sample(step: Any) -> Any:
    body = step.get("downsample") if isinstance(step, dict) else None
    if not isinstance(body, dict) or "applyTo" in body:
        return step
    return {"downsample": {**body, "applyTo": "All"}}


def hash_config(config: Mapping[str, Any]) -> str:
    """Return the hash of a run config, such as one that was read from a checkpoint."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]


def hash_parts(experiment: DatasetExperiment) -> dict[str, str]:
    """Return a hash of each part of the spec that a measurement on a sample rests on, by its field.

    The parts are the run's, without `training.epochs`: how often rows are read changes no rate.
    """
    config = run_config(experiment)
    training = {key: part for key, part in config.get("training", {}).items() if key != "epochs"}
    parts = {
        "dataset": config["dataset"],
        "pipeline": config.get("pipeline", []),
        "training": training,
    }
    return {field: hash_config({field: part}) for field, part in parts.items()}


def _build_config(experiment: DatasetExperiment) -> dict[str, Any]:
    spec = experiment.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    options, training = spec.get("pipelineOptions", {}), spec.get("training", {})
    has_evaluation = "evaluation" in training
    config = {
        "dataset": _shorten_sources(Dataset, spec["dataset"]),
        "catalogs": [_trim_catalog(catalog) for catalog in experiment.spec.used_catalogs],
        "pipeline": [
            _trim_step(step, has_evaluation=has_evaluation) for step in spec.get("pipeline", ())
        ],
        # `preserveOrder: false` counts as absent: the checkpoint has the order that a run took.
        "pipelineOptions": {key: options[key] for key in _OPTIONS_KEPT if options.get(key)},
        "training": {key: part for key, part in training.items() if key != "checkpoint"},
        "code": spec.get("code"),
        "image": spec.get("image"),
    }
    hashed = {name: part for name, part in config.items() if part}
    for name, consumer in experiment.spec.find_consumers().items():  # also one without fields
        hashed[name] = {k: v for k, v in spec[name].items() if k not in consumer.unhashed_fields}
    return {name: _canonical(part) for name, part in hashed.items()}


def diff_configs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return lines with the differences: `training.batchSize: 4096 → 256`, sorted by path."""
    return [f"{path}: {' → '.join(v)}" for path, v in compare_configs([before, after])]


def compare_configs(configs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each path at which some configs differ, with the value of every config as text."""
    sides = [dict(_flatten(dict(config))) for config in configs]
    for path in sorted(set().union(*sides)):
        values = [side.get(path, _ABSENT) for side in sides]
        if any(value != values[0] for value in values):
            yield path, [_show(side, path) for side in sides]


def _trim_catalog(catalog: Catalog) -> dict[str, Any]:
    return catalog.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, exclude={"secret_ref"}
    )


def _trim_step(step: dict[str, Any], *, has_evaluation: bool) -> dict[str, Any]:
    without = () if has_evaluation else ("applyTo",)
    return {
        kind: _trim_body(_STEPS[kind], body, without)
        for kind, body in step.items()
        if kind != "name"
    }


def _trim_body(
    model: type[StepModel], body: dict[str, Any], without: Sequence[str]
) -> dict[str, Any]:
    left_out = (*model.unhashed_fields, *without)
    trimmed = {name: value for name, value in body.items() if name not in left_out}
    trimmed = dict(model.shorten(trimmed))
    return _shorten_sources(model, trimmed) if issubclass(model, SourceChoice) else trimmed


def _shorten_sources(choice: type[SourceChoice], body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a dataset or a step with its table in the shortest spelling."""
    models = choice.source_models()
    return {n: models[n].shorten(value) if n in models else value for n, value in body.items()}


def _canonical(value: Any) -> Any:
    """Return the value with 1.0 as 1, which is how the API server writes it."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


class _Absent:
    """A field that one side does not have; equal to nothing else."""


_ABSENT = _Absent()


def _flatten(value: JsonValue, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _flatten(item, f"{path}[{index}]")
    else:
        yield path, value


def _show(side: dict[str, Any], path: str) -> str:
    if path not in side:
        return "absent"
    text = hide_credentials(json.dumps(side[path], ensure_ascii=False))
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"
