"""The circumstances of a benchmark, as `Beginning.describe` of the harness returns them."""

from typing import Any

ENVIRONMENT: dict[str, Any] = {
    "command": "python -m benchmarks.some",
    "commit": "abc",
    "finishedAt": "2026-01-01T00:00Z",
    "minutes": 1.0,
    "machine": {"processor": "P", "cores": 2, "memoryGiB": 4, "system": "S"},
    "versions": {"python": "3"},
    "loadAverage": [0.0, 0.0],
}
