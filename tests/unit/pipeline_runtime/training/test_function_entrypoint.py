"""A function as the entrypoint of `Pipeline.train`, as notebooks give one."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import ManifestError, TrainingError
from pipeline_runtime.training.entrypoint import check_function
from pipeline_runtime.training.function_digest import digest_function


def count_steps(ctx: Any) -> None:
    """Train nothing, and save at the end of each epoch."""
    for _ in ctx.epochs():
        for _ in ctx.batches():
            ctx.report({"loss": 1.0})
        ctx.report({"eval_auc": 0.5}, {"step": ctx.step})


def count_other_steps(ctx: Any) -> None:
    count_steps(ctx)


def two_arguments(ctx: Any, other: Any) -> None: ...


class Callables:
    def __call__(self, ctx: Any) -> None: ...

    def method(self, ctx: Any) -> None: ...


def make_closure() -> Callable[[Any], None]:
    rate = 0.1

    def loop(ctx: Any) -> None:
        print(rate)

    return loop


def make_without_source() -> Callable[[Any], None]:
    names: dict[str, Any] = {}
    exec("def loop(ctx): ...", names)
    function: Callable[[Any], None] = names["loop"]
    return function


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "t.parquet")
    return Pipeline.read_parquet(str(tmp_path / "t.parquet"))


def test_a_function_trains_and_its_source_makes_the_run(pipeline: Pipeline) -> None:
    ended = [
        pipeline.train("f", entrypoint=each, batch_size=10, output=f"out-{index}", epochs=2)
        for index, each in enumerate([count_steps, count_steps, count_other_steps])
    ]
    assert [each.outcome.kind for each in ended] == ["Complete"] * 3, ended[0].outcome
    summaries = [each.summary for each in ended]
    assert [each.training.steps for each in summaries] == [20] * 3
    assert [len(each.training.evaluations) for each in summaries] == [2] * 3
    hashes = [each.run.run_hash for each in summaries]
    assert hashes[0] == hashes[1] != hashes[2]
    manifest = (ended[0].output / "manifest.yaml").read_text()
    assert "#     for _ in ctx.epochs():\n" in manifest
    with pytest.raises(ManifestError, match="entrypoint"):
        parse_experiment(yaml.safe_load(manifest))


@pytest.mark.parametrize("use", ["to_yaml", "document", "experiment"])
def test_a_manifest_cannot_hold_a_function(use: str, pipeline: Pipeline) -> None:
    with pytest.raises(ManifestError, match=r"spec\.training\.entrypoint") as refused:
        getattr(pipeline, use)("f", entrypoint=count_steps)
    assert "count_steps" in str(refused.value)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        pytest.param(lambda ctx: None, "lambda", id="a lambda"),
        pytest.param(make_closure(), "'rate'", id="a closure"),
        pytest.param(make_without_source(), "source", id="without source"),
        pytest.param(functools.partial(two_arguments, other=1), "partial", id="a partial"),
        pytest.param(Callables(), "Callables", id="an object"),
        pytest.param(Callables().method, "method", id="a method"),
        pytest.param(print, "builtin", id="a builtin"),
        pytest.param(two_arguments, "one argument", id="two arguments"),
    ],
)
def test_only_a_function_known_by_its_source_is_taken(
    function: Any, named: str, pipeline: Pipeline
) -> None:
    with pytest.raises(TrainingError, match="entrypoint: ") as refused:
        pipeline.train("f", entrypoint=function)
    assert named in str(refused.value)


CELLS = """
import argparse, dataclasses, enum, functools, math, pathlib, random
from os import environ

from pipeline_runtime.errors import Problem  # a dataclass without defaults

RATE = 0.1
LAYERS = [64, 32]
SETTINGS = {"dropout": 0.1, "kinds": ("a", "b"), "act": math.sin}
NAMES = frozenset({"user", "item", "day"})
FOLDER = pathlib.Path("kept")
OPTIONS = argparse.Namespace(beta=1)
UNUSED = 1
losses, state = [], {}
COUNT = 0

@dataclasses.dataclass
class Config:
    width: int = 8

CONFIG = Config(width=16)

class Kind(enum.Enum):
    DEEP = "deep"

class Base:
    def scale(self):
        return 1

class Net(Base):
    hidden = 128

    def forward(self, x):
        return x + OFFSET

    @property
    def size(self):
        return 5

OFFSET = 7

def helper(x, factor=2):
    return x * factor + DEPTH

DEPTH = 3

@functools.lru_cache
def cached(x):
    return x + 11

def timed(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

@timed
def evaluate():
    return 13

activate = functools.partial(helper, factor=17)
squash = math.sin
noise = random.random

EPS = 1e-8

def train(ctx, eps=EPS, *, clip=1.0):
    global COUNT
    COUNT += 1
    losses.append(RATE)
    state["step"] = ctx.UNUSED
    uses = LAYERS, SETTINGS, NAMES, FOLDER, OPTIONS, CONFIG, Kind.DEEP, Net, activate, squash
    evaluate(), cached(COUNT), environ, Problem
    return [helper(each) for each in uses]
"""


OBJECTS = """
import enum

class Plain:
    rate = 0.1

    def __init__(self, width):
        self.width, self.steps = width, 0

    def step(self):
        self.steps += 1

plain = Plain(16)
bound = Plain(3).step

class Columns(enum.Enum):
    ALL = frozenset({"x", "y", "another"})

class State:
    step = 0

history = {"loss": []}
settings = {"rate": 1}

class Proxy:
    def __call__(self):
        pass

    def __getattr__(self, name):
        raise RuntimeError(name)

proxy = Proxy()

def helper():
    settings = {}
    settings["x"] = 1
    return settings

def train(ctx, seen=[]):
    history["loss"].append(1)
    seen.append(1)
    State.step += 1
    plain.step()
    return plain.width, settings, helper(), Columns.ALL, bound, proxy
"""


def load(folder: Path, cells: str) -> ModuleType:
    """Import a new module with these cells."""
    path = folder / f"cells_{len(list(folder.iterdir()))}.py"
    path.write_text(cells)
    spec = spec_from_file_location("cells", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["cells"] = module  # as dataclasses need
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["cells"]
    return module


def digest(folder: Path, cells: str) -> str:
    """Return the digest of `train` in a new module with these cells."""
    return check_function(load(folder, cells).train).path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("helper(each)", "helper(each, 1)", id="source"),
        pytest.param("EPS = 1e-8", "EPS = 1e-9", id="default"),
        pytest.param("RATE = 0.1", "RATE = 0.2", id="number"),
        pytest.param("[64, 32]", "[64, 16]", id="list"),
        pytest.param('"dropout": 0.1', '"dropout": 0.2', id="dict"),
        pytest.param('("a", "b")', '("b", "a")', id="tuple-in-a-dict"),
        pytest.param('"act": math.sin', '"act": math.cos', id="builtin-in-a-dict"),
        pytest.param('"day"}', '"hour"}', id="set"),
        pytest.param('Path("kept")', 'Path("other")', id="path"),
        pytest.param("beta=1", "beta=2", id="namespace"),
        pytest.param("Config(width=16)", "Config(width=32)", id="dataclass"),
        pytest.param('DEEP = "deep"', 'DEEP = "wide"', id="enum"),
        pytest.param("hidden = 128", "hidden = 256", id="attribute-of-a-class"),
        pytest.param("x + OFFSET", "x - OFFSET", id="method"),
        pytest.param("return 5", "return 6", id="property"),
        pytest.param("return 1\n", "return 2\n", id="method-of-a-base"),
        pytest.param("OFFSET = 7", "OFFSET = 8", id="global-of-a-method"),
        pytest.param("factor=2)", "factor=3)", id="default-of-a-helper"),
        pytest.param("DEPTH = 3", "DEPTH = 4", id="global-of-a-helper"),
        pytest.param("x + 11", "x + 12", id="function-behind-a-decorator"),
        pytest.param("return function(*args)", "return args", id="decorator"),
        pytest.param("return 13", "return 14", id="function-in-a-decorator"),
        pytest.param("factor=17", "factor=18", id="partial"),
        pytest.param("squash = math.sin", "squash = math.cos", id="builtin"),
    ],
)
def test_what_a_function_uses_makes_the_run(before: str, after: str, tmp_path: Path) -> None:
    assert CELLS.count(before) == 1
    assert digest(tmp_path, CELLS) != digest(tmp_path, CELLS.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("def train", "# another place\ndef train", id="nothing"),
        pytest.param("UNUSED = 1", "UNUSED = 2", id="global-that-is-not-read"),
        pytest.param("losses, state = [], {}", 'losses, state = [1], {"step": 2}', id="changed"),
        pytest.param("COUNT = 0", "COUNT = 1", id="assigned"),
        pytest.param("random.random", "random.gauss", id="function-that-is-not-used"),
        pytest.param('{"user", "item", "day"}', '{"day", "item", "user"}', id="order-of-a-set"),
    ],
)
def test_what_a_function_does_not_depend_on_makes_no_other_run(
    before: str, after: str, tmp_path: Path
) -> None:
    assert CELLS.count(before) == 1
    assert digest(tmp_path, CELLS) == digest(tmp_path, CELLS.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("rate = 0.1", "rate = 0.2", id="attribute-of-a-class"),
        pytest.param("plain = Plain(16)", "plain = Plain(32)", id="attribute"),
        pytest.param("self.steps += 1", "self.steps += 2", id="method"),
        pytest.param("Plain(3).step", "Plain(4).step", id="object-of-a-method"),
        pytest.param('"another"', '"other"', id="enum"),
        pytest.param('{"rate": 1}', '{"rate": 2}', id="name-that-a-helper-uses-too"),
    ],
)
def test_objects_that_a_function_uses_make_the_run(before: str, after: str, tmp_path: Path) -> None:
    assert OBJECTS.count(before) == 1
    assert digest(tmp_path, OBJECTS) != digest(tmp_path, OBJECTS.replace(before, after))


@pytest.mark.parametrize("cells", [CELLS.replace("ctx.UNUSED", "1"), OBJECTS])
def test_a_call_of_a_function_makes_no_other_run(cells: str, tmp_path: Path) -> None:
    module = load(tmp_path, cells)
    before = digest_function(module.train)
    with contextlib.suppress(TypeError, NameError):  # the cells use things that are not there
        module.train(None)
    assert digest_function(module.train) == before


def test_a_value_that_contains_itself_is_digested(tmp_path: Path) -> None:
    cells = "LOOP = []\nLOOP.extend([LOOP] * 9)\n\ndef train(ctx):\n    return LOOP, train, DEEP\n"
    assert digest(tmp_path, f"DEEP = 1\n{cells}") != digest(tmp_path, f"DEEP = 2\n{cells}")


@pytest.mark.parametrize("cells", [CELLS, OBJECTS], ids=["values", "objects"])
def test_a_digest_is_the_same_in_another_process(cells: str, tmp_path: Path) -> None:
    program = """
from importlib.util import module_from_spec, spec_from_file_location
import sys
from pipeline_runtime.training.function_digest import digest_function
spec = spec_from_file_location("cells", sys.argv[1])
sys.modules["cells"] = module = module_from_spec(spec)
spec.loader.exec_module(module)
print(digest_function(module.train))
"""
    mine = digest(tmp_path, cells)
    [path] = tmp_path.glob("cells_*.py")
    others = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert {f"__function__:train_{each}" for each in others} == {mine}
