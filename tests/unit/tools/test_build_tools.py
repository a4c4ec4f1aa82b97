"""A command runs during the builds, and can wait for the stage that it needs."""

import sys
import threading
from pathlib import Path

from tools.build_tools import READY_VARIABLE, run_during_builds
from tools.go_tools import ToolError

# Writes down which stages are ready at once, lets the build go on, and waits for the other stage.
COMMAND = f"""
import fcntl, os, pathlib, sys, time
folder, notes = pathlib.Path(os.environ["{READY_VARIABLE}"]), pathlib.Path(sys.argv[1])
def is_ready(stage, flags=fcntl.LOCK_NB):
    try:
        fcntl.flock((folder / stage).open(), fcntl.LOCK_SH | flags)
    except BlockingIOError:
        return False
    return True
while not is_ready("programs"):
    time.sleep(0.01)
notes.write_text(f"argocd ready: {{is_ready('argocd')}}")
is_ready("argocd", flags=0)
sys.exit(7)
"""


def test_a_command_waits_for_the_stage_it_needs(tmp_path: Path) -> None:
    notes, built = tmp_path / "notes", threading.Event()

    def fail() -> None:
        raise ToolError("no network")

    def build() -> None:
        while not notes.exists():
            built.wait(0.01)
        built.set()

    stages = {"kernels": (), "programs": (fail,), "argocd": (build,)}
    status = run_during_builds([sys.executable, "-c", COMMAND, str(notes)], stages)

    assert (status, built.is_set()) == (7, True)
    assert notes.read_text() == "argocd ready: False"
