"""No status makes a command fail: not of another release, and not an arbitrary one."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import typer
import yaml
from hostile import WRONG, break_some
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_tests import examples
from typer.testing import CliRunner
from world import World, running

from dataset_operator.cli import join
from dataset_operator.cli.submit import _follow
from dataset_operator.documents import Document

TIME = "2026-01-01T00:00:00Z"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("get",),
    ("get", "--runs"),
    ("describe", "clicks"),
    ("describe", "clicks", "--from", "s3://store/clicks/"),
    ("logs", "clicks"),
    ("logs", "clicks", "--pods"),
    ("artifacts", "clicks"),
    ("scale", "clicks", "--data-workers", "2"),
    ("stop", "clicks"),
    ("resume", "clicks"),
)
# Parts of a status that the worlds of these tests do not have.
MORE: Document = {
    "output": {"rows": 7, "files": 1, "bytes": 9, "partitions": 3, "completePartitions": 1},
    "materialization": {
        "catalog": "lake",
        "table": "a.b",
        "state": "Partial",
        "partitions": 3,
        "completePartitions": 1,
    },
    "snapshots": [{"catalog": "lake", "table": "a.b", "snapshotId": "7"}],
    "trainer": {"progressPercent": 7, "metrics": [{"name": "loss", "value": "0.3"}]},
    "usage": {"gpuSeconds": 9, "gpuMeasuredSeconds": 7, "cost": "1.5", "currency": "EUR"},
    "history": {"state": "Kept"},
    "scaling": {
        "sinceTime": TIME,
        "saturationPoint": {"replicas": 2, "untilTime": TIME, "rowsPerSecond": "9"},
        "decisions": [
            {
                "time": TIME,
                "before": 1,
                "after": 2,
                "reason": "ScaleUpLimit",
                "inputs": [{"name": "productionShare", "value": "0.2"}],
            }
        ],
    },
}


class Stored:
    """The stored history of a run, which has nothing but the experiment."""

    uri = "s3://store/clicks/"
    files: Sequence[Any] = ()

    def __init__(self, document: Document) -> None:
        self._document = document

    def experiment(self) -> Document:
        return self._document

    def events(self) -> list[Document]:
        return []

    pods = events

    def read_driver(self, submission_id: str) -> Iterator[bytes]:
        yield b"log"


class Runtime:
    """The functions of the runtime that commands call, with an empty store."""

    document: Document

    def open_history(self, uri: str, run: str | None) -> Stored:
        return Stored(self.document)

    def look_back(self, uri: str, run: str) -> tuple[list[Document], list[Document], str | None]:
        return [], [], None

    def list_runs(self, uri: str) -> list[Document]:
        return []


class Program:
    """A program that has the commands for clusters."""

    def __init__(self) -> None:
        self.app = typer.Typer()

    def add(self, name: str, place: str, summary: str) -> None:
        module, function = place.split(":")
        if function == name or name in ("stop", "resume"):
            self.app.command(name)(getattr(importlib.import_module(module), function))


class Door:
    """Runs commands against an API server with one experiment."""

    def __init__(self, folder: Path) -> None:
        program = Program()
        join(program)
        self.app, self.runtime, self.answers = program.app, Runtime(), list[Document]()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._build_handler())
        url = f"http://127.0.0.1:{self.server.server_port}"
        named = {"name": "here"}
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{**named, "cluster": {"server": url}}],
                    "users": [{**named, "user": {}}],
                    "contexts": [{**named, "context": {"cluster": "here", "user": "here"}}],
                }
            )
        )

    def _build_handler(self) -> type[BaseHTTPRequestHandler]:
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                *_, kind, name = self.path.partition("?")[0].split("/")
                code, answer = 200, door.runtime.document
                if name == "datasetexperiments":
                    answer = {"items": [answer]}
                elif name in ("pods", "events"):
                    answer = {"items": []}
                elif kind != "datasetexperiments":
                    code, answer = 404, {"details": {"name": name}}
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PATCH = do_GET

            def log_message(self, *_: object) -> None: ...

        return Handler

    def run(self, document: Document, *words: str) -> str:
        self.runtime.document = document
        target = ["--namespace", "team", "--kubeconfig", str(self.kubeconfig)]
        result = CliRunner().invoke(self.app, [*words, *target], obj=self.runtime)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code in (0, 1), result.output
        return result.output


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    made = Door(tmp_path_factory.mktemp("door"))
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def trains() -> World:
    return running(dataWorkers={"maxReplicas": 9})


def drains() -> World:
    world = trains()
    draining = [{"name": "w", "time": TIME}, {"name": "x", "time": TIME, "lost": True}]
    world.status["dataWorkers"] |= {"draining": draining, "drainingTo": 1}
    return world


def ends() -> World:
    world = trains()
    world.end_job("FAILED")
    world.settle()
    return world


def build(world: World) -> Document:
    document = copy.deepcopy(world.document)
    document["metadata"] |= {"resourceVersion": "1", "creationTimestamp": TIME}
    document["status"] |= copy.deepcopy(MORE)
    return document


STATES = {state.__name__: build(state()) for state in (trains, drains, ends)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_whole_statuses_are_shown(door: Door, words: tuple[str, ...], state: str) -> None:
    assert door.run(copy.deepcopy(STATES[state]), *words)


def test_every_part_of_a_status_is_described(door: Door) -> None:
    shown = door.run(copy.deepcopy(STATES["drains"]), "describe", "clicks")
    for label in ("Run", "Workers", "Training", "Table", "Kept rows", "Read", "Used", "loss"):
        assert f"\n{label}:" in shown.replace("\n  ", "\n")


QUIET = settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))


@QUIET
@given(data=st.data())
def test_no_status_fails_a_command(door: Door, data: st.DataObject) -> None:
    document = copy.deepcopy(STATES[data.draw(st.sampled_from(sorted(STATES)), "state")])
    if data.draw(st.integers(0, 9), "whether all of it is arbitrary"):
        break_some(data, [document["status"]])
    else:
        document["status"] = data.draw(WRONG, "status")
    for words in COMMANDS:
        door.run(copy.deepcopy(document), *words)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        pytest.param(None, "Pending", id="no status"),
        pytest.param({"phase": "Resting", "hobbies": [1]}, "Resting", id="a newer field"),
        pytest.param(
            {"phase": "Training", "materialization": {"state": "Stale"}},
            "Training",
            id="a newer constant",
        ),
        pytest.param({"phase": ["x"], "run": -1, "gpus": "many"}, "Pending", id="other types"),
        pytest.param({"phase": "\x1b[2J"}, "clicks", id="a phase that clears the screen"),
    ],
)
def test_statuses_of_other_releases_are_shown(door: Door, status: Any, shown: str) -> None:
    document = {**STATES["trains"], "status": status}
    for words in COMMANDS:
        assert "\x1b" not in door.run(copy.deepcopy(document), *words)
    assert shown in door.run(document, "describe", "clicks")


class Polls:
    """A cluster that returns one status after another."""

    def __init__(self, statuses: list[Any]) -> None:
        self.statuses = statuses

    async def poll(self, name: str) -> Document:
        return {"metadata": {"name": name, "generation": 1}, "status": self.statuses.pop(0)}


@QUIET
@given(statuses=st.lists(WRONG | st.just({"observedGeneration": 1}), max_size=5))
def test_no_status_fails_a_followed_submission(statuses: list[Any]) -> None:
    complete = {"type": "Complete", "status": "True", "reason": "Succeeded", "message": ""}
    end = {"observedGeneration": 1, "conditions": [{**complete, "lastTransitionTime": TIME}]}
    assert asyncio.run(_follow(cast(Any, Polls([*statuses, end])), "clicks"))
