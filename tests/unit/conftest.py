"""Keeps unit tests from waiting for the disk: no power failure is simulated here."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_sync() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield
