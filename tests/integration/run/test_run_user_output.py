"""Output and log records of user code: on the terminal and in the run's log, wherever it runs."""

import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_support import LASTMILE, Project, clicks_spec
from warm_lastmile import RUN_SECONDS

TALKS = """
import logging

print("printed at import")
log = logging.getLogger("my.model")

def loop(ctx):
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            if ctx.step % 10 == 0:
                print(f"printed at {ctx.step}")
                log.info("logged at %d", ctx.step)
        print("no end of a line", end="")
"""
SCRIPT = """
import logging
from pipeline_runtime import current

print("printed at import")
for _ in current().loader():
    if current().step % 10 == 0:
        print(f"printed at {current().step}")
        logging.getLogger("my.model").info("logged at %d", current().step)
print("no end of a line", end="")
"""
MAPS = """
import logging

print("printed at import")
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

def same(table):
    print("printed by a reader")
    logging.getLogger("my.steps").info("logged by a reader")
    return table
"""
MAP: dict[str, Any] = {"map": {"function": "maps:same"}}
AT_IMPORT = "printed at import"
EXPECTED = [
    AT_IMPORT,
    *(f"printed at {step}" for step in (10, 20, 30)),
    *(f"INFO my.model: logged at {step}" for step in (10, 20, 30)),
]
# On the terminal, the next line follows on the same one.
UNFINISHED = "no end of a line"
BY_READERS = [AT_IMPORT, "printed by a reader", "INFO my.steps: logged by a reader"]
# Ray's log, and what it prefixes to lines of its workers.
_RAYS_OWN = re.compile(r"\bpid=|raylet|\bray\.[a-z]|\.py:\d+ --|FutureWarning")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def write_project(project: Callable[..., Project], way: str) -> Project:
    run = project()
    spec = clicks_spec(run, pipeline=[MAP] if way == "readers" else None)
    if way == "script":
        del spec["training"]["entrypoint"]
        spec["training"] |= {"script": "script.py", "config": {}}
    run.write(spec, {run.module: TALKS, "script": SCRIPT, "maps": MAPS})
    return run


@pytest.mark.parametrize(
    ("way", "address", "expected"),
    [
        pytest.param("loop", "local", EXPECTED, id="an entrypoint"),
        pytest.param("script", "local", EXPECTED, id="a script", marks=pytest.mark.slow),
        pytest.param("loop", "ray", EXPECTED, id="an entrypoint on Ray", marks=pytest.mark.slow),
        pytest.param("script", "ray", EXPECTED, id="a script on Ray", marks=pytest.mark.slow),
        pytest.param("readers", "ray", BY_READERS, id="readers on Ray", marks=pytest.mark.slow),
        pytest.param("readers", "local", BY_READERS, id="readers", marks=pytest.mark.slow),
    ],
)
def test_output_reaches_terminal_and_log(
    way: str, address: str, expected: list[str], project: Callable[..., Project]
) -> None:
    run = write_project(project, way)
    process = run.start("--address", address)
    stdout, stderr = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, stderr

    [artifacts] = Path(run.root, "experiments", run.name).iterdir()
    log = (run.output / "run.log").read_text()
    for lines in (stderr.splitlines(), log.splitlines()):
        assert [line for line in expected if line not in lines] == []
        assert [line for line in lines if _RAYS_OWN.search(line)] == []
    assert UNFINISHED in log.splitlines()
    assert not [line for line in stdout.splitlines() if line in expected]
    [copy] = (artifacts / "logs").iterdir()
    assert copy.read_text() == log


@pytest.mark.slow
@pytest.mark.parametrize("way", ["loop", "readers"])
def test_progress_on_a_terminal_leaves_lines_whole(
    way: str, project: Callable[..., Project]
) -> None:
    run = write_project(project, way)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [LASTMILE, *run.args()], stdin=theirs, stdout=theirs, stderr=theirs, cwd=run.folder
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # the terminal was closed: the command has ended
        pass
    os.close(ours)
    assert process.wait(RUN_SECONDS) == 0

    lines = [line.rpartition("\r")[2] for line in _CONTROL.sub("", shown.decode()).split("\r\n")]
    expected = EXPECTED if way == "loop" else BY_READERS
    assert [line for line in expected if line not in lines] == []
