"""The first request to a store has a deadline, whatever its client does."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from failing_store import AwayFileSystem, store_in_memory

from pipeline_runtime import deadline
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.errors import StoreError
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.stores import find_info


@pytest.fixture
def silent_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A store whose client waits for ever, until the function is called."""
    monkeypatch.setenv(SCHEMES_VARIABLE, "away")
    monkeypatch.setattr(deadline.call_in_time, "__defaults__", (0.2,))
    answer = threading.Event()

    def wait(self: AwayFileSystem, path: str, **_: Any) -> dict[str, Any]:
        answer.wait()
        return {"name": path, "size": 1, "type": "file"}

    with store_in_memory():
        monkeypatch.setattr(AwayFileSystem, "info", wait)
        yield answer.set
        answer.set()


def test_a_client_that_waits_for_ever_has_a_deadline(silent_store: Callable[[], None]) -> None:
    place = open_location("away://lake/t")
    with pytest.raises(StoreError, match="away://lake/t"):
        find_info(place, "list the files")
    silent_store()
    assert find_info(place, "list the files").size == 1


@pytest.mark.parametrize("error", [TimeoutError("read timed out"), KeyError("x"), SystemExit(2)])
def test_errors_of_a_call_are_raised_as_they_are(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        deadline.call_in_time(fail)
    assert caught.value is error
