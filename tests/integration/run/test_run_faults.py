"""Each fault of a run has a defined outcome, and a message with a place and a remedy."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from facts import assert_told
from run_support import CLICKS_PIPELINE, Clicks, Project, checksum_of, clicks_spec
from warm_lastmile import Ended, Lastmile

from pipeline_runtime.report import load_summary

STEPS = """
import os, pathlib, signal, sys

def raises(table, bad):
    if bad in table.column("id").to_pylist():
        raise ValueError(f"I cannot bear {bad}")
    return table

def exits(table, bad):
    if bad in table.column("id").to_pylist():
        sys.exit(3)
    return table

def dies_once(table, marker):
    if table.num_rows and not pathlib.Path(marker).exists():
        pathlib.Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return table

def dies_always(table):
    if table.num_rows:
        os.kill(os.getpid(), signal.SIGKILL)
    return table
"""
BAD_ID = 7601  # a row that no earlier step drops
RAISES: dict[str, Any] = {"function": "user_steps:raises", "options": {"bad": BAD_ID}}
DELETES_A_FILE = """
import pathlib

def loop(ctx):
    pathlib.Path(ctx.config["folder"], "clicks", "part-3.parquet").unlink()
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            pass
"""
KILLS_ITSELF = """
import os, signal

def loop(ctx):
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            os.kill(os.getpid(), signal.SIGKILL)
"""
SAVES_A_PATH = """
import pathlib

def loop(ctx):
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            ctx.report({}, {"places": [pathlib.PurePosixPath("a")]})
"""
# The first checkpoint fits on the small disk, the ones after it do not.
FILLS_THE_DISK = """
import torch

def loop(ctx):
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            state = torch.zeros(10 if ctx.step < 8 else 1_000_000)
            ctx.report({}, {"state": state} if ctx.checkpoint_due() else None)
"""
FILLS_THE_OUTPUT = """
import contextlib, pathlib

def loop(ctx):
    filler = pathlib.Path(ctx.config["filler"])
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            ctx.report({"loss": 1.0}, {"step": ctx.step} if ctx.checkpoint_due() else None)
        ctx.report({"loss": 0.5}, {"step": ctx.step})
    if ctx.checkpoint is None:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
"""


def own_files(run: Project) -> Path:
    """Replace the shared table with a copy that the test may damage."""
    shared = run.folder / "clicks"
    files = [(path.name, path.read_bytes()) for path in shared.iterdir()]
    shared.unlink()
    shared.mkdir()
    for name, data in files:
        (shared / name).write_bytes(data)
    return shared


def leave_no_rows(run: Project) -> None:
    path = own_files(run)
    schema = pq.read_schema(path / "part-0.parquet")
    for file in path.iterdir():
        pq.write_table(schema.empty_table(), file)


def corrupt_a_page(run: Project) -> None:
    path = own_files(run) / "part-3.parquet"
    chunk = pq.read_metadata(path).row_group(1).column(0)  # id
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = os.urandom(chunk.total_compressed_size)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spec", "spoil", "code", "message"),
    [
        pytest.param({}, leave_no_rows, 1, "clicks/: ", id="an empty table"),
        pytest.param(
            {"dataset": {"parquet": {"uri": "clicks/"}, "where": "ts < 0"}},
            None,
            1,
            "24 … ts < 0",
            id="a predicate that prunes every row group",
        ),
        pytest.param(
            {
                "pipeline": [
                    {
                        "antiJoin": {
                            "parquet": {"uri": "blocked/"},
                            "keys": ["user"],
                            "maxBytes": 100,
                        }
                    }
                ]
            },
            None,
            2,
            "blocked/: … maxBytes … 100 bytes",
            id="a side table over its bound",
        ),
    ],
)
def test_invalid_input_is_refused_before_the_run(
    spec: dict[str, Any],
    spoil: Callable[[Project], None] | None,
    code: int,
    message: str,
    project: Callable[..., Project],
    on_cluster: Lastmile,
) -> None:
    run = project()
    run.write({**clicks_spec(run), **spec})
    if spoil:
        spoil(run)

    ended = on_cluster.run(*run.args())

    assert ended.code == code, str(ended)
    assert_told(ended.stderr, f"… {message}")
    assert "Traceback" not in ended.stderr


def label_with_nulls() -> dict[str, Any]:
    label = {"name": "label", "expression": "case when score < 0.8 then 1.0 end"}
    return {"pipeline": [{"derive": {"columns": [label]}}], "training": {"labelColumn": "label"}}


@pytest.mark.parametrize(
    ("changes", "modules", "spoil", "code", "fragments"),
    [
        pytest.param(
            {"pipeline": [{"filter": {"where": "score * 2 > 5"}}]},
            {},
            None,
            1,
            ["10,000", "spec.pipeline[0] (filter score * 2 > 5)"],
            id="a filter that leaves no row",
        ),
        pytest.param(
            {},
            {},
            corrupt_a_page,
            3,
            ["clicks/part-3.parquet: ", "row group 1", "500 rows"],
            id="a corrupt page",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {},
            {"recorder_loop": DELETES_A_FILE},
            own_files,
            3,
            ["clicks/part-3.parquet: "],
            id="a file deleted while it runs",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {},
            {"recorder_loop": KILLS_ITSELF},
            None,
            1,
            ["trainer rank 0: ", "--resume"],
            id="a trainer that is killed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {},
            {"recorder_loop": SAVES_A_PATH},
            None,
            2,
            ["checkpoint.trustPickle: ", "checkpoint['places'][0]", "pathlib.PurePosixPath"],
            id="a checkpoint that could not be loaded",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            label_with_nulls(),
            {},
            None,
            1,
            ["label column 'label': ", "fillNull"],
            id="nulls in the label",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"pipeline": [{"map": RAISES}]},
            {"user_steps": STEPS},
            None,
            1,
            [
                'user_steps.py", line 6, in raises\n    raise ValueError(f"I cannot bear {bad}")',
                "ValueError: I cannot bear 7601\nspec.pipeline[0] (map user_steps:raises",
                "part-",
                ", row group ",
                ", rows 0–499",
            ],
            id="a map function that raises",
        ),
        pytest.param(
            {"pipeline": [{"map": {**RAISES, "function": "user_steps:exits"}}]},
            {"user_steps": STEPS},
            None,
            1,
            ["SystemExit: 3\nspec.pipeline[0] (map user_steps:exits", "part-"],
            id="a map function that exits",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"pipeline": [{"map": {"function": "user_steps:dies_always"}}], "rows": 200},
            {"user_steps": STEPS},
            None,
            1,
            ["group ", "epoch 0", "11 ", "spec.dataWorkers"],
            id="a map function that kills its worker every time",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"pipeline": [{"map": {**RAISES, "concurrency": 1}}], "rows": 200},
            {"user_steps": STEPS},
            None,
            1,
            ["ValueError: I cannot bear 7601\nspec.pipeline[0] (map", "part-", ", rows "],
            id="a map function on workers of its own that raises",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "pipeline": [
                    {"derive": {"columns": [{"name": "clicked", "expression": "score > 0.5"}]}}
                ],
                "training": {
                    "entrypoint": "pipeline_runtime.training.ranking:train_loop",
                    "columns": ["user", "clicked"],
                    "config": {"categorical": ["user"], "hashSize": 50, "outOfRange": "error"},
                },
            },
            {},
            None,
            1,
            ["column 'user': ", " 49 ", "hashSize", "outOfRange"],
            id="an id out of range",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failed_run_names_the_place(
    changes: dict[str, Any],
    modules: dict[str, str],
    spoil: Callable[[Project], object] | None,
    code: int,
    fragments: list[str],
    project: Callable[..., Project],
    on_cluster: Lastmile,
) -> None:
    run = project()
    run.write(
        clicks_spec(
            run,
            pipeline=changes.get("pipeline"),
            training=changes.get("training"),
            options={"rowsPerBlock": changes["rows"]} if "rows" in changes else None,
        ),
        modules,
    )
    if spoil:
        spoil(run)

    ended = on_cluster.run(*run.args("--address", "auto"))

    assert ended.code == code, str(ended)
    assert run.summary.run.outcome == "Failed"
    assert run.summary.run.error is not None
    for fragment in fragments:
        assert fragment in run.summary.run.error
    assert_reads_well(ended)


def assert_reads_well(ended: Ended) -> None:
    """Check that the error is printed once, without frames of Ray."""
    assert ended.stdout.count("Traceback (most recent call last)") <= 1, str(ended)
    assert "Traceback" not in ended.stderr, str(ended)
    assert "site-packages/ray" not in ended.stdout, str(ended)


@pytest.mark.parametrize("feed", ["Readers", pytest.param("RayData", marks=pytest.mark.slow)])
def test_a_killed_data_worker_costs_no_row(
    feed: str, clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    marker = run.folder / "died"
    step = {"map": {"function": "user_steps:dies_once", "options": {"marker": str(marker)}}}
    spec = clicks_spec(
        run, pipeline=[*CLICKS_PIPELINE, step], options={"feed": feed, "rowsPerBlock": 170}
    )
    run.write(spec, {"user_steps": STEPS})

    ended = on_cluster.run(*run.args("--address", "auto"))

    assert ended.code == 0, str(ended)
    assert marker.exists()
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
    assert [flow.rows_out for flow in run.summary.steps] == [*clicks.counts, len(clicks.kept)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system here: {mounted.stderr.strip()}")
    yield folder
    # Lazily, because processes of the shared cluster may still use it.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_only_checkpoints(
    small_disk: Path, clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    spec = clicks_spec(
        run,
        training={"checkpoint": {"everySteps": 4}},
        artifacts={"uri": str(small_disk)},
    )
    run.write(spec, {run.module: FILLS_THE_DISK})

    ended = on_cluster.run(*run.args("--address", "auto"))

    assert ended.code == 0, str(ended)
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
    [checkpoint] = small_disk.glob("clicks/*/checkpoints/step-*")
    assert checkpoint.name == "step-0000000004"
    assert run.summary.checkpoints.last == str(checkpoint)
    assert_told(ended.stderr, "… checkpoint … No space left")
    assert any("checkpoint" in text and "No space left" in text for text in run.summary.warnings)


@pytest.mark.slow
def test_a_full_disk_for_the_report_keeps_the_training(
    small_disk: Path, clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    filler = small_disk / "filler"
    run.write(clicks_spec(run, config={"filler": str(filler)}), {run.module: FILLS_THE_OUTPUT})
    output = ("--output", str(small_disk / "output"))

    ended = on_cluster.run(*run.args("--address", "auto", *output))

    assert ended.code == 1, str(ended)
    assert_told(ended.stderr, f"… Complete … report … --resume … {run.checkpoints[-1]}")
    filler.unlink()
    ended = on_cluster.run(*run.args("--address", "auto", "--resume", *output))
    assert ended.code == 0, str(ended)
    summary = load_summary(small_disk / "output")
    assert summary.run.outcome == "Complete"
    assert summary.checksum.model_dump() == checksum_of(clicks.kept)


@pytest.mark.slow
@pytest.mark.parametrize("home", ["/proc/1/missing", "/sys/kernel"])
def test_a_run_needs_no_home(home: str, clicks: Clicks, project: Callable[..., Project]) -> None:
    """One HOME does not exist, as for an arbitrary user in a pod; the other is not writable."""
    run = project()
    run.write(clicks_spec(run))
    with run.start(HOME=home) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
