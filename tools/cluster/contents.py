"""Objects that a box's API server gets before anyone uses it; see `startup.py`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.cluster.api_requests import Server

YAML = "application/yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODES = "/api/v1/nodes"


class Contents:
    """The first objects of an API server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._served: list[tuple[str, str]] = []  # path of the API, plural name of the kind

    def create_crds(self, paths: Sequence[Path]) -> None:
        """Create the CRDs in these files; those in a folder in the order of their names."""
        folders = [sorted(path.glob("*.yaml")) if path.is_dir() else [path] for path in paths]
        for path in (path for folder in folders for path in folder):
            spec = self.server.create(CRDS, path.read_bytes(), YAML)["spec"]
            versions = [version["name"] for version in spec["versions"] if version["served"]]
            apis = (f"/apis/{spec['group']}/{version}" for version in versions)
            self._served += [(api, spec["names"]["plural"]) for api in apis]

    def are_crds_served(self) -> bool:
        """Return whether each kind is both discovered and served: one may come before the other."""
        for api, plural in self._served:
            found = (self.server.get(api) or {}).get("resources", [])
            if plural not in {resource["name"] for resource in found}:
                return False
            if self.server.get(f"{api}/{plural}") is None:
                return False
        return True

    def create_all(self, path: str, files: Sequence[Path]) -> None:
        """Create the object in each file in the collection at `path`."""
        for file in files:
            self.server.create(path, file.read_bytes(), YAML)

    def create_nodes(self, nodes: Sequence[Mapping[str, object]]) -> None:
        """Create simulated nodes; a kubelet creates its own node."""
        for node in nodes:
            self.server.create(NODES, json.dumps(node).encode())

    def count_ready_nodes(self) -> int:
        """Return how many nodes have the condition Ready."""
        listed = self.server.get(NODES) or {}
        ready = [
            condition
            for node in listed.get("items", [])
            for condition in node.get("status", {}).get("conditions", [])
            if (condition["type"], condition["status"]) == ("Ready", "True")
        ]
        return len(ready)

    def has_service_account(self) -> bool:
        """Return whether the controller manager has reached the default namespace."""
        return self.server.get("/api/v1/namespaces/default/serviceaccounts/default") is not None
