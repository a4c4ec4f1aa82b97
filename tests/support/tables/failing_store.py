"""A store that fails like a real one: `away://` addresses, which fsspec serves from memory.

`failing` makes requests fail. The file system then behaves as fsspec's real ones do, mistakes
included: a folder that it cannot reach counts as empty, and a file as absent.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class ClientError(Exception):
    """An error of a store's client library, such as botocore's, which is not an OSError."""


FAILURES = [
    ConnectionRefusedError("nobody listens there"),
    TimeoutError("no answer"),
    PermissionError("access denied"),
    OSError("AWS Error NETWORK_CONNECTION"),
    ClientError("could not connect to the endpoint"),
]


class AwayFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files in memory that cannot be reached within `failing`."""

    protocol = "away"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    error: Exception | None = None
    names: tuple[str, ...] = ()

    def _check(self, path: str) -> None:
        if self.error is not None and any(name in path for name in self.names):
            raise self.error

    def info(self, path: str, **options: Any) -> Any:
        self._check(path)
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._check(path)
        return super().ls(path, detail=detail, **options)

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._check(path)
        return super()._open(path, *arguments, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("away://", "memory://")))

    def isfile(self, path: str) -> bool:
        """Return false for any error, as fsspec's default does."""
        try:
            return bool(self.info(path)["type"] == "file")
        except Exception:  # noqa: BLE001 - as fsspec does
            return False

    def isdir(self, path: str) -> bool:
        """Return false for an OSError, as fsspec's default does."""
        try:
            return bool(self.info(path)["type"] == "directory")
        except OSError:
            return False

    def exists(self, path: str, **_: Any) -> bool:
        """Return false for any error, as fsspec's default does."""
        try:
            self.info(path)
        except Exception:  # noqa: BLE001 - as fsspec does
            return False
        return True


@contextmanager
def failing(error: Exception, *names: str) -> Iterator[None]:
    """Make the store raise an error for each path that contains one of the names ("": all)."""
    AwayFileSystem.error, AwayFileSystem.names = error, names
    try:
        yield
    finally:
        AwayFileSystem.error, AwayFileSystem.names = None, ()


@contextmanager
def store_in_memory() -> Iterator[AwayFileSystem]:
    """Serve `away://` addresses from an empty store."""
    fsspec.register_implementation("away", AwayFileSystem, clobber=True)
    AwayFileSystem.store.clear()
    AwayFileSystem.pseudo_dirs[:] = [""]
    yield AwayFileSystem()
    AwayFileSystem.store.clear()
