"""Prepares a run before anything starts: the plan, the work of each rank, and where to resume.

Every input that can be refused is refused here. Torch and Ray are not imported, since the plan is
shown before that; `check_program`, which imports the user's module, comes right after it.
`driver` executes the prepared run.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import ModuleType

from pyarrow import fs as pafs

from pipeline_runtime.arrays.conversion import check_tensor_schema
from pipeline_runtime.config import DatasetExperiment, Training, run_config, run_hash
from pipeline_runtime.config.training import CheckpointPolicy
from pipeline_runtime.errors import (
    AlreadyComplete,
    CheckpointError,
    ManifestError,
    Problem,
    TrainingError,
)
from pipeline_runtime.plan import Group, Plan, StreamPlan, build_plan
from pipeline_runtime.report.files.summary import SUMMARY_FILE
from pipeline_runtime.run.folders import build_folder_name, parse_run_id
from pipeline_runtime.run.phases import find_process_start
from pipeline_runtime.sources import Location, open_location
from pipeline_runtime.sources.stores import list_folder, read_file
from pipeline_runtime.training.checkpoints.checkpoint import (
    CheckpointStore,
    Resumable,
    find_resumable,
)
from pipeline_runtime.training.checkpoints.header import CheckpointHeader, RunIdentity
from pipeline_runtime.training.entrypoint import load_entrypoint
from pipeline_runtime.training.position import Position, digest_units, redistribute
from pipeline_runtime.training.ranking.features import choose_features, parse_config

# Data work needs one core, and the split's executor another. With one logical CPU, the second of
# two executions (training and evaluation) would never get a core.
MIN_LOGICAL_CPUS = 2
# A warning names this many damaged checkpoints at most.
_MAX_NAMED = 5
# A summary has about 10 KiB; even with many warnings and steps it is far smaller than this.
MAX_SUMMARY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run from the command line, beside the manifest.

    Attributes:
        run_id: id that the attempts of one run share; `resume` then ignores other runs. If None,
            `resume` considers all runs of the experiment.
        address: `local`: this process, or an embedded Ray if the manifest needs one; `ray`: an
            embedded Ray in any case; or that of a running cluster.
        code_paths: folders that the user's modules are imported from.
    """

    output: Path
    storage_root: str = "build/"
    address: str = "local"
    resume: bool = False
    run_id: str | None = None
    metrics_port: int = 0  # 0: any free port
    code_paths: tuple[str, ...] = ()
    verbose: bool = False

    @property
    def is_on_this_machine(self) -> bool:
        """Whether nothing of the run is elsewhere."""
        return self.address in ("local", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run that passed all checks and is ready to start."""

    experiment: DatasetExperiment
    plan: Plan
    world_size: int
    groups: tuple[tuple[Group, ...], ...]  # per rank: remaining groups of all epochs
    evaluation_groups: tuple[tuple[Group, ...], ...]
    piece_rows: int
    positions: tuple[Position, ...]
    resume: CheckpointHeader | None
    identity: RunIdentity
    run_location: Location
    store: CheckpointStore
    damaged_checkpoints: tuple[str, ...]  # URIs of skipped ones, newer than `resume`
    warnings: tuple[str, ...]

    @property
    def resumed_rows(self) -> int:
        """Rows that were read before the checkpoint to resume from."""
        return sum(position.counts[0].rows for position in self.positions if position.counts)

    @property
    def planned_rows(self) -> int:
        """Rows that the run reads in all epochs together."""
        return self.plan.training.scan.pruning.rows_read * self.experiment.spec.training.epochs


def needs_ray(run: PreparedRun, options: RunOptions) -> bool:
    """Return whether a run takes more than this process: ranks, workers of steps, a cluster."""
    return options.address != "local" or run.world_size > 1 or run.plan.feed.engine == "RayData"


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


def logical_cpus() -> int:
    """Return the CPUs that an embedded Ray has for data work."""
    return max(MIN_LOGICAL_CPUS, len(os.sched_getaffinity(0)))


def prepare_run(
    experiment: DatasetExperiment, options: RunOptions, now: datetime, world_size: int
) -> PreparedRun:
    """Plan a run and find where it resumes.

    The entrypoint or script is not looked at: see `check_program`.

    Raises ManifestError, SourceError (StoreError if a store does not answer), TrainingError or
    CheckpointError.
    """
    add_code_paths(options.code_paths)
    plan = build_plan(experiment, storage_root(experiment, options))
    training = experiment.spec.training
    check_training(experiment, plan)
    check_rows(plan)
    identity = RunIdentity(
        run_hash=run_hash(experiment),
        run_config=run_config(experiment),
        preserve_order=plan.preserve_order,
        data_digest=digest_units(plan.training),
        piece_rows=plan.training.piece_rows,
    )
    root = open_location(experiment.spec.artifacts.uri, storage_root(experiment, options)).join(
        experiment.metadata.name
    )
    policy = training.checkpoint
    found = _find_checkpoint(root, identity, policy, options.run_id) if options.resume else None
    name = build_folder_name(now, identity.run_hash, options.run_id)
    store = found.store if found else _open_store(root, name, policy)
    header = found.header if found else None
    if header is not None:
        check_not_complete(_run_location(store), header.uri)
    _check_same_data(header, identity)
    if header is not None:
        identity = replace(identity, attempt=header.attempt + 1, piece_rows=header.piece_rows)
    positions = _positions(header, world_size, preserve_order=plan.preserve_order)
    piece_rows = identity.piece_rows
    groups = [_rank_groups(plan, experiment, positions, piece_rows, r) for r in range(world_size)]
    return PreparedRun(
        experiment=experiment,
        plan=plan,
        world_size=world_size,
        groups=tuple(groups),
        evaluation_groups=_evaluation_groups(plan.evaluation, piece_rows, world_size),
        piece_rows=piece_rows,
        positions=tuple(positions),
        resume=header,
        identity=identity,
        run_location=_run_location(store),
        store=store,
        damaged_checkpoints=found.damaged if found else (),
        warnings=_resume_warnings(options, found),
    )


def storage_root(experiment: DatasetExperiment, options: RunOptions) -> str:
    """Return the root of URIs without a scheme: the manifest's, else the command line's."""
    return experiment.spec.storage.root or options.storage_root


# The user's modules that the caller imported: all that were there before the first run.
_callers: set[str] = set()
_is_caller_known = False


def add_code_paths(paths: Sequence[str]) -> None:
    """Make the user's modules importable here and, by PYTHONPATH, in processes started later.

    A process that runs a second experiment takes that one's code, as it is now: the user's modules
    that a run imported are forgotten before the next one. Those that the caller had imported stay,
    so that classes of its objects are the same, unless one was edited or is to come from elsewhere.
    """
    global _is_caller_known
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*paths, *(path for path in known if path and path not in paths)]
    )
    importlib.invalidate_caches()
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    names = {entry.stem for folder in folders for entry in folder.iterdir()}
    modules = {name: module for name, module in [*sys.modules.items()] if _top(name) in names}
    # The program, and what calls this while it is imported, cannot be missing.
    busy = {"__main__", *(_top(name) for name, module in modules.items() if _is_unfinished(module))}
    mine = [name for name in modules if _top(name) not in busy and _is_the_users(modules[name])]
    outdated = [name for name in mine if _is_outdated(name, modules[name])]
    for name in mine:
        if outdated or (_is_caller_known and name not in _callers):
            del sys.modules[name]
            _callers.discard(name)
        else:
            _callers.add(name)
    _is_caller_known = True


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_unfinished(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _is_the_users(module: ModuleType) -> bool:
    """Return whether a module is not installed, and not one of Lastmile's own."""
    file = getattr(module, "__file__", None)
    installed = (str(Path(os.__file__).parent), str(Path(__file__).parents[2]))
    is_installed = file is None or "-packages" in file or file.startswith(installed)
    return not is_installed


# The change times and sizes of the user's modules, as of the last run in this process.
_versions: dict[str, tuple[float, int]] = {}
# A file system's clock may be behind by its resolution.
_CLOCK_SECONDS = 1.0


def _is_outdated(name: str, module: ModuleType) -> bool:
    """Return whether an import might find other code than the module was made of."""
    file = str(module.__file__)
    try:
        stat = os.stat(file)
    except OSError:
        return True
    version = (stat.st_ctime, stat.st_size)
    before, _versions[file] = _versions.get(file), version
    if before is not None:
        is_edited = before != version
    else:  # Python does not record when it read a file, but not before this process was there
        start = find_process_start()
        is_edited = start is None or stat.st_ctime >= start - _CLOCK_SECONDS
    return is_edited or not _is_found(name, file)


def _is_found(name: str, file: str) -> bool:
    """Return whether an import of this name would find this file."""
    parent = sys.modules.get(name.rpartition(".")[0])
    path = getattr(parent, "__path__", None)
    spec = importlib.machinery.PathFinder.find_spec(name, None if path is None else [*path])
    origin = spec.origin if spec is not None else None
    return origin is not None and os.path.realpath(origin) == os.path.realpath(file)


def _run_location(store: CheckpointStore) -> Location:
    return Location(
        uri=store.location.uri.rsplit("/", 1)[0],
        filesystem=store.location.filesystem,
        path=store.location.path.rsplit("/", 1)[0],
    )


def check_not_complete(run: Location, uri: str = "") -> None:
    """Raise AlreadyComplete if the report says so; a last checkpoint does not prove it.

    Args:
        run: folder of the run.
        uri: what it would resume from, for the message.
    """
    text = read_file(run.join(SUMMARY_FILE), "read the report", MAX_SUMMARY_BYTES)
    if text is None:
        return
    try:
        outcome = json.loads(text)["run"]["outcome"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # the report is damaged
    if outcome == "Complete":
        raise AlreadyComplete(
            f"{uri or run.uri}: the run is complete, and there is nothing to resume; see its "
            "report",
            summary=text.decode(),
        )


def check_program(training: Training) -> None:
    """Raise ManifestError if the entrypoint or the script cannot be run.

    An entrypoint is imported, and must take one argument. A script is compiled.
    """
    field = "spec.training." + ("entrypoint" if training.script is None else "script")
    try:
        if training.script is None:
            load_entrypoint(training.entrypoint)
        else:
            from pipeline_runtime.training.script import check_script  # with torch

            check_script(training.script)
    except TrainingError as error:
        message = str(error).removeprefix(f"{field}: ")
        raise ManifestError([Problem(path=field, message=message)]) from error


def check_training(experiment: DatasetExperiment, plan: Plan) -> None:
    """Raise ManifestError if the plan's batches lack what training needs of them."""
    training = experiment.spec.training
    _check_batches(plan, training.weight_column)
    if training.is_built_in:
        features = parse_config(training.config)
        schema, label = plan.training.output_schema, training.label_column
        choose_features(features, schema, label=label, weight=training.weight_column)


def _check_batches(plan: Plan, weight_column: str | None) -> None:
    found = check_tensor_schema(plan.training.output_schema, weight_column=weight_column)
    problems = [
        Problem(path="spec.training.columns", message=f"column {column!r}: {message}")
        for column, message in found
    ]
    if problems:
        raise ManifestError(problems)


def check_rows(plan: Plan) -> None:
    """Raise TrainingError if there is no row to read."""
    reason = plan.training.explain_no_units()
    if reason is not None:
        raise TrainingError(f"{reason}; there is nothing to train on")


def _open_store(root: Location, folder: str, policy: CheckpointPolicy) -> CheckpointStore:
    return CheckpointStore(
        location=root.join(folder, "checkpoints"),
        keep=policy.keep,
        trust_pickle=bool(policy.trust_pickle),
    )


def _find_checkpoint(
    root: Location, identity: RunIdentity, policy: CheckpointPolicy, run_id: str | None
) -> Resumable | None:
    """Find the checkpoint to resume from, of the run with this id or, if None, of any run."""
    infos = list_folder(root, "look for checkpoints")
    folders = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    mine = [name for name in folders if run_id is None or parse_run_id(name) == run_id]
    stores = [_open_store(root, name, policy) for name in sorted(mine, reverse=True)]
    return find_resumable(stores, identity.run_hash, identity.run_config)


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
    whose = f" of run {options.run_id}" if options.run_id else ""
    return (f"--resume: no whole checkpoint{whose} was found; the run starts from its beginning",)


def _positions(
    header: CheckpointHeader | None, world_size: int, *, preserve_order: bool
) -> list[Position]:
    if header is None:
        return [Position() for _ in range(world_size)]
    if preserve_order and header.world_size != world_size:
        raise CheckpointError(
            f"{header.uri}: preserveOrder: the world size must be {header.world_size}, as when the "
            f"checkpoint was made, got {world_size}; resume with that many trainers, or start anew"
        )
    return redistribute([Position.from_json(value) for value in header.positions], world_size)


def _rank_groups(
    plan: Plan, experiment: DatasetExperiment, positions: list[Position], piece_rows: int, rank: int
) -> tuple[Group, ...]:
    """Return a rank's remaining groups; of R ranks, rank j mod R owns group j of an epoch."""
    stream, position = plan.training, positions[rank]
    left: list[Group] = []
    for epoch in range(position.epoch, experiment.spec.training.epochs):
        mine = stream.groups(epoch, piece_rows)[rank :: len(positions)]
        left += [g for g in mine if epoch != position.epoch or g.index not in position.done]
    return tuple(left)


def _evaluation_groups(
    stream: StreamPlan | None, piece_rows: int, world_size: int
) -> tuple[tuple[Group, ...], ...]:
    if stream is None:
        return tuple(() for _ in range(world_size))
    groups = stream.groups(0, piece_rows)
    return tuple(tuple(groups[rank::world_size]) for rank in range(world_size))
