"""The arguments of `Pipeline.loader`: those that it has, and advice for those of other loaders."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from pipeline_runtime.errors import ManifestError, Problem

LastBatch = Literal["keep", "drop", "pad"]

_NO_WORKERS = "reader threads of this process make the batches, so there are no workers to set up"
_NOT_ROW_BY_ROW = (
    "shuffle=True mixes the rows, sample and downsample choose among them, and the ranks of "
    "torch.distributed each get their part without a sampler"
)
# What to write instead of an argument of DataLoader, StatefulDataLoader or of a run.
_ADVICE: Mapping[str, str] = {
    "num_workers": "reader threads of this process make the batches; num_threads limits them",
    "persistent_workers": _NO_WORKERS,
    "worker_init_fn": _NO_WORKERS,
    "multiprocessing_context": _NO_WORKERS,
    "timeout": _NO_WORKERS,
    "prefetch_factor": "batches are made ahead within a fixed memory budget; leave it out",
    "pin_memory": "device='cuda' copies each batch to the GPU through pinned memory, ahead of time",
    "pin_memory_device": "device='cuda' copies each batch to the GPU through pinned memory",
    "collate_fn": (
        "batches come as a tensor for each column; shape rows with steps (padSequence, derive, "
        "map), or change the batch in your loop"
    ),
    "drop_last": "last_batch='drop' leaves out a short last batch, and last_batch='keep' keeps it",
    "sampler": _NOT_ROW_BY_ROW,
    "batch_sampler": _NOT_ROW_BY_ROW,
    "generator": "seed=… decides the order, and set_epoch(…) changes it",
    "in_order": "batches always come in a fixed order; leave it out",
    "dataset": "the pipeline is the dataset; leave it out",
    "snapshot_every_n_steps": "state_dict() is exact after every batch; leave it out",
    "weight_column": "the weight is a column of the batch like any other; name it in columns",
    "label_column": "the label is a column of the batch like any other; name it in columns",
    "epochs": "each loop over the loader is one epoch",
    "ray": "a loader runs without Ray; Pipeline.train runs on it",
}
_TRAINING, _DATASET = "spec.training.", "spec.dataset."
# Fields that messages mention, and the arguments that set them.
_FIELDS: Mapping[str, str] = {
    "training.columns": "columns",
    "dataset.requestKey": "request_key of read_parquet",
    "dataset.requestColumns": "request_columns of read_parquet",
    "windowRows": "window_rows",
    "must be one of None, Row, Request": "must be one of 'none', 'row', 'request'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The options of the delivery of batches; the experiment decides what is in them.

    Attributes:
        last_batch: None for `keep` on one rank, and `pad` on several.
        device: device of the tensors.
        num_threads: reader threads; None for this rank's share of the machine's cores.
        distributed: whether the ranks of torch.distributed share the rows.
    """

    last_batch: LastBatch | None
    device: torch.device
    num_threads: int | None
    distributed: bool


def parse_options(
    *,
    last_batch: str | None,
    device: str | torch.device | int | None,
    num_threads: int | None,
    distributed: bool,
) -> LoaderOptions:
    """Check the arguments.

    Raises ValueError or TypeError.
    """
    if last_batch not in (None, *get_args(LastBatch)):
        raise ValueError(f"last_batch: must be 'keep', 'drop' or 'pad', but is {last_batch!r}")
    if num_threads is not None:
        num_threads = parse_count("num_threads", num_threads, least=1)
    return LoaderOptions(
        last_batch=last_batch,  # type: ignore[arg-type]  # it is one of those
        device=parse_device(device),
        num_threads=num_threads,
        distributed=parse_flag("distributed", distributed),
    )


def parse_device(device: str | torch.device | int | None) -> torch.device:
    """Return the device; None is the CPU.

    Raises ValueError for one that torch does not know, or that this machine lacks.
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"device: must be a device of torch such as 'cpu', 'cuda' or 'cuda:1', but is "
            f"{device!r}"
        ) from None
    if found.type != "cuda":
        return found
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (found.index or 0) >= count:
        raise ValueError(
            f"device: must be a CUDA device of this machine, where torch finds {count}, but is "
            f"{device!r}. Leave it out for the CPU, or check torch and the driver"
        )
    return found


@contextmanager
def naming_arguments(shuffle: object) -> Iterator[None]:
    """Let errors name the arguments of a loader instead of the fields of a manifest.

    Args:
        shuffle: the argument of that name, which may be a mapping of fields.
    """
    try:
        yield
    except ManifestError as error:
        problems = [
            Problem(path=_name_argument(each.path, shuffle), message=_name_fields(each.message))
            for each in error.problems
        ]
        raise ManifestError(problems) from None


def _name_argument(path: str, shuffle: object) -> str:
    if path.startswith(_TRAINING):
        argument, _, below = _to_snake(path.removeprefix(_TRAINING)).partition(".")
        if argument == "shuffle":
            return f"shuffle[{below!r}]" if isinstance(shuffle, Mapping) and below else "shuffle"
        return f"{argument}.{below}" if below else argument
    if path.startswith(_DATASET):
        return f"read_parquet: {_to_snake(path.removeprefix(_DATASET)).removeprefix('parquet.')}"
    return path


def _name_fields(message: str) -> str:
    for field, argument in _FIELDS.items():
        message = message.replace(field, argument)
    return message


def _to_snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def parse_count(name: str, value: object, *, least: int, advice: str = "") -> int:
    """Return an argument that is a whole number, perhaps of numpy.

    Raises TypeError for another type, bool among them, and ValueError for a number below `least`.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name}: must be a whole number, but is {value!r}{advice}")
    if number < least:
        raise ValueError(f"{name}: must be at least {least}, but is {number}{advice}")
    return number


def parse_flag(name: str, value: object) -> bool:
    """Return an argument that is True or False. Raises TypeError for anything else."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: must be True or False, but is {value!r}")
    return value


def refuse_arguments(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise TypeError for arguments that a loader does not have, and say what to write instead."""
    lines = [f"{name}: {_ADVICE.get(name) or _find_similar(name, known)}" for name in names]
    if lines:
        raise TypeError("Pipeline.loader has no such arguments:\n  " + "\n  ".join(lines))


def _find_similar(name: str, known: Sequence[str]) -> str:
    similar = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {similar[0]}?" if similar else f"it has {', '.join(known)}"
