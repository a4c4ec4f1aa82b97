"""Output and log records of the user's code, caught line by line."""

import contextlib
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FunctionType

import pytest

from pipeline_runtime import user_output
from pipeline_runtime.run.run_log import RunLog
from pipeline_runtime.user_output import MAX_LINE_CHARS, LineTee, catching_output, showing_logs


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
        pytest.param(["x" * (MAX_LINE_CHARS + 1)], ["x" * (MAX_LINE_CHARS + 1)], id="no end"),
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


def test_a_destructor_may_print_while_a_line_is_written() -> None:
    class Printing(io.StringIO):
        def write(self, text: str) -> int:
            if text == "outer\n":
                log.write("inner")
            return super().write(text)

    log = RunLog(file := Printing())
    log.write("outer")
    assert file.getvalue() == "inner\nouter\n"


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


def test_the_handler_of_last_resort_comes_back() -> None:
    with plain_logging():
        before = logging.lastResort, logging.getLogger().level
        with showing_logs():
            assert (logging.lastResort, logging.getLogger().level) != before
        assert (logging.lastResort, logging.getLogger().level) == before
