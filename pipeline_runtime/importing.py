"""Import heavy libraries without Python's collector, and Arrow without pandas.

Torch and Arrow leave some 300,000 objects that live as long as the process. The collector would
walk over them again and again, a sixth of the time of importing; every full collection thereafter
walks over them once more.

Arrow looks for pandas when it makes its first array, to recognise series and data frames. That
takes longer than Arrow itself. So it does not find pandas then, and looks again once somebody
imports pandas.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# A block that imports fewer modules leaves so few objects that freezing does not pay.
_MANY_MODULES = 50


@contextmanager
def importing() -> Iterator[None]:
    """Hold the collector off for the block, and freeze the objects that its imports leave.

    A freeze keeps all objects of the process, also the garbage of a run before. So a block that
    imports next to nothing, as that of a second run does, freezes nothing.
    """
    if not gc.isenabled():  # the caller switched it off, or an outer block did
        yield
        return
    gc.disable()
    num_modules = len(sys.modules)
    try:
        import_arrow()
        yield
    finally:
        if len(sys.modules) - num_modules >= _MANY_MODULES:
            gc.freeze()  # else all of it would be young, and the next collection as long
        gc.enable()


def import_arrow() -> None:
    """Import Arrow without pandas, unless either is there already."""
    known = {"pyarrow", "pandas"} & sys.modules.keys()
    if known or any(importlib.util.find_spec(name) is None for name in ("pyarrow", "pandas")):
        return
    finder = _PandasFinder()
    sys.meta_path.insert(0, finder)
    import pyarrow as pa

    pa.array([0])  # the first array
    finder.hides = False


class _PandasFinder(MetaPathFinder):
    """Hides pandas, and later tells Arrow when somebody imports it."""

    def __init__(self) -> None:
        self.hides = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find pandas as the finders after this one do; raise if it is hidden."""
        if fullname != "pandas":
            return None
        if self.hides:
            raise ModuleNotFoundError("Arrow looks again when pandas is imported", name=fullname)
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _PandasLoader(spec.loader)
        return spec


class _PandasLoader(Loader):
    """Imports pandas, and has Arrow look for it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        import pyarrow as pa

        pa.array([0]).to_pandas()  # needs pandas, so that Arrow looks for it again
