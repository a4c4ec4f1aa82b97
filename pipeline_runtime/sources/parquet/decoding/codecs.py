"""Finds the C functions of Parquet's codecs in the libraries of zstandard and lz4, for kernels.

Both packages bring zstd's and lz4's own C libraries as shared objects. `decode` of
`kernels.whole_chunks` calls their functions by address, so that a page costs no call from Python.
pyarrow decodes a codec that is not found here.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable
from functools import cache
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from pipeline_runtime.kernels.chunks import LZ4, SNAPPY, UNCOMPRESSED, ZSTD

# Modules whose shared objects have the functions, and the functions.
_ZSTD = ("zstandard._cffi", "ZSTD_decompressDCtx")
_LZ4 = ("lz4.block._block", "LZ4_decompress_safe")

_OWN = threading.local()


class Codec(NamedTuple):
    """The way a kernel decompresses: the codec, and the addresses of its function and its state."""

    kind: int
    function: int = 0
    state: int = 0


@cache
def known_codecs() -> frozenset[str]:
    """Return the codecs that kernels can use, by pyarrow's names: LZ4 is Parquet's LZ4_RAW."""
    libraries = {"LZ4": _LZ4, "ZSTD": _ZSTD}
    found = [name for name, where in libraries.items() if _find_function(*where)]
    return frozenset(["UNCOMPRESSED", "SNAPPY", *found])


def find_codec(name: str) -> Codec:
    """Return a codec that is known, for this thread alone."""
    if name == "ZSTD":
        return Codec(ZSTD, _find_function(*_ZSTD), _zstd_state())
    if name == "LZ4":
        return Codec(LZ4, _find_function(*_LZ4))
    return Codec(SNAPPY if name == "SNAPPY" else UNCOMPRESSED)


def _zstd_state() -> int:
    """Return the address of this thread's ZSTD_DCtx, which is freed when the thread ends."""
    state: _ZstdState | None = getattr(_OWN, "zstd", None)
    if state is None:
        state = _OWN.zstd = _ZstdState()
    return state.address


class _ZstdState:
    def __init__(self) -> None:
        make = _function(_ZSTD[0], "ZSTD_createDCtx", ctypes.c_void_p)
        self._free = _function(_ZSTD[0], "ZSTD_freeDCtx", ctypes.c_size_t, ctypes.c_void_p)
        self.address = int(make())

    def __del__(self) -> None:
        self._free(self.address)


@cache
def _find_function(module: str, name: str) -> int:
    """Return the address of a function in the shared object of a module; 0 if there is none."""
    try:
        return ctypes.cast(getattr(_library(module), name), ctypes.c_void_p).value or 0
    except (ImportError, OSError, AttributeError):
        return 0


def _function(module: str, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(_library(module), name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]


@cache
def _library(module: str) -> ctypes.CDLL:
    """Load the shared object of a module again, for its C functions.

    `importlib.util.find_spec` would fail while another thread imports the module.

    Raises:
        ImportError: its package is not installed, or has no such shared object.
        OSError: the shared object cannot be loaded.
    """
    package = importlib.import_module(module.rpartition(".")[0])
    spec = PathFinder.find_spec(module, package.__path__)
    if spec is None or spec.origin is None:
        raise ImportError(module)
    return ctypes.CDLL(spec.origin)
