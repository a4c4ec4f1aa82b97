"""A real Prometheus that scrapes pages which a test sets, a second apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from loopback import free_ports
from server_process import running_server

SCRAPE_SECONDS = 1
START_SECONDS = 60.0  # it is ready in one, unless the machine is very busy


@dataclass(slots=True)
class Exporter:
    """Serves pages by path; a path without one is a target that is down."""

    pages: dict[str, bytes] = field(default_factory=dict)
    port: int = 0

    @contextmanager
    def serving(self) -> Iterator[None]:
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                self.send_response(503 if page is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(page or b"")

            def log_message(self, *_: object) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A running one, and what it scrapes."""

    url: str
    exporter: Exporter


def target(path: str, port: int, **labels: str) -> dict[str, object]:
    """A job of one target, as a PodMonitor would make it."""
    return {
        "job_name": path.strip("/"),
        "metrics_path": path,
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}],
    }


@contextmanager
def running(program: Path, folder: Path, config: dict[str, object], *more: str) -> Iterator[int]:
    """Its port, once it answers."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    [port] = free_ports(1)
    log = folder / "log"
    command = [
        str(program),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        *more,
    ]

    def is_ready() -> bool:
        return b"Server is ready to receive web requests" in log.read_bytes()

    with running_server(command, log, is_ready, start_seconds=START_SECONDS):
        yield port
