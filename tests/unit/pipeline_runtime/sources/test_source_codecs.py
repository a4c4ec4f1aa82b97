"""The kernels find the C functions of the codecs, whatever other threads do."""

import importlib
import runpy
import sys
from types import ModuleType

import pytest

from pipeline_runtime.sources.parquet.decoding import codecs


def find_anew() -> frozenset[str]:
    """Return the codecs that a process finds that has looked for none yet."""
    found: frozenset[str] = runpy.run_path(codecs.__file__)["known_codecs"]()
    return found


@pytest.mark.parametrize(
    ("codec", "module"), [("LZ4", "lz4.block._block"), ("ZSTD", "zstandard._cffi")]
)
def test_a_codec_is_found_while_a_thread_imports_it(
    monkeypatch: pytest.MonkeyPatch, codec: str, module: str
) -> None:
    assert codec in find_anew()
    importlib.import_module(module.rpartition(".")[0])
    half_imported = ModuleType(module)
    assert half_imported.__spec__ is None
    monkeypatch.setitem(sys.modules, module, half_imported)
    assert codec in find_anew()
