"""The only trainer of a run as a thread of this process, without Ray.

Same worker code, rows, checkpoints and history as over Ray (`on_ray`), without the seconds that Ray
and its processes take to start. What user code does to its process it does to this one: if it
crashes, no report is written, as where any script crashes; checkpoints stay, and --resume goes on.
"""

from __future__ import annotations

import threading
import traceback
from pathlib import Path

import torch

from pipeline_runtime.feed.base import FeedSource
from pipeline_runtime.feed.local.process_readers import ProcessReaders
from pipeline_runtime.feed.local.switching import SwitchingReaders
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.monitor import Monitor, MonitorState, Order
from pipeline_runtime.run.training.feeds import (
    build_streams,
    build_thread_streams,
    build_worker_plan,
)
from pipeline_runtime.run.training.prepare import PreparedRun
from pipeline_runtime.training.ranks.local_runtime import Aborted, LocalRuntime, one_torch_thread
from pipeline_runtime.training.ranks.worker import train_worker
from pipeline_runtime.training.recorder import Past, Recorder

# Code that is in Python ends at once; a longer call into a library is left to itself.
ABORT_SECONDS = 2.0
# Where the driver of NVIDIA's GPUs lists them.
_GPUS = Path("/proc/driver/nvidia/gpus")
_NO_CUDA = (
    "the machine has GPUs, but torch finds no CUDA: the model trains on the CPU; check torch and "
    "the driver"
)


class LocalTrainer(threading.Thread):
    """The trainer; see `driver.Trainers`."""

    def __init__(self, run: PreparedRun, past: Past | None = None) -> None:
        super().__init__(name="lastmile-train", daemon=True)
        self._monitor = Monitor(Recorder(past or Past()))
        self._takes_gpu = run.experiment.spec.trainers.gpus_per_replica > 0
        has_cuda = self._takes_gpu and torch.cuda.is_available()
        if self._takes_gpu and not has_cuda and any(_GPUS.glob("*")):
            self._monitor.warn(_NO_CUDA)
        self._processes = ProcessReaders(
            streams=build_streams(run),
            sending=Sending.of(run.plan, to_gpus=has_cuda),
            num_readers=threads_per_rank(1),
        )
        self._plan = build_worker_plan(run, _choose_feeds(run, self._processes))
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Train; called by the thread."""
        try:
            with one_torch_thread():
                runtime = LocalRuntime(self._monitor, takes_gpu=self._takes_gpu)
                train_worker(self._plan, runtime)
        except Aborted:
            pass
        except BaseException as error:  # noqa: BLE001 - the watching thread explains it
            self._error = error
        finally:
            self._processes.close()

    def wait(self, seconds: float) -> bool:
        self.join(seconds)
        return not self.is_alive()

    def read(self) -> MonitorState:
        return self._monitor.read()

    def stop(self) -> None:
        self._monitor.order(Order.STOP)

    def abort(self) -> bool:
        self._monitor.order(Order.ABORT)
        return self.wait(ABORT_SECONDS)

    def explain(self) -> str | None:
        if self._error is None:
            return None
        return "".join(traceback.format_exception(self._error)).rstrip()

    def close(self) -> None:
        """End nothing: its readers have ended with the training."""


def _choose_feeds(run: PreparedRun, processes: ProcessReaders) -> FeedSource:
    choice = run.plan.feed
    if not choice.may_be_threads:
        return processes
    threads = ThreadReaders(streams=build_thread_streams(run), num_threads=threads_per_rank(1))
    return SwitchingReaders(threads=threads, processes=processes) if choice.may_switch else threads
