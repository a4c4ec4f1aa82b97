"""The bounds of a status that Kubernetes stores: its model's, and its size."""

import json
from typing import Any

from pipeline_runtime.config import ExperimentStatus

MAX_STATUS_BYTES = 20 << 10


def num_bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def check_is_stored(status: dict[str, Any]) -> None:
    """Check a status by its model, which has the CRD's bounds."""
    ExperimentStatus.model_validate_json(json.dumps(status), by_alias=True, by_name=False)
    assert num_bytes(status) <= MAX_STATUS_BYTES
