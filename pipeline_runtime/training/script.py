"""Run an ordinary PyTorch script as a trainer: find it, and execute it as `__main__`.

The script sees what torchrun would give it: its arguments in `sys.argv`, its folder first in
`sys.path`, and the variables of torch.distributed. `current` gives it the run's rows. The driver
checks the script before anything starts; each trainer finds its own copy of the file.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType

import torch.distributed as dist

from pipeline_runtime.config import Training
from pipeline_runtime.errors import Interrupted, TrainingError
from pipeline_runtime.training.current import Run, offering

_FIELD = "spec.training.script"


def check_script(script: str) -> None:
    """Raise TrainingError if the script is missing, or is not Python."""
    _compile(script, find_script(script))


def find_script(script: str) -> Path:
    """Return the script's file, from the folders that modules are imported from.

    Raises TrainingError if there is none.
    """
    for folder in sys.path:
        path = Path(folder or os.curdir, os.path.expanduser(script)).absolute()
        if path.is_file():
            return path
    raise TrainingError(
        f"{_FIELD}: there must be a file {script!r} in the manifest's folder, the working "
        "directory or spec.code.workingDir, but there is none; put it there, or correct the path"
    )


def _compile(script: str, path: Path) -> CodeType:
    try:
        return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = script if error.lineno is None else f"{script}:{error.lineno}"
        raise TrainingError(f"{_FIELD}: {place}: {error.msg}; correct the script") from error
    except (OSError, ValueError) as error:
        raise TrainingError(f"{_FIELD}: {script} cannot be read: {error}") from error


def alone() -> dict[str, str]:
    """Return the variables of torch.distributed for the only rank, which is in this process."""
    return {
        **build_environment(rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_port()),
    }


def find_free_port() -> int:
    """Return a port on which rank 0 can listen."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def build_environment(
    *, rank: int, world_size: int, local_rank: int, local_world_size: int, node_rank: int
) -> dict[str, str]:
    """Return a rank's variables as torchrun sets them, apart from the address of rank 0."""
    values = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_world_size,
        "GROUP_RANK": node_rank,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "TORCHELASTIC_RUN_ID": "lastmile",  # the sign of torchrun for torch and Lightning
    }
    return {name: str(value) for name, value in values.items()}


def run_script(training: Training, run: Run, environment: Mapping[str, str]) -> None:
    """Run the script to its end.

    Raises Interrupted if it ended because the run was asked to stop, whatever the script made of
    that; TrainingError if it exits with a code other than 0; and what the script raises.
    """
    assert training.script is not None
    path = find_script(training.script)
    code = _compile(training.script, path)
    try:
        with offering(run), _as_program(path, training.args, environment) as module:
            exec(code, module.__dict__)
    except SystemExit as end:
        if run.interrupted is None and end.code not in (None, 0):
            raise TrainingError(
                f"{_FIELD}: {training.script} exited with {end.code!r}, which must be 0 or None at "
                "the end of the training; see the output of the script"
            ) from end
    except Exception:
        if run.interrupted is None:
            raise
    finally:
        if run.world_size == 1:  # other ranks' processes end with the run
            _leave_process_group()
    if run.interrupted is not None:
        raise Interrupted(run.interrupted)


@contextmanager
def _as_program(
    path: Path, args: tuple[str, ...], environment: Mapping[str, str]
) -> Iterator[ModuleType]:
    """Yield the module `__main__`, in a process that looks as if Python had started the script."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    main, argv, variables = sys.modules["__main__"], sys.argv, dict(os.environ)
    folder = str(path.parent)
    sys.modules["__main__"], sys.argv = module, [str(path), *args]
    sys.path.insert(0, folder)
    os.environ.update(environment)
    try:
        yield module
    finally:
        sys.modules["__main__"], sys.argv = main, argv
        with suppress(ValueError):  # the script may have removed it
            sys.path.remove(folder)
        for name in environment:
            if name in variables:
                os.environ[name] = variables[name]
            else:
                os.environ.pop(name, None)


def _leave_process_group() -> None:
    """Do what the end of the script's process would have done."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
