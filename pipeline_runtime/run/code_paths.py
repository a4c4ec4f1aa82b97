"""Makes the user's modules importable, and forgets those of an earlier run in this process."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pipeline_runtime.run.phases import find_process_start

# The user's modules that the caller imported: all that were there before the first run.
_callers: set[str] = set()
_is_caller_known = False


def add_code_paths(paths: Sequence[str]) -> None:
    """Make the user's modules importable here and, by PYTHONPATH, in processes started later.

    A process that runs a second experiment takes that one's code, as it is now: the user's modules
    that a run imported are forgotten before the next one. Those that the caller had imported stay,
    so that classes of its objects are the same, unless one was edited or is to come from elsewhere.
    """
    global _is_caller_known
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*paths, *(path for path in known if path and path not in paths)]
    )
    importlib.invalidate_caches()
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    names = {entry.stem for folder in folders for entry in folder.iterdir()}
    modules = {name: module for name, module in [*sys.modules.items()] if _top(name) in names}
    # The program, and what calls this while it is imported, cannot be missing.
    busy = {"__main__", *(_top(name) for name, module in modules.items() if _is_unfinished(module))}
    mine = [name for name in modules if _top(name) not in busy and _is_the_users(modules[name])]
    outdated = [name for name in mine if _is_outdated(name, modules[name])]
    for name in mine:
        if outdated or (_is_caller_known and name not in _callers):
            del sys.modules[name]
            _callers.discard(name)
        else:
            _callers.add(name)
    _is_caller_known = True


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_unfinished(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _is_the_users(module: ModuleType) -> bool:
    """Return whether a module is not installed, and not one of Lastmile's own."""
    file = getattr(module, "__file__", None)
    installed = (str(Path(os.__file__).parent), str(Path(__file__).parents[2]))
    is_installed = file is None or "-packages" in file or file.startswith(installed)
    return not is_installed


# The change times and sizes of the user's modules, as of the last run in this process.
_versions: dict[str, tuple[float, int]] = {}
# A file system's clock may be behind by its resolution.
_CLOCK_SECONDS = 1.0


def _is_outdated(name: str, module: ModuleType) -> bool:
    """Return whether an import might find other code than the module was made of."""
    file = str(module.__file__)
    try:
        stat = os.stat(file)
    except OSError:
        return True
    version = (stat.st_ctime, stat.st_size)
    before, _versions[file] = _versions.get(file), version
    if before is not None:
        is_edited = before != version
    else:  # Python does not record when it read a file, but not before this process was there
        start = find_process_start()
        is_edited = start is None or stat.st_ctime >= start - _CLOCK_SECONDS
    return is_edited or not _is_found(name, file)


def _is_found(name: str, file: str) -> bool:
    """Return whether an import of this name would find this file."""
    parent = sys.modules.get(name.rpartition(".")[0])
    path = getattr(parent, "__path__", None)
    spec = importlib.machinery.PathFinder.find_spec(name, None if path is None else [*path])
    origin = spec.origin if spec is not None else None
    return origin is not None and os.path.realpath(origin) == os.path.realpath(file)
