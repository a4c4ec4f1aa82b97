"""Controls of work that precedes a run: it begins before the run's folder and consumer are known.

Such work is the computation of rows that a step `materialize` keeps (`materializing`). `session`
serves its metrics, catches signals, and shows its progress.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.stop_signals import StopRequest

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from pipeline_runtime.run.consumers import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Preceding:
    """Controls of such work; by default, nothing is shown or served.

    Attributes:
        stop: requests of the user; it is looked at often.
        show: takes each reading.
        watch: returns a context, in which the metrics are served and signals caught. Ray, if it is
            needed, must be connected before, since it sets a signal handler of its own.
    """

    phases: Phases = field(default_factory=Phases)
    stop: StopRequest = field(default_factory=StopRequest)
    show: Callable[[Reading], None] = field(default=lambda reading: None)
    watch: Callable[[Collector], AbstractContextManager[None]] = field(
        default=lambda collector: nullcontext()
    )
