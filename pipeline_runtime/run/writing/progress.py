"""The progress of written rows, for people; and that of rows which `materialize` keeps.

The latter are written by several jobs, one per commit, before a run begins (`run.materializing`).
Their progress is one: metrics and the shown line go on from job to job.
"""

from __future__ import annotations

from pipeline_runtime.formatting import format_bytes, format_count
from pipeline_runtime.output.job import Job, Progress, Stopped, add_progress
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.run.consumers import Reading
from pipeline_runtime.run.preceding import Preceding
from pipeline_runtime.run.writing.writing_metrics import KEPT_NAMES, WritingCollector


def describe_progress(progress: Progress, planned_rows: int) -> str:
    """Return a line about rows on their way into a table.

    Args:
        planned_rows: rows of the source that are read.
    """
    read, before = progress.rows_read
    parts = [
        progress.phase.lower(),
        f"{100 * min(1.0, read / max(1, planned_rows)):.0f} % read",
        f"{format_count(progress.rows)} rows",
    ]
    if progress.phase == "Spooling" and progress.spooling_seconds:
        parts.append(f"{(read - before) / progress.spooling_seconds:,.0f} rows/s")
    if progress.files_planned:
        parts.append(f"{progress.files}/{progress.files_planned} files")
        parts.append(format_bytes(progress.num_bytes))
    return " · ".join(parts)


class KeepingProgress:
    """Adds up the progress of the jobs that compute the rows of a materialization.

    Args:
        planned_rows: rows of the partitions that are computed.
    """

    def __init__(self, stream: StreamPlan, planned_rows: int, preceding: Preceding) -> None:
        steps = [(index, kind) for index, kind, _ in stream.step_rows]
        self.collector = WritingCollector(steps, planned_rows, names=KEPT_NAMES)
        self._planned_rows = planned_rows
        self._preceding = preceding
        self._before = self._now = Progress()

    def begin(self, job: Job) -> None:
        """Go on with the next job; its feed adds to the same readers' seconds."""
        self._before = self._now
        job.progress.waited, job.progress.usage = self._before.waited, self._before.usage

    def __call__(self, progress: Progress) -> None:
        """Take the present job's progress. Raises Stopped if the user requested it."""
        if progress.phase == "Committed":  # its numbers are those of the whole table
            return
        self._now = add_progress(self._before, progress)
        self.collector.update(self._now)
        line = f"materializing: {describe_progress(self._now, self._planned_rows)}"
        self._preceding.show(Reading(line=line, source=self._now))
        if self._preceding.stop.count and progress.phase in ("Spooling", "Merging"):
            raise Stopped
