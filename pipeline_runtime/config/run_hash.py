"""What identifies a run: a hash of everything that decides which model comes out.

A checkpoint carries it, and only an equal one resumes. Into it go the data side with its defaults
filled in, the code and the image as the spec names them. Left out is what changes how a run is
carried out and not what it trains on:

- the cluster side (trainers, dataWorkers, head, autoscaling, env, storage, deadlines, suspend):
  a run may move, grow and wait; the checkpoint has the number of ranks, to which `preserveOrder`
  holds it;
- artifacts and training.checkpoint: where and how often state is kept;
- pipelineOptions whose rows are the same either way; `preserveOrder` and `rowsPerBlock` stay in,
  as the position in a checkpoint counts batches and blocks;
- resources, concurrency and maxBytes of steps.

`image` is what the spec says, not what the operator's default was, so that an upgrade of the
operator starts no new run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from pipeline_runtime.config.credentials import hide_credentials
from pipeline_runtime.config.experiment import DatasetExperiment

# Rises when the meaning of a field changes, so that older checkpoints are refused with a reason.
RUN_CONFIG_VERSION = 1
HASH_CHARS = 16
MAX_SHOWN_CHARS = 80

_STEP_FIELDS_LEFT_OUT = {
    "antiJoin": ("maxBytes",),
    "join": ("maxBytes",),
    "map": ("resources", "concurrency"),
}
_OPTIONS_KEPT = ("preserveOrder", "rowsPerBlock")


def run_config(experiment: DatasetExperiment) -> dict[str, Any]:
    """The part of the spec that decides what is trained, as canonical JSON values."""
    spec = experiment.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    options = spec["pipelineOptions"]
    training = {key: value for key, value in spec["training"].items() if key != "checkpoint"}
    config = {
        "version": RUN_CONFIG_VERSION,
        "dataset": spec["dataset"],
        "pipeline": [_trim_step(step) for step in spec["pipeline"]],
        "pipelineOptions": {key: options[key] for key in _OPTIONS_KEPT if key in options},
        "training": training,
        "code": spec["code"],
        "image": spec.get("image"),
    }
    return {key: _canonical(value) for key, value in config.items() if value is not None}


def run_hash(experiment: DatasetExperiment) -> str:
    """The run's identity: 16 hexadecimal digits of the SHA-256 of `run_config`."""
    return hash_config(run_config(experiment))


def hash_config(config: dict[str, Any]) -> str:
    """The hash of a run config, such as one that was read from a checkpoint."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]


def hash_parts(experiment: DatasetExperiment) -> dict[str, str]:
    """A hash of each part of the spec that a measurement on a sample rests on, by its field.

    As the run's, but for `training.epochs`: how often rows are read changes no rate.
    """
    config = run_config(experiment)
    training = {key: value for key, value in config["training"].items() if key != "epochs"}
    parts = {"dataset": config["dataset"], "pipeline": config["pipeline"], "training": training}
    return {field: hash_config({field: part}) for field, part in parts.items()}


def diff_configs(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Lines that say what differs: `training.batchSize: 4096 → 256`, in the order of the paths."""
    old, new = dict(_flatten(before)), dict(_flatten(after))
    return [
        f"{path}: {_show(old, path)} → {_show(new, path)}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path, _ABSENT) != new.get(path, _ABSENT)
    ]


def _trim_step(step: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {k: v for k, v in body.items() if k not in _STEP_FIELDS_LEFT_OUT.get(kind, ())}
        for kind, body in step.items()
    }


def _canonical(value: Any) -> Any:
    """The API server writes 1.0 as 1, so both are one value here."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


class _Absent:
    """Stands for a field that one side does not have; equal to nothing else."""


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
