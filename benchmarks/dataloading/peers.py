"""Participants: Lastmile, the decode floor, and the peers, each a file as an expert writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any, Final

from benchmarks.dataloading.jobs import BATCHES, ROW_GROUPS, Job, Tuning
from benchmarks.dataloading.workloads import FORMS, LAYOUTS
from benchmarks.harness.errors import BenchmarkError

SUBJECT: Final = "lastmile"
LOADER: Final = "loader"  # Lastmile too, in a loop of the user's own
DATALOADER: Final = "dataloader"
FLOOR: Final = "decode floor"
# Processes in which epochs run: one that forks, one with Ray, and one for each that has threads of
# its own, beside which a DataLoader could not fork.
PLAIN, RAY = "plain", "ray"

_FLAT: Final = (("flat", "expanded"),)
# Cells of loaders that read both layouts, and deliver every row with its user's columns.
_FILES: Final = (*_FLAT, ("nested", "expanded"))
# Cells of loaders that can also deliver the columns of a request once.
_ALL: Final = (*_FILES, ("flat", "deduplicated"), ("nested", "deduplicated"))

_OF_DATALOADER: Final = (
    *(Tuning(unit=unit) for unit in (BATCHES, ROW_GROUPS)),
    *(
        Tuning(workers=workers, prefetch=prefetch, unit=unit)
        for workers, prefetch, unit in product((1, 2, 3, 4), (2, 4, 8), (BATCHES, ROW_GROUPS))
    ),
)
_OF_RAY: Final = tuple(Tuning(groups=groups) for groups in (1, 2, 4, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A participant that delivers batches.

    Args:
        host: the kind of process in which it runs.
        opens: module of `loaders` and class; the class takes the workload, and the tuning if the
            peer has one.
        needs: the package to install, which is imported by the same name.
        candidates: settings to choose from; empty if it has none.
        tuned_like: the peer whose best setting it uses.
        cells: (layout, form) that it supports.
    """

    host: str
    opens: tuple[str, str]
    needs: str | None = None
    candidates: tuple[Tuning, ...] = ()
    tuned_like: str | None = None
    cells: tuple[tuple[str, str], ...] = _FLAT

    @property
    def is_installed(self) -> bool:
        """Return whether its library is installed."""
        return self.needs is None or find_spec(self.needs) is not None


def _engine(name: str) -> Peer:
    return Peer(host=name, opens=(f"{name}_loader", f"{name.capitalize()}Loader"), needs=name)


LOADERS: Final[Mapping[str, Peer]] = {
    SUBJECT: Peer(host=SUBJECT, opens=("lastmile_loader", "LastmileLoader"), cells=_ALL),
    LOADER: Peer(host=LOADER, opens=("pipeline_loader", "PipelineLoader"), cells=_ALL),
    DATALOADER: Peer(
        host=PLAIN, opens=("torch_loader", "TorchLoader"), candidates=_OF_DATALOADER, cells=_ALL
    ),
    "threads": Peer(host="threads", opens=("threads_loader", "ThreadsLoader"), cells=_ALL),
    "ray-stock": Peer(host=RAY, opens=("stock_loader", "StockLoader")),
    "ray-tuned": Peer(
        host=RAY, opens=("ray_tuned_loader", "RayTunedLoader"), candidates=_OF_RAY, cells=_FILES
    ),
    "torchdata": Peer(
        host=PLAIN,
        opens=("torchdata_loader", "TorchdataLoader"),
        needs="torchdata",
        tuned_like=DATALOADER,
        cells=_FILES,
    ),
    "duckdb": _engine("duckdb"),
    "polars": _engine("polars"),
    "daft": _engine("daft"),
    "datasets": Peer(
        host="datasets",
        opens=("datasets_loader", "DatasetsLoader"),
        needs="datasets",
        tuned_like=DATALOADER,
    ),
    FLOOR: Peer(host="threads", opens=("threads_loader", "FloorLoader"), cells=_FILES),
}
COMPARED: Final = tuple(name for name in LOADERS if name != FLOOR)

UNABLE: Final[Mapping[str, str]] = {
    "tf.data": "TensorFlow has no reader of Parquet. It would be this same pyarrow work behind a "
    "Python generator, and its tensors are not those of the model",
    "mosaicml-streaming": "it reads shards of its own format (MDS), not Parquet. The table would "
    "have to be rewritten",
}


@dataclass(frozen=True, slots=True, order=True)
class Contender:
    """A loader in one of the cells that it supports."""

    loader: str
    layout: str = "flat"
    form: str = "expanded"

    def __str__(self) -> str:
        return f"{self.loader} ({self.layout}, {self.form})"

    def named_for(self, subject: Contender) -> str:
        """Return its name beside a subject, with its cell if that differs from the subject's."""
        if (self.layout, self.form) == (subject.layout, subject.form):
            return self.loader
        return str(self)

    def is_compared_with(self, subject: Contender) -> bool:
        """Return whether a subject is compared with it: in the same cell, and deduplicated batches
        also with usual ones on flat files. A decode floor has no form."""
        if self.layout == subject.layout and self.loader == FLOOR:
            return subject.form == "expanded"
        is_usual = (self.layout, self.form) == _FLAT[0] and self.loader in (DATALOADER, "ray-stock")
        is_same = (self.layout, self.form) == (subject.layout, subject.form)
        return self.loader != SUBJECT and (is_same or (subject.form == "deduplicated" and is_usual))


def list_contenders(
    loaders: Iterable[str], layouts: Sequence[str] = LAYOUTS, forms: Sequence[str] = FORMS
) -> list[Contender]:
    """List the loaders in all cells of these layouts and forms that they support."""
    return [
        Contender(loader, layout, form)
        for loader in loaders
        for layout, form in LOADERS[loader].cells
        if layout in layouts and (form in forms or loader == FLOOR)
    ]


def choose_installed(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the subject and the installed peers, in their order.

    Args:
        names: the requested peers; None for all.

    Raises:
        BenchmarkError: a requested peer is unknown, cannot do the work, or uses the best setting of
            another one that was not requested.
    """
    for name in names or ():
        if name not in COMPARED:
            raise BenchmarkError(
                f"--peers: must be among {', '.join(COMPARED[1:])}, but got {name!r}"
                + (f": {UNABLE[name]}." if name in UNABLE else ".")
            )
        like = LOADERS[name].tuned_like
        if like is not None and like not in (names or ()):
            raise BenchmarkError(
                f"--peers: {name} uses the best setting of {like}, which is missing. Add {like}."
            )
    chosen = COMPARED if names is None else (SUBJECT, *names)
    return tuple(name for name in COMPARED if name in chosen and LOADERS[name].is_installed)


def describe_missing(names: Sequence[str] | None) -> dict[str, str]:
    """Return the reason of each requested peer (None: all) that cannot take part."""
    found = [name for name in names or COMPARED if not LOADERS[name].is_installed]
    missing = {name: f"not installed: pip install {LOADERS[name].needs}" for name in found}
    return missing if names else missing | dict(UNABLE)


def host_of(job: Job) -> str:
    """Return the kind of process for a job: the loader's, or one with Ray if the job needs it."""
    return RAY if job.workload.needs_ray else LOADERS[job.loader].host


def opener_of(job: Job) -> Callable[[], Any]:
    """Return the function that opens the job's loader; import only its own libraries."""
    peer = LOADERS[job.loader]
    module, name = peer.opens
    opens = getattr(import_module(f"benchmarks.dataloading.loaders.{module}"), name)
    is_tuned = bool(peer.candidates or peer.tuned_like)
    return partial(opens, job.workload, job.tuning) if is_tuned else partial(opens, job.workload)
