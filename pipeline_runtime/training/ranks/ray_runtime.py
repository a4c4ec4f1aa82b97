"""A rank as a worker of Ray Train, and the monitor as an actor that all ranks reach."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import ray
import ray.train
import ray.train.torch
import torch
from ray.train.backend import Backend
from ray.train.torch import TorchConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.monitor import (
    MAX_OUTPUT_LINES,
    Evaluated,
    HistoryPoint,
    Monitor,
    Order,
    RankSnapshot,
)
from pipeline_runtime.training.ranks.worker import WorkerPlan, train_worker
from pipeline_runtime.training.recorder import Recorder
from pipeline_runtime.training.script import build_environment, find_free_port
from pipeline_runtime.user_output import catching_output


def train_on_ray(config: dict[str, Any]) -> None:
    """Run one rank; Ray Train calls it with the plan and the monitor."""
    plan: WorkerPlan = config["plan"]
    runtime = RayRuntime(config["monitor"], prefixes_output=len(plan.groups) > 1)
    # Ray Train sends the root logger's records to files of its own. What the user logs is shown as
    # on one machine, by the user's own handlers if there are any.
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    try:
        with catching_output(runtime.printed):
            train_worker(plan, runtime)
    finally:
        runtime.push_output()


class RayRuntime:
    """The runtime of a rank in a process of Ray Train's; see `runtime.Runtime`."""

    def __init__(self, monitor: Any, *, prefixes_output: bool) -> None:
        self._monitor = monitor
        self._prefix = f"rank {self.rank}: " if prefixes_output else ""
        self._output: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        self._raylet_pid = os.getppid()

    @property
    def rank(self) -> int:
        return int(ray.train.get_context().get_world_rank())

    @property
    def device(self) -> torch.device:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        device: torch.device = ray.train.torch.get_device()
        return device

    @property
    def environment(self) -> dict[str, str]:
        context = ray.train.get_context()
        return build_environment(
            rank=context.get_world_rank(),
            world_size=context.get_world_size(),
            local_rank=context.get_local_rank(),
            local_world_size=context.get_local_world_size(),
            node_rank=context.get_node_rank(),
        )

    def printed(self, line: str) -> None:
        """Take a line that the user's code printed; the next `push` brings it to the driver."""
        self._output.append(self._prefix + line)

    def push_output(self) -> None:
        """Bring the lines that were printed to the driver."""
        if self._output:
            lines = [self._output.popleft() for _ in range(len(self._output))]
            ray.get(self._monitor.printed.remote(lines))

    def push(self, snapshot: RankSnapshot, points: list[HistoryPoint]) -> Order:
        self.push_output()
        order: Order = ray.get(self._monitor.push.remote(snapshot, points))
        return order

    def take_history(self) -> pa.Table:
        return ray.get(self._monitor.take_history.remote())

    def warn(self, message: str) -> None:
        ray.get(self._monitor.warn.remote(message))

    def evaluated(self, evaluation: Evaluated) -> None:
        ray.get(self._monitor.evaluated.remote(evaluation))

    def fail(self, kind: str, message: str) -> None:
        ray.get(self._monitor.fail.remote(kind, message))

    def check_driver(self) -> None:
        if os.getppid() != self._raylet_pid:
            # The driver and its Ray were killed. Ray takes seconds to end this process, which
            # meanwhile would write and remove checkpoints beside a run that resumes.
            os._exit(1)

    def abort(self) -> None:
        # The loop may hang in a step. Unlike after os._exit, Ray then reports no lost worker.
        ray.kill(ray.get_runtime_context().current_actor)


class ScriptConfig(TorchConfig):
    """Ray Train's settings for a script, which initialises torch.distributed itself."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _AddressOnly


class _AddressOnly(Backend):
    """Tells all ranks where rank 0 is; `RayRuntime.environment` has the rest."""

    share_cuda_visible_devices = True  # so that LOCAL_RANK is the number of the rank's GPU

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        host, port = worker_group.execute_single(0, _find_address)
        worker_group.execute(_set_address, host, port)


def _find_address() -> tuple[str, int]:
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return host, find_free_port()


def _set_address(host: str, port: int) -> None:
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))


def start_monitor(recorder: Recorder) -> Any:
    """Start the actor on the driver's node, which ends with it; it takes no CPU of data work."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_concurrency": 1, "scheduling_strategy": here}
    return ray.remote(Monitor).options(**options).remote(recorder)


def failure_reporter(monitor: Any) -> Callable[[LastmileError], None]:
    """Return a picklable callable that tells the monitor what failed, before a worker raises it."""

    def report(error: LastmileError) -> None:
        ray.get(monitor.fail.remote(type(error).__name__, str(error)))

    return report


def output_reporter(monitor: Any) -> Callable[[list[str]], None]:
    """Return a picklable callable that brings lines of the user's code to the driver."""

    def report(lines: list[str]) -> None:
        monitor.printed.remote(lines)

    return report
