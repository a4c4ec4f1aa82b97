"""Connection attempts between pods: the node enforces NetworkPolicies."""

import json
from collections.abc import Iterable

from release import IMAGES
from stage import Stage

SECONDS = 5.0  # a refusal is told at once; what is dropped is not
KNOCK = """\
import json, socket, sys
open_doors = []
for door in json.loads(sys.argv[1]):
    try:
        socket.create_connection(tuple(door), timeout=float(sys.argv[2])).close()
        open_doors.append(door)
    except OSError:
        pass
print(json.dumps(open_doors))
"""
Door = tuple[str, int]


def knock_from(stage: Stage, pod: str, doors: Iterable[Door]) -> set[Door]:
    """Doors that are open to a pod of an experiment."""
    command = ("exec", pod, "-c", "ray", "--", "python", "-c", KNOCK)
    return _read(stage.kubectl(*command, json.dumps([*doors]), str(SECONDS)))


def knock_as_stranger(stage: Stage, doors: Iterable[Door]) -> set[Door]:
    """Doors that are open to a pod of somebody else in the stage's namespace."""
    command = ["python", "-c", KNOCK, json.dumps([*doors]), str(SECONDS)]
    return _read(stage.run_pod("stranger", IMAGES["operator"], command))


def _read(said: str) -> set[Door]:
    return {(host, port) for host, port in json.loads(said)}
