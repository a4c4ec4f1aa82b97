"""Participants: Lastmile, the floors, and the peers, each a file as an expert writes it.

A peer whose library is not installed is left out; the results name it and the package to install.
A peer that cannot do the work is left out too, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.dataloading import tuning
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.jobs import Job, Tuning
from benchmarks.dataloading.workloads import FORMS, LAYOUTS

SUBJECT: Final = "lastmile"
LOADER: Final = "loader"  # Lastmile too, in a loop of the user's own
DATALOADER: Final = "dataloader"
FLOOR: Final = "decode floor"
ONE_THREAD_FLOOR: Final = "decode floor, 1 thread"
ROOFLINE: Final = "roofline"
# A process in which Arrow releases memory by its own defaults.
GIVES_BACK: Final = ", memory given back"
# Processes in which epochs run: one that forks, one with Ray, and one for each that has threads of
# its own, beside which a DataLoader could not fork.
PLAIN, RAY = "plain", "ray"


# Cells of loaders that read both layouts, and deliver every row with its user's columns.
FILES: Final = (("flat", "expanded"), ("nested", "expanded"))
# Cells of loaders that can also deliver the columns of a request once.
ALL_CELLS: Final = (*FILES, ("flat", "deduplicated"), ("nested", "deduplicated"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A participant that delivers batches.

    Args:
        host: the kind of process in which it runs.
        opens: module of `loaders` and class; the class takes the workload, and the tuning if the
            peer has one.
        needs: the package to install, and the module by which it is imported.
        candidates: settings to choose from; empty if it has none.
        tuned_like: the peer whose best setting it uses.
        cells: (layout, form) that it supports.
    """

    host: str
    opens: tuple[str, str]
    needs: tuple[str, str] | None = None
    candidates: Callable[[], list[Tuning]] | None = None
    tuned_like: str | None = None
    cells: tuple[tuple[str, str], ...] = (("flat", "expanded"),)

    @property
    def is_installed(self) -> bool:
        """Return whether its library is installed."""
        return self.needs is None or find_spec(self.needs[1]) is not None


LOADERS: Final[Mapping[str, Peer]] = {
    SUBJECT: Peer(host=SUBJECT, opens=("lastmile_loader", "LastmileLoader"), cells=ALL_CELLS),
    LOADER: Peer(host=LOADER, opens=("pipeline_loader", "PipelineLoader"), cells=ALL_CELLS),
    DATALOADER: Peer(
        host=PLAIN,
        opens=("torch_loader", "TorchLoader"),
        candidates=tuning.dataloader_candidates,
        cells=ALL_CELLS,
    ),
    "threads": Peer(host="threads", opens=("threads_loader", "ThreadsLoader"), cells=ALL_CELLS),
    "ray-stock": Peer(host=RAY, opens=("stock_loader", "StockLoader")),
    "ray-tuned": Peer(
        host=RAY,
        opens=("ray_tuned_loader", "RayTunedLoader"),
        candidates=tuning.ray_candidates,
        cells=FILES,
    ),
    "torchdata": Peer(
        host=PLAIN,
        opens=("torchdata_loader", "TorchdataLoader"),
        needs=("torchdata", "torchdata"),
        tuned_like=DATALOADER,
        cells=FILES,
    ),
    "duckdb": Peer(
        host="duckdb", opens=("duckdb_loader", "DuckdbLoader"), needs=("duckdb", "duckdb")
    ),
    "polars": Peer(
        host="polars", opens=("polars_loader", "PolarsLoader"), needs=("polars", "polars")
    ),
    "daft": Peer(host="daft", opens=("daft_loader", "DaftLoader"), needs=("daft", "daft")),
    "datasets": Peer(
        host="datasets",
        opens=("datasets_loader", "DatasetsLoader"),
        needs=("datasets", "datasets"),
        tuned_like=DATALOADER,
    ),
    FLOOR: Peer(host="threads", opens=("floor_loader", "FloorLoader"), cells=FILES),
    ONE_THREAD_FLOOR: Peer(host="threads", opens=("floor_loader", "OneThreadFloor"), cells=FILES),
    ROOFLINE: Peer(host=PLAIN, opens=("frozen", "Frozen")),
}
# Decoding alone, before each round; and the cost of a training step without any loading.
FLOORS: Final = (FLOOR, ONE_THREAD_FLOOR)
COMPARED: Final = tuple(name for name in LOADERS if name not in (*FLOORS, ROOFLINE))
TRAINED: Final = (SUBJECT, DATALOADER, "ray-stock", ROOFLINE)

UNABLE: Final[Mapping[str, str]] = {
    "tf.data": "TensorFlow has no reader of Parquet: its part would be this same pyarrow work "
    "behind a Python generator, and its tensors are not those that the model takes",
    "mosaicml-streaming": "reads shards of its own format (MDS), not Parquet: the table would "
    "have to be written anew, so it is no way to feed from the files that there are",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A loader in one of the cells that it supports."""

    loader: str
    layout: str
    form: str

    def named_for(self, subject: Contender) -> str:
        """Return its name beside a subject, with its cell if that differs from the subject's."""
        if (self.layout, self.form) == (subject.layout, subject.form):
            return self.loader
        return f"{self.loader} ({self.layout}, {self.form})"


def list_contenders(
    loaders: Iterable[str], layouts: Sequence[str] = LAYOUTS, forms: Sequence[str] = FORMS
) -> list[Contender]:
    """List the loaders in all cells of these layouts and forms that they support."""
    return [
        Contender(loader=loader, layout=layout, form=form)
        for loader in loaders
        for layout, form in LOADERS[loader].cells
        if layout in layouts and form in forms
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
                f"--peers: must be among {', '.join(COMPARED[1:])}, got {name!r}"
                + (f": {UNABLE[name]}" if name in UNABLE else "")
            )
        like = LOADERS[name].tuned_like
        if like is not None and like not in (names or ()):
            raise BenchmarkError(
                f"--peers: {name} takes the setting that is found best for {like}: name that, too"
            )
    chosen = COMPARED if names is None else (SUBJECT, *names)
    return tuple(name for name in COMPARED if name in chosen and LOADERS[name].is_installed)


def describe_absent(chosen: Sequence[str]) -> dict[str, str]:
    """Return the reason of each peer that does not take part."""
    return {n: _why_absent(LOADERS[n]) for n in COMPARED if n not in chosen} | dict(UNABLE)


def _why_absent(peer: Peer) -> str:
    if peer.needs and not peer.is_installed:
        return f"not installed: pip install {peer.needs[0]}"
    return "left out by the options of this run"


def describe_versions(chosen: Sequence[str]) -> dict[str, str]:
    """Return the versions of the libraries that only peers need, and of numba, if installed."""
    packages = [LOADERS[name].needs for name in chosen]
    names = [needs[0] for needs in packages if needs] + ["numba"]
    return {name: found for name in names if (found := _version(name))}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def host_of(job: Job) -> str:
    """Return the kind of process for a job: the loader's, or one with Ray if the job needs it."""
    kind = RAY if job.workload.needs_ray else LOADERS[job.loader].host
    return kind if job.keeps_memory else kind + GIVES_BACK


def opener_of(job: Job) -> Callable[[], Any]:
    """Return the function that opens the job's loader; import only its own libraries."""
    peer = LOADERS[job.loader]
    module, name = peer.opens
    opens = getattr(import_module(f"benchmarks.dataloading.loaders.{module}"), name)
    is_tuned = peer.candidates is not None or peer.tuned_like is not None
    return partial(opens, job.workload, job.tuning) if is_tuned else partial(opens, job.workload)
