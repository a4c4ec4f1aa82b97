"""Output and log records of the user's code, caught line by line."""

import contextlib
import copy
import io
import logging
import logging.config
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray import cloudpickle
from rich.console import Console
from rich.file_proxy import FileProxy

from pipeline_runtime import Pipeline, user_output
from pipeline_runtime.run.run_log import MAX_EARLY_LINES, RunLog
from pipeline_runtime.sources import open_location
from pipeline_runtime.user_output import MAX_LINE_CHARS, LineTee, catching_output, showing_logs

LONG = "x" * MAX_LINE_CHARS
DUMPS: Any = cloudpickle.dumps  # untyped
DICT_CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"mine": {"class": "logging.StreamHandler"}},
    "root": {"level": "INFO", "handlers": ["mine"]},
}


@contextlib.contextmanager
def plain_logging() -> Iterator[None]:
    """Take pytest's own handlers from the root logger, as in a program that has none."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        pytest.param(["a\nb\n"], ["a", "b"], id="lines"),
        pytest.param(["a", "b", "\n"], ["ab"], id="parts of a line"),
        pytest.param(["a\n", "b"], ["a", "b"], id="a last line without an end"),
        pytest.param(["\n"], [""], id="an empty line"),
        pytest.param([" 1 %\r", " 99 %\r", "100 %\n"], ["100 %"], id="a progress bar"),
        pytest.param(["windows\r\n"], ["windows"], id="a carriage return at the end"),
        pytest.param(["windows\r", "\n"], ["windows"], id="a carriage return in a part of its own"),
        pytest.param([LONG, "y"], [LONG, "y"], id="a line that never ends"),
        pytest.param([LONG + "yy\nz\n"], [LONG, "yy", "z"], id="a line that is too long"),
        pytest.param(["\rx", *["\r" + LONG[:-9]] * 3, "\r1"], ["1"], id="a bar that never ends"),
        pytest.param([LONG[:-1] + "\r", "\n"], [LONG[:-1]], id="the longest line"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_whole_lines_are_handed_over(written: list[str], lines: list[str]) -> None:
    below, taken = io.StringIO(), list[str]()
    tee = LineTee(below, taken.append)
    for text in written:
        assert tee.write(text) == len(text)
    tee.finish()
    tee.write("later\n")

    assert taken == lines
    assert below.getvalue() == "".join(written) + "later\n"


def test_a_part_of_a_line_costs_no_more_than_a_line() -> None:
    def measure(text: str) -> float:
        tee = LineTee(io.StringIO(), lambda line: None)
        started = time.process_time()
        for _ in range(MAX_LINE_CHARS - 1):
            tee.write(text)
        return time.process_time() - started

    # Eleven times as much when each part copied the line.
    assert measure("x") < 4 * measure("x\n")


def test_a_tee_behaves_as_the_stream_below(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w", encoding="latin-1", errors="replace") as below:
        tee = LineTee(below, lambda line: None)
        names = ["encoding", "errors", "newlines", "closed", "name", "mode", "line_buffering"]
        assert {name: getattr(tee, name) for name in names} == {
            name: getattr(below, name) for name in names
        }
        assert (tee.fileno(), tee.isatty(), tee.writable()) == (below.fileno(), False, True)
        assert isinstance(tee, io.TextIOBase)
        with tee:
            tee.writelines(["a\n", "b"])
        tee.flush()
        assert (tmp_path / "file").read_text() == "a\nb"
        tee.close()
        del tee
        assert not below.closed


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "copied",
    [
        pytest.param(copy.copy, id="copy"),
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda stream: pickle.loads(pickle.dumps(stream)), id="pickle"),
        pytest.param(lambda stream: pickle.loads(DUMPS(stream)), id="cloudpickle"),
    ],
)
def test_a_copy_is_the_stream_of_the_process(name: str, copied: Callable[[Any], Any]) -> None:
    with catching_output(lambda line: None):
        tee = getattr(sys, name)
        assert copied(tee) is tee
    assert copied(tee) is getattr(sys, name)


def test_a_tee_that_was_not_initialised_has_no_attributes() -> None:
    with pytest.raises(AttributeError):
        LineTee.__new__(LineTee).unknown  # noqa: B018


def test_lines_are_taken_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as after `2>&-`
    taken: list[str] = []
    with catching_output(taken.append):
        print("to nowhere", file=sys.stderr, flush=True)
        with pytest.raises(OSError, match="fileno"):
            sys.stderr.fileno()
        assert not sys.stderr.isatty()
        assert not sys.stderr.closed
        assert sys.stderr.encoding
    assert taken == ["to nowhere"]


def test_rich_prints_above_a_progress_display_and_into_the_log() -> None:
    terminal, taken = io.StringIO(), list[str]()
    with (
        contextlib.redirect_stdout(FileProxy(Console(file=terminal), terminal)),
        catching_output(taken.append),
    ):
        Console(width=80).print("from the user")
    assert taken == ["from the user"]
    assert terminal.getvalue() == "from the user\n"


def test_prints_pass_on_and_streams_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    before, taken = (sys.stdout, sys.stderr), list[str]()
    with contextlib.suppress(KeyError), catching_output(taken.append):
        print("to standard output")
        print("to standard error", file=sys.stderr)
        raise KeyError
    assert (sys.stdout, sys.stderr) == before
    assert taken == ["to standard output", "to standard error"]
    assert capsys.readouterr() == ("to standard output\n", "to standard error\n")


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    is_writing, may_end = threading.Event(), threading.Event()

    def take(line: str) -> None:
        is_writing.set()
        may_end.wait()

    tee = LineTee(io.StringIO(), take)
    thread = threading.Thread(target=tee.write, args=["parent\n"])
    thread.start()
    is_writing.wait()
    child = os.fork()
    if child == 0:
        tee.write("child\n")
        os._exit(0)
    try:
        deadline = time.monotonic() + 20
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
        may_end.set()
        thread.join()


def test_a_destructor_may_print_while_a_line_is_written(tmp_path: Path) -> None:
    class Printing(str):
        def __format__(self, spec: str) -> str:
            tee.write("inner\n")
            return str(self)

    log = RunLog()
    log.open(tmp_path, open_location(str(tmp_path / "store")))
    tee = LineTee(
        io.StringIO(), lambda line: log.write(Printing(line) if line == "outer" else line)
    )
    tee.write("outer\n")
    log.close()
    assert (tmp_path / "run.log").read_text() == "inner\nouter\n"


def test_a_part_of_a_line_joins_what_a_destructor_prints() -> None:
    def take(line: str) -> None:
        taken.append(line)
        if line == "outer":
            tee.write("inner\n")

    taken: list[str] = []
    tee = LineTee(io.StringIO(), take)
    tee.write("outer\nnext ")
    tee.write("last\n")
    assert taken == ["outer", "next inner", "last"]


TALKS = """
import logging, sys

print("printed at import")
logging.basicConfig(level=logging.INFO, format="mine %(message)s")
KEPT = sys.stdout

def loop(ctx):
    for _ in ctx.epochs():
        for _ in ctx.batches():
            pass
    logging.info("logged by a handler of the import")
    print("printed to a stream of the import", file=KEPT)
"""


def test_output_of_an_import_is_in_the_log_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks.py").write_text(TALKS)
    pq.write_table(pa.table({"x": range(10)}), "t.parquet")
    pipeline = Pipeline.read_parquet(str(tmp_path / "t.parquet"))
    with plain_logging():
        ended = [
            pipeline.train("f", entrypoint="talks:loop", batch_size=10, output=each, seed=seed)
            for seed, each in enumerate(["one", "two"])
        ]
    assert [each.outcome.kind for each in ended] == ["Complete"] * 2, ended[0].outcome
    expected = [
        "printed at import",
        "mine logged by a handler of the import",
        "printed to a stream of the import",
    ]
    for folder in ("one", "two"):
        lines = (tmp_path / folder / "run.log").read_text().splitlines()
        assert [line for line in lines if line in expected] == expected
    shown = capsys.readouterr()
    assert [shown.out.count(line) + shown.err.count(line) for line in expected] == [2] * 3


def test_the_log_keeps_the_last_of_the_early_lines(tmp_path: Path) -> None:
    log = RunLog()
    for number in range(MAX_EARLY_LINES + 2):
        log.write(str(number))
    log.open(tmp_path, open_location(str(tmp_path / "store")))
    log.write("late")
    log.close()
    log.write("after the end")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert lines == [*map(str, range(2, MAX_EARLY_LINES + 2)), "late"]
    [stored] = (tmp_path / "store/logs").iterdir()
    assert stored.read_text().splitlines() == lines


def log_from_a_library(name: str) -> None:
    """Log as a function whose file is one of the package's own."""
    code = compile(
        "import logging\ndef log(name):\n"
        "    logging.getLogger(name).info('info')\n    logging.getLogger(name).warning('warning')",
        user_output.__file__,
        "exec",
    )
    names: dict[str, FunctionType] = {}
    exec(code, names)
    names["log"](name)


def test_records_of_the_user_are_shown_from_info_on(capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[str] = []
    with plain_logging(), catching_output(taken.append):
        logging.getLogger("mine").debug("no")
        logging.getLogger("mine").info("step %d", 3)
        logging.getLogger("mine").warning("slow")
        log_from_a_library("theirs")

    assert taken == ["INFO mine: step 3", "WARNING mine: slow", "WARNING theirs: warning"]
    assert capsys.readouterr().err.splitlines() == taken


def test_the_users_own_settings_of_logging_count() -> None:
    taken: list[str] = []
    with plain_logging(), catching_output(taken.append):
        logging.basicConfig(level=logging.DEBUG, format="mine %(message)s")
        logging.getLogger("mine").debug("details")

    assert taken == ["mine details"]


@pytest.mark.parametrize(
    ("configure", "lines"),
    [
        pytest.param(lambda: None, ["INFO mine: step"], id="nothing"),
        pytest.param(logging.basicConfig, [], id="basicConfig"),
        pytest.param(
            lambda: logging.basicConfig(level=logging.INFO), ["INFO:mine:step"], id="with a level"
        ),
        pytest.param(
            lambda: logging.config.dictConfig(DICT_CONFIG), ["step"], id="dictConfig with a level"
        ),
    ],
)
def test_settings_of_logging_mean_what_they_mean_in_python(
    configure: Callable[[], None], lines: list[str]
) -> None:
    taken: list[str] = []
    with plain_logging(), catching_output(taken.append):
        configure()
        logging.getLogger("mine").info("step")
    assert taken == lines


def test_handlers_that_keep_a_stream_write_to_each_log() -> None:
    first, second = list[str](), list[str]()
    kept = logging.StreamHandler(sys.stdout)
    with plain_logging():
        logging.getLogger().addHandler(kept)
        with catching_output(first.append):
            added = logging.StreamHandler(sys.stderr)
            logging.getLogger("mine").addHandler(added)
            logging.getLogger("mine").warning("one")
        with catching_output(second.append):
            logging.getLogger("mine").warning("two")
        logging.getLogger("mine").removeHandler(added)
    assert (first, second) == (["one", "one"], ["two", "two"])
    assert kept.stream is sys.stdout


def test_handlers_of_ray_keep_their_stream() -> None:
    taken: list[str] = []
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("ray.of_a_test")
    logger.addHandler(handler)
    with catching_output(taken.append):
        logger.warning("noise")
    logger.removeHandler(handler)
    assert taken == []


def test_the_handler_of_last_resort_comes_back() -> None:
    with plain_logging():
        before = logging.lastResort, logging.getLogger().level
        with showing_logs():
            assert (logging.lastResort, logging.getLogger().level) != before
        assert (logging.lastResort, logging.getLogger().level) == before
