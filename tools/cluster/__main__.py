"""`make cluster-up`, `cluster-down`, `cluster-status` and `cluster-kubeconfig`."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools.cluster import binaries, registry
from tools.cluster.binaries import build_full_node
from tools.cluster.box import CONSENT_VARIABLE, BoxError, NotRunningError, find_existing
from tools.cluster.control_plane import ControlPlane
from tools.cluster.full_node import FullNode, require_root
from tools.cluster.registry import find_processes
from tools.go_tools import ToolError, exclusive, say

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "build" / "cluster"
SIMULATED = "simulated"


def _build_full_node() -> binaries.Binaries:
    require_root()  # before minutes of building
    return build_full_node()


KINDS: dict[str, tuple[Callable[[], binaries.Binaries], type[ControlPlane] | type[FullNode]]] = {
    SIMULATED: (binaries.build_control_plane, ControlPlane),
    "full": (_build_full_node, FullNode),
}


def up(folder: Path, node: str = SIMULATED) -> None:
    """Bring a cluster up in `folder` that stays until `down`; one that runs there is left alone."""
    existing = find_existing()
    if existing is not None:
        say(f"nothing to start: {existing.kubeconfig} is used")
        return
    build, kind = KINDS[node]
    parts = build()
    with exclusive(registry.registry_root()):
        try:
            box = _attach(folder)
            say(f"the cluster in {folder} is up already")
        except NotRunningError:
            _remove(folder)
            began = time.monotonic()
            box = kind.start(folder, detached=True, parts=parts)
            say(f"the cluster in {folder} is up after {time.monotonic() - began:.0f} s")
    if not isinstance(box, kind):
        raise BoxError(f"its node is not {node}: remove it first, by `make cluster-down`")
    print(f"export KUBECONFIG={box.kubeconfig}")
    print(f"export PATH={box.layout.bin}:$PATH  # kubectl")


def down(folder: Path) -> None:
    """Remove the cluster in `folder`, and what killed runs left anywhere on this machine."""
    with exclusive(registry.registry_root()):
        is_removed = _remove(folder)
        leftovers = registry.sweep()
    if not is_removed and not leftovers:
        say("no cluster to remove")


def status(folder: Path) -> None:
    """Print the processes of the cluster in `folder` and its nodes."""
    existing = find_existing()
    if existing is not None:
        print(f"{existing.kubeconfig}, by {CONSENT_VARIABLE} or as it is a box of ours")
        print(existing.kubectl("get", "nodes"), end="")
        return
    record = registry.find_record(folder)
    if record is None:
        raise NotRunningError(f"no cluster runs in {folder}: start one by `make cluster-up`")
    for found in find_processes(record.id):
        print(f"{found.component:24} running, process {found.pid}")
    print(_attach(folder).kubectl("get", "nodes"), end="")


def kubeconfig(folder: Path) -> None:
    """Print the path of the cluster's kubeconfig."""
    existing = find_existing()
    print(existing.kubeconfig if existing is not None else _attach(folder).kubeconfig)


COMMANDS: dict[str, Callable[[Path], None]] = {
    "down": down,
    "status": status,
    "kubeconfig": kubeconfig,
}


def _attach(folder: Path) -> ControlPlane | FullNode:
    return (FullNode if FullNode.is_in(folder) else ControlPlane).attach(folder)


def _remove(folder: Path) -> bool:
    record = registry.find_record(folder)
    if record is None:
        return False
    num_killed = registry.remove(record)
    say(f"removed the cluster in {folder} and {num_killed} processes of it")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    parser.add_argument("command", choices=("up", *COMMANDS))
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where the cluster is")
    parser.add_argument("--node", choices=KINDS, default=SIMULATED, help="of `up`; full: root only")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    try:
        if arguments.command == "up":
            up(folder, arguments.node)
        else:
            COMMANDS[arguments.command](folder)
    except (BoxError, ToolError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
