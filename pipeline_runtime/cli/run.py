"""The command `lastmile run`: run one manifest, on this machine or on a running Ray cluster."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
import yaml

from pipeline_runtime.cli.failures import EXIT_INTERRUPTED, EXIT_OK, exit_code_of, placing
from pipeline_runtime.cli.options import (
    DEFAULT_STORAGE_ROOT,
    FileOption,
    JsonOption,
    SetOption,
    StorageRootOption,
    code_paths,
    find_storage_root,
    load_one,
    make_console,
    working_dir,
)
from pipeline_runtime.cli.repeats import MAX_SEEDS, describe_repeats, dump, repeat
from pipeline_runtime.config import ACCEPTED_VARIABLE, LoadedManifest
from pipeline_runtime.errors import AlreadyComplete
from pipeline_runtime.importing import importing
from pipeline_runtime.run.folders import MAX_RUN_ID_CHARS, is_run_id

if TYPE_CHECKING:  # these import Arrow, which --help does without
    from pipeline_runtime.run.consumers import ConsumerRun
    from pipeline_runtime.run.driver_log import LogKeeper
    from pipeline_runtime.run.options import RunOptions
    from pipeline_runtime.run.session import Finished


_STDERR = 2  # its file descriptor


def _check_run_id(text: str | None) -> str | None:
    if text is None or is_run_id(text):
        return text
    raise typer.BadParameter(
        f"must be at most {MAX_RUN_ID_CHARS} letters, digits and dashes, and must not begin with a "
        f"dash, but is {text!r}"
    )


AddressOption = Annotated[
    str,
    typer.Option(
        help="local: this machine, with Ray only if the manifest needs it; ray: with an "
        "embedded Ray in any case; auto: the cluster of this machine; http://HOST:8265: submit "
        "to that cluster's Jobs API."
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the report, which must not hold another run; build/NAME/RUN by default."
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue from the last whole checkpoint of the run in --output, or of the newest "
        "run of this manifest.",
    ),
]
RunIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        callback=_check_run_id,
        help="Id that the attempts of one run share. Names of its folders end with it, and "
        "--resume ignores the checkpoints of other runs.",
    ),
]
PortOption = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="Port of the Prometheus metrics; a free port if it is taken."
    ),
]
SeedsOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_SEEDS,
        metavar="N",
        help="Train N times, with training.seed and the numbers after it; the rows stay the "
        "same. lastmile compare finds the repeats. With --json: a list of N summaries.",
    ),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show Ray's own log.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Options of a run as the command line has them.

    Attributes:
        partitions: see `RunOptions`.
    """

    overrides: list[str] | None = None
    address: str
    storage_root: str
    output: Path | None
    resume: bool = False
    run_id: str | None
    metrics_port: int
    seeds: int = 1
    as_json: bool
    verbose: bool
    partitions: tuple[str, ...] = ()


def run(
    filename: FileOption,
    overrides: SetOption = None,
    address: AddressOption = "local",
    storage_root: StorageRootOption = DEFAULT_STORAGE_ROOT,
    output: OutputOption = None,
    resume: ResumeOption = False,
    run_id: RunIdOption = None,
    metrics_port: PortOption = 9464,
    seeds: SeedsOption = 1,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Stream the table through the steps into training or a new table, and leave a report."""
    # The operator has checked what it submits, perhaps by the rules of an older release.
    is_accepted = os.environ.get(ACCEPTED_VARIABLE) == "1"
    manifest = load_one(filename, overrides, is_accepted=is_accepted)
    if seeds > 1 and output is not None:
        raise typer.BadParameter(
            "must not come with --seeds, whose runs have a folder each; remove one",
            param_hint="--output",
        )
    flags = RunFlags(
        overrides=overrides,
        address=address,
        storage_root=storage_root,
        output=output,
        resume=resume,
        run_id=run_id,
        metrics_port=metrics_port,
        seeds=seeds,
        as_json=as_json,
        verbose=verbose,
    )
    start(manifest, flags)


def start(manifest: LoadedManifest, flags: RunFlags) -> NoReturn:
    """Run a manifest here or on a cluster. Raises typer.Exit with the exit code."""
    root, address = find_storage_root(manifest, flags.storage_root), flags.address
    if flags.seeds > 1:
        manifests = list(repeat(manifest, flags.seeds))
        texts = [dump(each) for each in manifests]
    else:
        manifests, texts = [manifest], [_text(manifest, flags.overrides)]
    if address.startswith(("http://", "https://")):
        from pipeline_runtime.cli.jobs_api import absolute_root, submit

        root = absolute_root(root)
        if manifest.experiment.spec.storage.root is not None:  # overrides the given root
            texts = [_set_root(each, root) for each in manifests]
        codes = (submit(address, text, root, flags) for text in texts)
        raise typer.Exit(next((code for code in codes if code != EXIT_OK), EXIT_OK))
    with importing():  # the libraries that a plan needs
        from pipeline_runtime.run.options import RunOptions, choose_output
        from pipeline_runtime.run.session import run_experiment  # noqa: F401

    if (warning := _find_old_checkpoints(manifest, root)) is not None:
        print(f"warning: {warning}", file=sys.stderr)
    options = RunOptions(
        output=choose_output(flags.output, manifest.experiment.metadata.name),
        folder_per_run=flags.output is None,
        storage_root=root,
        address=address,
        resume=flags.resume,
        run_id=flags.run_id,
        metrics_port=flags.metrics_port,
        code_paths=(*working_dir(manifest), *code_paths(manifest.file)),
        verbose=flags.verbose,
        partitions=flags.partitions,
    )
    raise typer.Exit(_run_all(manifests, texts, options, as_json=flags.as_json))


def _find_old_checkpoints(manifest: LoadedManifest, root: str) -> str | None:
    """Return a warning if checkpoints are where an older Lastmile kept them.

    It took a relative `spec.storage.root` from the current folder, not from the manifest's.
    """
    from pipeline_runtime.config.texts.storage_uri import is_absolute
    from pipeline_runtime.sources import open_location

    spec, name = manifest.experiment.spec, manifest.experiment.metadata.name
    given = spec.storage.root
    if given is None or is_absolute(given) or is_absolute(spec.artifacts.uri):
        return None
    before, now = (
        Path(open_location(spec.artifacts.uri, base).join(name).path) for base in (given, root)
    )
    if before.resolve() == now.resolve() or not any(before.glob("*/checkpoints/*/checkpoint.json")):
        return None
    return (
        f"spec.storage.root: {given!r} is relative to the manifest's folder, but {before} holds "
        f"checkpoints of this experiment from before that. Move that folder to {now} to go on with "
        "them, or write spec.storage.root in full"
    )


def _set_root(manifest: LoadedManifest, root: str) -> str:
    """Return the manifest with this storage root."""
    spec: Any = manifest.document["spec"]
    spec = {**spec, "storage": {**spec["storage"], "root": root}}
    document = {**manifest.document, "spec": spec}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _text(manifest: LoadedManifest, overrides: list[str] | None) -> str:
    """Return the manifest of the run: as written, or with the values of --set."""
    if not overrides and manifest.document_index == 0:
        return manifest.text
    return dump(manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A run that ended: its exit code, and its summary as JSON."""

    code: int
    summary: str
    is_running: bool = False  # a step of the user's code could not be ended


def _run_all(
    manifests: Sequence[LoadedManifest], texts: Sequence[str], options: RunOptions, *, as_json: bool
) -> int:
    """Run the manifests until one does not complete, and print the results; return the exit code.

    The JSON of several runs is one list, in whatever way they end.
    """
    are_repeats = len(manifests) > 1
    ended: list[_Ended] = []
    try:
        for manifest, text in zip(manifests, texts, strict=True):
            ended.append(_run(manifest, text, options, as_json=as_json, is_repeat=are_repeats))
            if ended[-1].code != EXIT_OK:
                break
    finally:
        if as_json and are_repeats and ended:
            summaries = [json.loads(each.summary) for each in ended]
            print(json.dumps(summaries, indent=2, ensure_ascii=False), flush=True)
    if ended[-1].is_running:  # the interpreter's end might crash beside the user's step
        os._exit(EXIT_INTERRUPTED)
    if are_repeats and ended[-1].code == EXIT_OK:
        name = manifests[0].experiment.metadata.name
        for line in describe_repeats(name, [json.loads(each.summary) for each in ended]):
            print(line, file=sys.stderr if as_json else sys.stdout)
    return ended[-1].code


def _run(
    manifest: LoadedManifest, text: str, options: RunOptions, *, as_json: bool, is_repeat: bool
) -> _Ended:
    """Run a manifest, and print the result; the JSON of a repeat is left to the caller."""
    from pipeline_runtime.report.terminal import print_summary
    from pipeline_runtime.run.driver_log import keeping_log

    if not faulthandler.is_enabled():  # a crash of native code shows where the user's code was
        faulthandler.enable(_STDERR)
    with keeping_log() as log:
        try:
            finished = _carry_out(manifest, text, options, log)
        except AlreadyComplete as done:
            print(done, file=sys.stderr if as_json else sys.stdout)
            if as_json and not is_repeat:
                print(done.summary)
            _tell_tables(json.loads(done.summary), as_json=as_json)
            return _Ended(code=EXIT_OK, summary=done.summary)
        summary = finished.summary.model_dump_json(by_alias=True, indent=2)
        if not as_json:
            print_summary(make_console(), finished.summary)
            print(f"report: {finished.output / 'report.html'}")
        elif not is_repeat:
            print(summary)
        if finished.outcome.kind == "Complete":
            _tell_tables(json.loads(summary), as_json=as_json)
        for hint in finished.hints:
            print(hint, file=sys.stderr)
    outcome = finished.outcome
    is_stopped = outcome.kind == "Interrupted"
    code = EXIT_INTERRUPTED if is_stopped else exit_code_of(outcome.error_kind)
    return _Ended(code=code, summary=summary, is_running=outcome.is_running)


def _tell_tables(summary: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the table that the run wrote, if any, and in a pod also the tables that it read.

    The operator reads these lines in the log, since the last metrics may be older than the end.
    """
    from pipeline_runtime.metrics import ROLE_VARIABLE
    from pipeline_runtime.run.reported_tables import list_lines

    stream = sys.stderr if as_json else sys.stdout
    if os.environ.get(ROLE_VARIABLE):
        for line in list_lines(summary):
            print(line, file=stream)
    table = summary.get("output") or {}
    if {"rows", "files", "bytes"} <= table.keys():
        line = "output: rows={rows} files={files} bytes={bytes}".format_map(table)
        done = len(table.get("writtenPartitions") or ()) + len(
            table.get("completePartitions") or ()
        )
        line += f" partitions={done} complete_partitions={done}" if done else ""
        snapshot = f" snapshot_id={table['snapshotId']}" if table.get("snapshotId") else ""
        print(f"{line}{snapshot}", file=stream)


def _carry_out(
    manifest: LoadedManifest, text: str, options: RunOptions, log: LogKeeper
) -> Finished:
    """Run the experiment, and show its progress."""
    from pipeline_runtime.cli.progress import RunProgress
    from pipeline_runtime.run.phases import Phases, find_start
    from pipeline_runtime.run.session import Watcher, run_experiment

    clock = Phases(began=find_start())
    with RunProgress(console=make_console(stderr=True), phases=clock) as progress:

        def on_prepared(run: ConsumerRun) -> None:
            progress.prepared(run)
            log.keep(run.basis.run_location)

        watcher = Watcher(
            on_prepared=on_prepared,
            on_metrics_port=lambda port: progress.note(f"metrics: http://127.0.0.1:{port}/metrics"),
            on_reading=progress.show,
            phases=clock,
            on_stop=progress.stop,
        )
        with placing(manifest), _keeping_stdout():
            return run_experiment(manifest.experiment, text, options, watcher)


@contextlib.contextmanager
def _keeping_stdout() -> Iterator[None]:
    """Send all writes to standard output to standard error, since it is for the result alone.

    Ray reports lost workers there. User code prints there, and starts programs that do.
    """
    try:
        descriptor, other = sys.stdout.fileno(), sys.stderr.fileno()
        sys.stdout.flush()
        kept = os.dup(descriptor)
    except (AttributeError, OSError, ValueError):  # one is closed, or is no file, as in a test
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    os.dup2(other, descriptor)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(kept, descriptor)
        os.close(kept)
