"""A real Prometheus that scrapes pages which a test sets, a second apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_server import SCRAPE_SECONDS, Exporter, Prometheus, running, target

from tools.build_tools import find_prometheus
from tools.go_tools import ToolError


@pytest.fixture(scope="session")
def program() -> Path:
    """Prometheus, as `make test-tools` got it; without one, tests are skipped but in CI."""
    try:
        return find_prometheus()
    except ToolError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture
def prometheus(program: Path, tmp_path: Path) -> Iterator[Prometheus]:
    """It scrapes a driver's pod by two targets, one of DCGM's, and Ray's of a pod."""
    exporter = Exporter()
    with exporter.serving():
        port = exporter.port
        head = {"namespace": "team", "pod": "clicks-head", "experiment": "clicks"}
        config: dict[str, object] = {
            "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": "1s"},
            "scrape_configs": [
                target("/driver", port, **head),
                target("/again", port, **head),
                target("/another", port, namespace="other", pod="clicks-head"),
                target("/dcgm", port),
                target("/ray", port, namespace="team", pod="clicks-trainer"),
            ],
        }
        with running(program, tmp_path, config) as own_port:
            yield Prometheus(url=f"http://127.0.0.1:{own_port}", exporter=exporter)
