"""Loads the model of a run from a checkpoint, as a torch module.

The header of the checkpoint has the run's config, by which the module is built; its state has the
weights. Neither is trusted: see `checkpoints.safe_state` for the state, and `_build_users` for the
function that the header names. `exporting` writes a loaded model to a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from torch import nn

from pipeline_runtime.config import upgrade_config
from pipeline_runtime.config.base import ImportPath
from pipeline_runtime.config.training import BUILT_IN_ENTRYPOINT
from pipeline_runtime.errors import CheckpointError, ManifestError
from pipeline_runtime.runs.locate import DEFAULT_ROOT, locate_run
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore, find_best
from pipeline_runtime.training.checkpoints.header import CheckpointHeader
from pipeline_runtime.training.ranking.features import Features, parse_config
from pipeline_runtime.training.ranking.network import RankingModel
from pipeline_runtime.training.ranking.user_module import build_module

Choice = Literal["last", "best"]
_CHOICES = ("last", "best")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A trained module, and the checkpoint that it came from.

    Attributes:
        module: in eval mode, on the CPU.
        schema: columns of the batches that it was trained on; None if the checkpoint has none,
            because an older release, an entrypoint or a script wrote it.
    """

    module: nn.Module
    schema: pa.Schema | None
    header: CheckpointHeader


class _Trained(BaseModel):
    """The part of a checkpoint's run config that decides which module was trained."""

    model_config = ConfigDict(strict=True, frozen=True, alias_generator=to_camel, extra="ignore")

    entrypoint: str = BUILT_IN_ENTRYPOINT
    script: str | None = None
    model: ImportPath | None = None
    config: dict[str, JsonValue] = Field(default_factory=dict)
    label_column: str | None = None
    weight_column: str | None = None

    @property
    def program(self) -> str | None:
        """The program of the user that built the module; None for the built-in loop."""
        if self.script is not None:
            return f"script {self.script!r}"
        return None if self.entrypoint == BUILT_IN_ENTRYPOINT else f"entrypoint {self.entrypoint!r}"


class _RankingState(BaseModel):
    """The part of a state of the built-in model that decides the shapes of its weights."""

    features: Features


def load_model(
    run: str | os.PathLike[str],
    *,
    checkpoint: Choice = "last",
    model: nn.Module | None = None,
    root: str = DEFAULT_ROOT,
    trust_pickle: bool = False,
) -> nn.Module:
    """Return the trained module of a run with its weights, in eval mode, on the CPU.

    It takes a batch, a dict of tensors by column as `Pipeline.loader` yields them, and returns
    logits, float [B]. Of a batch only the columns matter that the module reads.

    Args:
        run: folder or URI of the run or of its experiment; or NAME or NAME/RUN below the root.
        checkpoint: `last`, or `best` by `training.checkpoint.keepBest`.
        model: module to load the weights into. It is needed if an entrypoint or script of the user
            built the module. With it, nothing that the checkpoint names is imported.
        root: folder or URI that names of runs are looked up in.
        trust_pickle: True to load a state with objects of any type, which can run any code.

    Raises:
        SourceError: there is no such run; StoreError if a store does not answer.
        CheckpointError: the run has no such checkpoint, or its state does not fit the module.
        TrainingError: the function that builds the user's module is missing, or returned another
            thing.
    """
    return load_run(
        run, checkpoint=checkpoint, model=model, root=root, trust_pickle=trust_pickle
    ).module


def load_run(
    run: str | os.PathLike[str],
    *,
    checkpoint: Choice = "last",
    model: nn.Module | None = None,
    root: str = DEFAULT_ROOT,
    trust_pickle: bool = False,
) -> LoadedModel:
    """Return the trained module of a run, with its schema; see `load_model`."""
    if checkpoint not in _CHOICES:
        raise ValueError(f"checkpoint: must be 'last' or 'best', but is {checkpoint!r}")
    folder = locate_run(os.fspath(run), root).artifacts
    store = CheckpointStore(location=folder.join("checkpoints"), trust_pickle=trust_pickle)
    return load_checkpoint(store, choose_checkpoint(store, checkpoint), model)


def load_checkpoint(
    store: CheckpointStore, header: CheckpointHeader, model: nn.Module | None = None
) -> LoadedModel:
    """Return the module of one checkpoint of a run; see `load_model` for `model` and errors."""
    state: Mapping[str, Any] = store.load(header)["user"]
    schema = _read_schema(header, state)
    module = model if model is not None else _build(header, state, schema)
    weights = state.get("model")
    if not isinstance(weights, Mapping):
        keys = ", ".join(sorted(map(str, state))) or "nothing"
        raise CheckpointError(
            f"{header.uri}: the state must have a state_dict under 'model', but has {keys}; save "
            "one there (docs/models.md)"
        )
    try:
        # The module that was built here has no values yet; the weights become its own.
        module.load_state_dict(weights, assign=isinstance(module, RankingModel) and model is None)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{header.uri}: the weights do not fit the module {type(module).__name__}: {error}. "
            "Use the code that trained them"
        ) from error
    return LoadedModel(module=module.eval(), schema=schema, header=header)


def choose_checkpoint(store: CheckpointStore, checkpoint: Choice) -> CheckpointHeader:
    """Return the header of the last or the best checkpoint. Raises CheckpointError without one."""
    headers = store.headers()
    if not headers:
        raise CheckpointError(
            f"{store.location.uri}: must hold a whole checkpoint, but holds none; a run saves the "
            "first one after training.checkpoint.everySeconds, or at the end of an epoch"
        )
    if checkpoint == "last":
        return headers[0]
    scores = [header.score for header in headers if header.score is not None]
    best = find_best(headers, scores[0]) if scores else None  # by the newest keepBest
    if best is None:
        raise CheckpointError(
            f"{store.location.uri}: no checkpoint has the metric of a best one; set "
            "training.checkpoint.keepBest before training, or load the last one"
        )
    return best


def _read_schema(header: CheckpointHeader, state: Mapping[str, Any]) -> pa.Schema | None:
    content = state.get("schema")
    if not isinstance(content, bytes):
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError) as error:
        raise CheckpointError(
            f"{header.uri}: the schema must be one that Lastmile wrote, but {error}; train anew"
        ) from error


def _build(
    header: CheckpointHeader, state: Mapping[str, Any], schema: pa.Schema | None
) -> nn.Module:
    """Build the module that a checkpoint's run trained, without its weights."""
    try:
        trained = _Trained.model_validate(upgrade_config(header.run_config).get("training", {}))
    except ValidationError as error:
        raise CheckpointError(
            f"{header.uri}: the run's config must be one that Lastmile wrote, but has "
            f"{error.error_count()} wrong fields; train anew"
        ) from error
    if trained.program is not None:
        raise CheckpointError(
            f"{header.uri}: the module was built by the {trained.program}, so load_model needs it: "
            "give a module of the same class as model="
        )
    if trained.model is None:
        return _build_ranking(header, trained, state)
    return _build_users(header, trained.model, trained, schema)


def _build_users(
    header: CheckpointHeader, path: str, trained: _Trained, schema: pa.Schema | None
) -> nn.Module:
    """Call the function of `training.model`."""
    check_users_function(header.uri, path)
    if schema is None:
        raise CheckpointError(
            f"{header.uri}: the state must have the schema that {path!r} gets, but has none; give "
            "the module as model="
        )
    label, weight = trained.label_column, trained.weight_column
    return build_module(path, trained.config, schema, label=label, weight=weight)


def check_users_function(uri: str, path: str) -> None:
    """Raise CheckpointError if a checkpoint names a function of Python itself to call.

    Whoever can write to the store chooses the name, so it must not be one of Python's own, all of
    which are importable everywhere. Other modules are the user's, or those that the user installed.
    """
    package = path.partition(":")[0].partition(".")[0]
    if package in sys.stdlib_module_names:
        raise CheckpointError(
            f"{uri}: the module must be built, and its columns made, by functions of the user's, "
            f"but the checkpoint names {path!r} of Python itself; do not trust this checkpoint"
        )


def _build_ranking(
    header: CheckpointHeader, trained: _Trained, state: Mapping[str, Any]
) -> RankingModel:
    """Build the built-in model without memory for its weights, whose sizes nobody has checked."""
    try:
        config = parse_config(trained.config)
        features = TypeAdapter(_RankingState).validate_python(dict(state)).features
        with torch.device("meta"):
            return RankingModel(features, config)
    except (ManifestError, ValidationError, ValueError) as error:
        raise CheckpointError(
            f"{header.uri}: config and features must be those of the built-in model, but {error}"
        ) from error
