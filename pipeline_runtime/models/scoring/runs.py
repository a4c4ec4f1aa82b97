"""Models that runs trained: from an experiment's run, or by the folder of a run or a checkpoint.

The checkpoint's header has the run's config, and the state has the columns of its batches. With
`preprocessing: Run` the steps of the run's pipeline that make these columns are bound to the
scoring step's input, so a row is scored as it was trained on. Steps that choose rows, such as
`filter` and `downsample`, are left out: each row is scored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.batches import ROW_WEIGHT
from pipeline_runtime.config import upgrade_config
from pipeline_runtime.config.training import BUILT_IN_ENTRYPOINT
from pipeline_runtime.errors import CheckpointError, ExportError, SourceError, StepError
from pipeline_runtime.iceberg.pins import ModelPin
from pipeline_runtime.models.loading import LoadedModel, choose_checkpoint, load_checkpoint
from pipeline_runtime.models.samples import column_of, find_read_tensors
from pipeline_runtime.models.scoring.calling import (
    Options,
    TensorScorer,
    build_options,
    check_on_sample,
)
from pipeline_runtime.models.scoring.columns import build_zeros, find_invalid
from pipeline_runtime.models.scoring.loaded import load_once
from pipeline_runtime.models.scoring.preprocessing import bind_preprocessing
from pipeline_runtime.runs.listing import read_run
from pipeline_runtime.runs.locate import is_run_name, locate_run
from pipeline_runtime.sources import Location, Opening, open_location
from pipeline_runtime.sources.stores import list_folder
from pipeline_runtime.steps.base import ModelRequest, Scorer, Transform, public_schema
from pipeline_runtime.steps.checks import broken, suggestion
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.header import CheckpointHeader

_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A checkpoint; see `steps.base.OpenedModel`.

    Attributes:
        checkpoints: folder of the run's checkpoints.
        name: name of the checkpoint.
        sha256: digest of the state and of the run's config, which has the module's options and the
            preprocessing.
    """

    checkpoints: Location
    name: str
    sha256: str
    inputs: tuple[str, ...]
    options: Options
    steps: tuple[Transform, ...]
    note: str
    calls_user_code: bool

    def find_invalid(self, rows: pa.Table) -> Mapping[str, npt.NDArray[np.bool_]]:
        return find_invalid(rows)

    def load(self) -> Scorer:
        """Return the module of this process. Raises StepError if the checkpoint is gone."""
        return load_once((self.sha256, self.options), self._load)

    def _load(self) -> Scorer:
        store = CheckpointStore(location=self.checkpoints)
        for header in store.headers():
            if header.name == self.name and _hash_model(header) == self.sha256:
                return self.build(load_checkpoint(store, header))
        raise StepError(
            f"{self.checkpoints.uri}: must still have the checkpoint {self.name} that this run "
            "began with, unchanged; restore it, or start a new run"
        )

    def build(self, loaded: LoadedModel) -> TensorScorer:
        """Return the scorer of a module."""
        device = self.options.choose_device()
        return TensorScorer(call=loaded.module.to(device), options=self.options, device=device)


def open_trained(request: ModelRequest, artifacts_uri: str, opening: Opening) -> TrainedModel:
    """Return the model that a run trained, called once on rows of zeros.

    Raises ManifestError if there is no such run or its model does not fit the manifest, StoreError
    if the store does not answer.
    """
    field = "experimentRef" if request.model.experiment_ref else "checkpoint"
    try:
        source, store, header = _find(request, artifacts_uri, opening)
        loaded = load_checkpoint(store, header)
        opened = _bind(request, loaded, store)
        check_on_sample(opened.build(loaded), _build_sample(loaded, opened.inputs), request.types)
    except (CheckpointError, ExportError) as error:
        raise broken(str(error), field) from error
    except StepError as error:
        raise broken(f"{header.uri}: {error}", field) from error
    run = _name_run(store.location)
    opening.pins.pin_model(
        ModelPin(
            source=source,
            uri=f"{store.location.full_uri}/{header.name}",
            sha256=header.sha256,
            experiment=request.model.experiment_ref and request.model.experiment_ref.name,
            run=run,
            run_hash=header.run_hash,
            step=header.step,
        )
    )
    return opened


def _find(
    request: ModelRequest, artifacts_uri: str, opening: Opening
) -> tuple[str, CheckpointStore, CheckpointHeader]:
    """Return the name of the model for its pin, its run's checkpoints, and the chosen one."""
    model = request.model
    if model.experiment_ref is None:
        assert model.checkpoint is not None
        place = open_location(model.checkpoint.uri, opening.storage_root)
        source = place.full_uri
        store, name = _find_checkpoint(place)
        choice = "Last"
    else:
        ref, name = model.experiment_ref, None
        source = f"{ref.name}/{ref.run or '*'}/{ref.checkpoint}"
        folder = open_location(artifacts_uri, opening.storage_root).join(ref.name)
        pinned = opening.pins.find_model(source)
        chosen = (pinned.run if pinned else None) or ref.run or _find_newest(folder)
        run = folder.join(chosen)
        if not list_folder(run, "look for a run"):
            advice = suggestion(chosen, _list_runs(folder))
            if pinned is not None:
                advice = "this run began with it: restore it, or start a new run"
            raise broken(
                f"must be the folder of a run of {ref.name!r}, but {chosen!r} is none; {advice}",
                "experimentRef.run",
            )
        store, choice = CheckpointStore(location=run.join(_CHECKPOINTS)), ref.checkpoint
    pinned = opening.pins.find_model(source)
    if pinned is not None:
        return source, store, _find_pinned(store, pinned)
    if name is None:
        return source, store, choose_checkpoint(store, "best" if choice == "Best" else "last")
    return source, store, _find_named(store, name)


def _find_pinned(store: CheckpointStore, pinned: ModelPin) -> CheckpointHeader:
    """Return the checkpoint that the run began with. Raises a broken rule if it is gone."""
    for header in store.headers():
        if (
            f"{store.location.full_uri}/{header.name}" == pinned.uri
            and header.sha256 == pinned.sha256
        ):
            return header
    raise broken(
        f"must be the checkpoint that this run began with ({pinned.describe()}), but that is gone; "
        "restore it, or start a new run"
    )


def _find_named(store: CheckpointStore, name: str) -> CheckpointHeader:
    headers = {header.name: header for header in store.headers()}
    if name not in headers:
        raise broken(
            f"must be the folder of a whole checkpoint, but {name!r} is none; "
            f"{suggestion(name, headers)}",
            "checkpoint.uri",
        )
    return headers[name]


def _find_checkpoint(place: Location) -> tuple[CheckpointStore, str | None]:
    """Return the checkpoints at a place, and the name of the one that it is the folder of."""
    path, _, name = place.path.rstrip("/").rpartition("/")
    if name.startswith("step-"):
        parent = replace(place, uri=place.uri.rstrip("/").rpartition("/")[0], path=path)
        return CheckpointStore(location=parent), name
    try:
        folder = locate_run(place.full_uri).artifacts
    except SourceError as error:
        raise broken(
            f"must be the folder of a run or of a checkpoint, but {place.uri} is neither",
            "checkpoint.uri",
        ) from error
    return CheckpointStore(location=folder.join(_CHECKPOINTS)), None


def _list_runs(folder: Location) -> list[str]:
    """Return the names of an experiment's runs, the newest first."""
    infos = list_folder(folder, "look for runs")
    names = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    return sorted(filter(is_run_name, names), reverse=True)


def _find_newest(folder: Location) -> str:
    """Return the name of the newest run that is complete. Raises a broken rule without one."""
    names = _list_runs(folder)
    for name in names:
        if read_run(folder.join(name)).phase == "Complete":
            return name
    experiment = folder.path.rstrip("/").rpartition("/")[2]
    found = f"has {len(names)} runs, none of them complete" if names else "has no run"
    raise broken(
        f"must be an experiment with a complete run, but {experiment!r} {found} in {folder.uri}; "
        "train it first, or correct the name",
        "experimentRef.name",
    )


def _name_run(checkpoints: Location) -> str | None:
    name = checkpoints.path.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    return name if is_run_name(name) else None


def _bind(request: ModelRequest, loaded: LoadedModel, store: CheckpointStore) -> TrainedModel:
    """Return the model for the step's input. Raises a broken rule if an input is missing."""
    header, schema = loaded.header, loaded.schema
    if schema is None:
        raise CheckpointError(
            f"{header.uri}: must have the columns of its batches, but has none, since a script, an "
            "entrypoint or an older release wrote it; give a function that returns the model"
        )
    batch = find_read_tensors(loaded.module, schema)
    wanted = {column_of(name, batch) for name in batch} - {ROW_WEIGHT}
    names = [name for name in request.model.inputs or schema.names if name in wanted]
    if lacking := wanted - set(names):
        raise broken(
            f"must name all columns that the model reads, but lacks {', '.join(sorted(lacking))}; "
            "add them, or remove inputs",
            "inputs",
        )
    config = upgrade_config(header.run_config)
    steps: tuple[Transform, ...] = ()
    if request.model.preprocessing == "Run":
        steps = bind_preprocessing(request, config, frozenset(names), header.uri)
    types = steps[-1].output_schema if steps else public_schema(request.input_schema)
    inputs = pa.schema([schema.field(name) for name in names])
    _check_inputs(inputs, types, request)
    training = config.get("training", {})
    entrypoint = training.get("entrypoint", BUILT_IN_ENTRYPOINT)
    run = _name_run(store.location)
    return TrainedModel(
        checkpoints=store.location,
        name=header.name,
        sha256=_hash_model(header),
        inputs=tuple(names),
        options=build_options(request, is_logit=entrypoint == BUILT_IN_ENTRYPOINT),
        steps=steps,
        note=f"{request.model.name}: {run or header.uri}, {header.name}, "
        f"sha256 {header.sha256[:12]}",
        calls_user_code=any(step.calls_user_code for step in steps) or "model" in training,
    )


def _hash_model(header: CheckpointHeader) -> str:
    config = json.dumps(header.run_config, sort_keys=True)
    return hashlib.sha256(f"{header.sha256}\n{config}".encode()).hexdigest()


def _check_inputs(inputs: pa.Schema, found: pa.Schema, request: ModelRequest) -> None:
    """Raise a broken rule for an input that is missing, or of another type than in training."""
    for field in inputs:
        if field.name not in found.names:
            raise broken(
                f"must have the column {field.name!r}, which the model reads; "
                f"{suggestion(field.name, found.names)}"
            )
        got = found.field(field.name).type
        if got != field.type:
            advice = "cast it in a step before"
            if request.model.preprocessing == "None":
                advice += ", or set preprocessing: Run"
            raise broken(
                f"must have the column {field.name!r} as {field.type}, as the model was trained, "
                f"but has {got}; {advice}"
            )


def _build_sample(loaded: LoadedModel, names: Sequence[str]) -> pa.Table:
    schema = loaded.schema
    assert schema is not None  # `_bind` has checked it
    return build_zeros(pa.schema([schema.field(name) for name in names]))
