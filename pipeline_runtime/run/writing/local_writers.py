"""Writers on this machine, without Ray: threads, or processes if a step calls Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pipeline_runtime.feed.local.process_readers import ProcessReaders
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.output.job import ROLE, Writers
from pipeline_runtime.output.merge import MergeInThreads
from pipeline_runtime.plan import Plan


@contextmanager
def open_local_writers(plan: Plan, stream: Stream) -> Iterator[Writers]:
    """Yield as many writers as this process may use cores."""
    num_writers = threads_per_rank(1)
    merge = MergeInThreads(num_writers)
    if plan.feed.may_be_threads:
        threads = ThreadReaders(streams={ROLE: stream}, num_threads=num_writers)
        with _limit_torch():
            yield Writers(feed=threads, merge=merge)
        return
    processes = ProcessReaders(
        streams={ROLE: stream}, sending=Sending.of(plan), num_readers=num_writers
    )
    try:
        yield Writers(feed=processes, merge=merge)
    finally:
        processes.close()


def _limit_torch() -> AbstractContextManager[None]:
    """Have a torch model compute with one thread, since there is a writer for each core.

    A plan that calls such a model has imported torch.
    """
    if "torch" not in sys.modules:
        return nullcontext()
    from pipeline_runtime.training.ranks.local_runtime import one_torch_thread

    return one_torch_thread()
