"""The nodes of a cluster as Ray knows them, and how one is drained: no new work, then gone.

Ray 2.60 serves no HTTP for a drain; it is a call of gRPC to the head's GCS, which Ray's own hidden
`ray drain-node` makes. So a job on the head runs that: the operator needs neither Ray nor gRPC for
it, and the API server's proxy is no obstacle.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

# Beyond Ray's default of 100, up to its own bound (RAY_MAX_LIMIT_FROM_API_SERVER).
NODES_PATH = "/api/v0/nodes?limit=10000"
# About 500 bytes a node; the CRD's bounds allow 3,000.
MAX_NODES_BYTES = 8 << 20
_NAME_CHARS = 8
# Taken by busy nodes too, as an idle termination need not be.
_REASON = "DRAIN_NODE_REASON_PREEMPTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node, which is a pod; `ip` is the pod's. One that was drained is not alive any more."""

    id: str
    ip: str
    is_head: bool
    is_alive: bool


class _NodeState(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    node_id: str
    node_ip: str
    is_head_node: bool
    state: str


class _Listing(BaseModel):
    result: list[_NodeState]


class _Data(BaseModel):
    result: _Listing


class NodesAnswer(BaseModel):
    """The fields that are read of Ray's state API."""

    data: _Data

    def to_nodes(self) -> list[RayNode]:
        """The nodes, those that are gone too."""
        return [
            RayNode(
                id=node.node_id,
                ip=node.node_ip,
                is_head=node.is_head_node,
                is_alive=node.state == "ALIVE",
            )
            for node in self.data.result.result
        ]


def name_drain(prefix: str, node_ids: Sequence[str]) -> str:
    """Return the id of the job that drains nodes; other nodes give another id.

    Args:
        node_ids: of all that ever were to be drained, those that are gone too: as they go one by
            one the job is the same, and one that starts only then has it made again.
    """
    text = ",".join(sorted(node_ids)).encode()
    return f"{prefix}-{hashlib.sha256(text).hexdigest()[:_NAME_CHARS]}"


def build_drain_job(
    submission_id: str, node_ids: Sequence[str], *, deadline_seconds: int, why: str
) -> dict[str, Any]:
    """The body of a submission that drains nodes; the job fails if Ray refuses one of them.

    Args:
        deadline_seconds: from now; Ray waits for tasks that run no longer.
        why: for Ray's log and the state of the nodes.
    """
    common = ["--reason", _REASON, "--reason-message", why]
    common += ["--deadline-remaining-seconds", str(deadline_seconds)]
    commands = [shlex.join(["ray", "drain-node", "--node-id", node, *common]) for node in node_ids]
    script = "; ".join([*(f"{command} || failed=1" for command in commands), "exit ${failed:-0}"])
    return {"submission_id": submission_id, "entrypoint": script, "runtime_env": {}}
