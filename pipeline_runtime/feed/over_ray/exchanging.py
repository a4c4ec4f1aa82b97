"""The exchange of a join's side table by tasks of Ray, before the first reader starts.

Each task writes some units of the side table below a folder that every node reaches; readers open
the parts there. `plan.exchange` has the work of a task, and does all of it where there is no Ray.
"""

from __future__ import annotations

import atexit
from functools import partial
from typing import Any

import pyarrow as pa
import ray

from pipeline_runtime.plan.bucketed_sides import BucketedParts
from pipeline_runtime.plan.exchange import Exchange, ExchangedParts
from pipeline_runtime.sources import Location, Unit
from pipeline_runtime.sources.durable import make_folder
from pipeline_runtime.sources.stores import asking

# Units of one task at least; a task writes a file or more, and each reader of a part opens them.
_UNITS_PER_TASK = 8
_MAX_TASKS = 64
# Times that a task whose worker dies is tried again; as many as a group of rows.
_MAX_RETRIES = 10

# The exchanges of this process: training and evaluation, and the datasets of all ranks, share one.
_done: dict[tuple[str, str], BucketedParts] = {}


def exchange_by_tasks(
    parts: ExchangedParts, folder: Location, labels: dict[str, str] | None = None
) -> BucketedParts:
    """Write the parts of a side table below a folder of the run, and return them.

    The files are deleted when this process ends.

    Args:
        labels: of the nodes that may work on it.

    Raises:
        LastmileError: the side table cannot be read, or a part cannot be written.
    """
    key = (parts.digest, folder.uri)
    if key not in _done:
        place = folder.join(f"exchange-{parts.digest}")
        with asking(place.uri, "write the parts of a side table"):
            make_folder(place)
        atexit.register(partial(_delete, place))
        units = parts.exchange.units
        shares = parts.exchange.split(min(_MAX_TASKS, -(-len(units) // _UNITS_PER_TASK)))
        remote: Any = ray.remote(_write)
        task = remote.options(num_cpus=1, max_retries=_MAX_RETRIES, label_selector=labels)
        # A task that is tried again writes the same files; the order of units is the table's.
        written = ray.get([task.remote(share, place, f"{n}-") for n, share in enumerate(shares)])
        every = [unit for part in written for unit in part]
        _done[key] = parts.exchange.build_parts(every, place.path, place.filesystem)
    return _done[key]


def _write(share: Exchange, place: Location, prefix: str) -> tuple[Unit, ...]:
    return share.write(place.path, place.filesystem, prefix)


def _delete(place: Location) -> None:
    try:
        place.filesystem.delete_dir(place.path)
    except (OSError, pa.ArrowException):
        return  # the run's folder goes with the run, if not before
