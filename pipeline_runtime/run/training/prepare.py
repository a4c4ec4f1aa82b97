"""Prepares a run before anything starts: the plan, the work of each rank, and where to resume.

Every input that can be refused is refused here. Torch and Ray are not imported, since the plan is
shown before that; `check_program`, which imports the user's module, comes right after it.
`driver` executes the prepared run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from pyarrow import fs as pafs

from pipeline_runtime.arrays.conversion import check_tensor_schema
from pipeline_runtime.config import DatasetExperiment, Evaluation, Training, run_config, run_hash
from pipeline_runtime.config.steps import PipelineOptions
from pipeline_runtime.config.training import CheckpointPolicy
from pipeline_runtime.errors import (
    CheckpointError,
    ManifestError,
    Problem,
    TrainingError,
)
from pipeline_runtime.feed.making.matching import count_matches, has_row
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.plan import Group, Plan, StreamPlan, build_plan
from pipeline_runtime.run.materializing import build_ready_plan
from pipeline_runtime.run.options import RunOptions, logical_cpus
from pipeline_runtime.run.pinning import find_pins
from pipeline_runtime.run.results import check_not_complete
from pipeline_runtime.sources import Location, open_location
from pipeline_runtime.sources.stores import list_folder
from pipeline_runtime.training.checkpoints.checkpoint import (
    CheckpointStore,
    Resumable,
    find_resumable,
)
from pipeline_runtime.training.checkpoints.header import CheckpointHeader, RunIdentity
from pipeline_runtime.training.entrypoint import load_entrypoint, load_model_function
from pipeline_runtime.training.position import Position, digest_units, redistribute
from pipeline_runtime.training.ranking.features import (
    choose_features,
    parse_config,
    parse_loop_config,
)

# A warning names this many damaged checkpoints at most.
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run that passed all checks and is ready to start."""

    experiment: DatasetExperiment
    plan: Plan
    world_size: int
    groups: tuple[tuple[Group, ...], ...]  # per rank: remaining groups of all epochs
    evaluation_groups: tuple[tuple[Group, ...], ...]
    chunk_rows: int
    positions: tuple[Position, ...]
    resume: CheckpointHeader | None
    identity: RunIdentity
    run_location: Location
    store: CheckpointStore
    damaged_checkpoints: tuple[str, ...]  # URIs of skipped ones, newer than `resume`
    warnings: tuple[str, ...]
    function: Callable[[Any], object] | None = None  # the entrypoint, if no manifest names it

    @property
    def resumed_rows(self) -> int:
        """Rows that were read before the checkpoint to resume from."""
        return sum(position.counts[0].rows for position in self.positions if position.counts)

    @property
    def planned_rows(self) -> int:
        """Rows that the run reads in all epochs together."""
        return self.plan.training.scan.pruning.rows_read * self.experiment.spec.training.epochs


def count_ranks(experiment: DatasetExperiment, options: RunOptions) -> tuple[int, str | None]:
    """Return the ranks of a run, and a warning if they are fewer than the manifest requests."""
    wanted = experiment.spec.trainers.world_size
    if not options.is_on_this_machine or wanted == 1:
        return wanted, None
    import torch

    room = torch.cuda.device_count() if torch.cuda.is_available() else logical_cpus()
    if wanted <= room:
        return wanted, None
    return room, f"spec.trainers requests {wanted} ranks, but this machine has room for {room}"


def prepare_run(
    experiment: DatasetExperiment, options: RunOptions, now: datetime, world_size: int
) -> PreparedRun:
    """Plan a run and find where it resumes.

    The entrypoint or script is not looked at: see `check_program`.

    Raises ManifestError, SourceError (StoreError if a store does not answer), TrainingError or
    CheckpointError.
    """
    is_alone = _is_alone(options, world_size)
    training = experiment.spec.training
    policy = training.checkpoint
    this_hash, this_config = run_hash(experiment), run_config(experiment)
    root = open_location(experiment.spec.artifacts.uri, options.storage_root).join(
        experiment.metadata.name
    )
    found, pins = None, Pins()
    if options.resume:
        found = _find_checkpoint(root, this_hash, this_config, policy, options)
        run = None if found is None else _name_of(found.store)
        pins = find_pins(root, run, lambda name: options.is_attempt(name, this_hash))
    build = partial(build_plan, storage_root=options.storage_root, keeps_order=is_alone, pins=pins)
    plan = build_ready_plan(experiment, options, build)
    bound = check_training(experiment, plan)
    identity = RunIdentity(
        run_hash=this_hash,
        run_config=this_config,
        preserve_order=plan.preserve_order,
        data_digest=digest_units(plan.training),
        chunk_rows=plan.training.chunk_rows,
    )
    name = options.name_run(now, identity.run_hash, root)
    store = found.store if found else _open_store(root, name, policy)
    header = found.header if found else None
    if header is not None or name == options.only_run:
        check_not_complete(_run_location(store), header.uri if header else "")
    _check_same_data(header, identity)
    if header is not None:
        if header.preserve_order is not is_alone:
            plan = build(experiment, keeps_order=header.preserve_order)
        identity = replace(
            identity,
            attempt=header.attempt + 1,
            chunk_rows=header.chunk_rows,
            preserve_order=plan.preserve_order,
        )
    plan = plan.bound_evaluation(bound)
    positions = _positions(header, world_size, experiment.spec.pipeline_options, plan)
    chunk_rows = identity.chunk_rows
    groups = [_rank_groups(plan, experiment, positions, chunk_rows, r) for r in range(world_size)]
    return PreparedRun(
        experiment=experiment,
        plan=plan,
        world_size=world_size,
        groups=tuple(groups),
        evaluation_groups=_evaluation_groups(plan.evaluation, chunk_rows, world_size),
        chunk_rows=chunk_rows,
        positions=tuple(positions),
        resume=header,
        identity=identity,
        run_location=_run_location(store),
        store=store,
        damaged_checkpoints=found.damaged if found else (),
        warnings=_resume_warnings(options, found),
        function=options.function,
    )


def _run_location(store: CheckpointStore) -> Location:
    return Location(
        uri=store.location.uri.rsplit("/", 1)[0],
        filesystem=store.location.filesystem,
        path=store.location.path.rsplit("/", 1)[0],
    )


def _name_of(store: CheckpointStore) -> str:
    return _run_location(store).path.rstrip("/").rpartition("/")[2]


def check_program(training: Training) -> None:
    """Raise ManifestError if the entrypoint, the model or the script cannot be run.

    An entrypoint is imported, and must take one argument; the function of a model two. A script is
    compiled.
    """
    field = training.program.partition(": ")[0]
    try:
        if training.model is not None:
            load_model_function(training.model)
        elif training.script is None:
            load_entrypoint(training.entrypoint)
        else:
            from pipeline_runtime.training.script import check_script  # with torch

            check_script(training.script)
    except TrainingError as error:
        message = str(error).removeprefix(f"{field}: ")
        raise ManifestError([Problem(path=field, message=message)]) from error


def check_training(experiment: DatasetExperiment, plan: Plan) -> int | None:
    """Return the bound of the hashes of the rows that evaluate the model; None: all evaluate it.

    Reads the rows of an evaluation until the first one that matches; with `maxRows`, all of them.

    Raises ManifestError if batches lack a thing that training needs, or the evaluation has no row;
    TrainingError if there is no row to train on.
    """
    training = experiment.spec.training
    _check_batches(plan, training.weight_column)
    if training.is_built_in:
        features = parse_config(training.config)
        schema, label = plan.training.output_schema, training.label_column
        choose_features(features, schema, label=label, weight=training.weight_column)
    elif training.model is not None:
        parse_loop_config(training.config)
    if reason := plan.training.explain_no_units():
        raise TrainingError(f"{reason}; there is nothing to train on")
    return None if training.evaluation is None else _check_evaluation(training.evaluation, plan)


def _check_evaluation(evaluation: Evaluation, plan: Plan) -> int | None:
    """Return the bound of the hashes. Raises ManifestError if no row evaluates the model."""
    stream, max_rows = plan.matching["evaluation"], evaluation.max_rows
    field, message = "where" if evaluation.where else "holdoutPercent", ""
    matches = None if max_rows is None else count_matches(stream, max_rows)
    if not (has_row(stream) if matches is None else matches.num_rows):
        chosen = f"{evaluation.where!r}" if evaluation.where else f"{evaluation.holdout_percent} %"
        num_rows = stream.scan.pruning.rows_read
        looked = f"{num_rows:,} were read" if num_rows else "its statistics rule out all"
        message = (
            f"must match at least one row, but {chosen} matches none of the rows of "
            f"{stream.table.description} ({looked}). Change it, or remove training.evaluation"
        )
    elif matches is not None and matches.num_kept == 0:
        field = "maxRows"
        message = (
            f"must be at least the number of rows that share one identity, but is {max_rows:,}. "
            "Raise it, or declare a dataset.rowKey that is unique"
        )
    if message:
        raise ManifestError([Problem(path=f"spec.training.evaluation.{field}", message=message)])
    return None if matches is None else matches.bound


def _check_batches(plan: Plan, weight_column: str | None) -> None:
    found = check_tensor_schema(plan.training.output_schema, weight_column=weight_column)
    problems = [
        Problem(path="spec.training.columns", message=f"column {column!r}: {message}")
        for column, message in found
    ]
    if problems:
        raise ManifestError(problems)


def _open_store(root: Location, folder: str, policy: CheckpointPolicy) -> CheckpointStore:
    return CheckpointStore(
        location=root.join(folder, "checkpoints"),
        keep=policy.keep,
        keep_best=policy.keep_best,
        trust_pickle=bool(policy.trust_pickle),
    )


def _find_checkpoint(
    root: Location,
    this_hash: str,
    this_config: dict[str, Any],
    policy: CheckpointPolicy,
    options: RunOptions,
) -> Resumable | None:
    """Find the checkpoint to resume from, of the runs that may be continued."""
    infos = list_folder(root, "look for checkpoints")
    folders = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    mine = [name for name in folders if options.may_continue(name)]
    stores = [_open_store(root, name, policy) for name in sorted(mine, reverse=True)]
    return find_resumable(stores, this_hash, this_config)


def _check_same_data(header: CheckpointHeader | None, identity: RunIdentity) -> None:
    if header is not None and header.data_digest != identity.data_digest:
        raise CheckpointError(
            f"{header.uri}: the row groups to read must be those of the checkpoint (digest "
            f"{header.data_digest}), but differ ({identity.data_digest}): files were added, "
            "removed or rewritten, or pipelineOptions.debug.pushdown was changed; undo that, or "
            "start anew without --resume"
        )


def _resume_warnings(options: RunOptions, found: Resumable | None) -> tuple[str, ...]:
    if not options.resume:
        return ()
    if found is not None:
        if not found.damaged:
            return ()
        skipped = ", ".join(found.damaged[:_MAX_NAMED])
        return (
            f"--resume: skipped {len(found.damaged)} damaged checkpoints that are newer than the "
            f"one the run resumes from ({found.header.uri}, step {found.header.step}): {skipped}. "
            "The steps since then are trained again. Check the disks of the store",
        )
    whose = options.only_run or options.run_id
    whose = f" of run {whose}" if whose else ""
    return (f"--resume: no whole checkpoint{whose} was found; the run starts from its beginning",)


def _is_alone(options: RunOptions, world_size: int) -> bool:
    """Return whether one rank trains on one machine, which reads its rows too."""
    return world_size == 1 and options.is_on_this_machine


def _positions(
    header: CheckpointHeader | None, world_size: int, options: PipelineOptions, plan: Plan
) -> list[Position]:
    if header is None:
        return [Position() for _ in range(world_size)]
    if plan.preserve_order and header.world_size != world_size:
        advice = "resume with that many trainers, or start anew"
        if options.preserve_order is None:
            advice = (
                "resume with that many trainers, or set pipelineOptions.preserveOrder: false to "
                "train on the remaining rows in any order"
            )
        raise CheckpointError(
            f"{header.uri}: preserveOrder: the number of trainers must be {header.world_size}, as "
            f"when the checkpoint was made, because it fixes the order of batches, but is "
            f"{world_size}; {advice}"
        )
    return redistribute([Position.from_json(value) for value in header.positions], world_size)


def _rank_groups(
    plan: Plan, experiment: DatasetExperiment, positions: list[Position], chunk_rows: int, rank: int
) -> tuple[Group, ...]:
    """Return a rank's remaining groups; of R ranks, rank j mod R owns group j of an epoch."""
    stream, position = plan.training, positions[rank]
    left: list[Group] = []
    for epoch in range(position.epoch, experiment.spec.training.epochs):
        mine = stream.groups(epoch, chunk_rows)[rank :: len(positions)]
        left += [g for g in mine if epoch != position.epoch or g.index not in position.done]
    return tuple(left)


def _evaluation_groups(
    stream: StreamPlan | None, chunk_rows: int, world_size: int
) -> tuple[tuple[Group, ...], ...]:
    if stream is None:
        return tuple(() for _ in range(world_size))
    groups = stream.groups(0, chunk_rows)
    return tuple(tuple(groups[rank::world_size]) for rank in range(world_size))
