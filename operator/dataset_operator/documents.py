"""Documents of Kubernetes as JSON has them, and their times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

Document = dict[str, Any]
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def parse_time(text: str) -> datetime:
    """Parse a time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    """Format a time as Kubernetes does, in UTC and whole seconds."""
    return moment.strftime(TIME_FORMAT)
