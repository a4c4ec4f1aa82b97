"""The child's side of `children.Child`.

It imports the standard library alone. A script that runs the code of an older commit, which may not
have this file, loads it by its path: `runpy.run_path(…)["serve"]`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def serve(open_service: Callable[[], tuple[Any, Callable[[Any], Any]]]) -> None:
    """Answer the requests of a parent until it closes the pipe.

    Args:
        open_service: imports and starts everything; returns the parent's `hello`, and the function
            that answers a request.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print there
    hello, answer = open_service()
    answers.write(json.dumps({"answer": hello}) + "\n")
    for line in sys.stdin:
        try:
            found = {"answer": answer(json.loads(line))}
        except Exception:  # noqa: BLE001 - the parent reports it, whatever it is
            found = {"error": traceback.format_exc()}
        answers.write(json.dumps(found) + "\n")
