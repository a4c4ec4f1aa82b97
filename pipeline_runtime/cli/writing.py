"""`lastmile run` of a manifest with `output`: runs it and shows its progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline_runtime.cli.failures import placing
from pipeline_runtime.cli.options import make_console
from pipeline_runtime.config import LoadedManifest
from pipeline_runtime.output.job import Progress
from pipeline_runtime.report.formats import format_bytes, format_count
from pipeline_runtime.run.logs import LogKeeper
from pipeline_runtime.run.prepare import RunOptions
from pipeline_runtime.run.writing import (
    FinishedTable,
    PreparedTable,
    WritingWatcher,
    write_table,
)

# In a log file or CI, a line this often says enough.
LOG_SECONDS = 10.0
_STOPPING = "stopping; what is written is kept (Ctrl-C again: at once)"


def write(
    manifest: LoadedManifest, text: str, options: RunOptions, log: LogKeeper
) -> FinishedTable:
    """Run the experiment, and show its progress on standard error."""
    console = make_console(stderr=True)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        shown = _Display(console=console, live=live if console.is_terminal else None)

        def on_prepared(run: PreparedTable) -> None:
            shown.show_run(run)
            log.keep(run.run_location)

        watcher = WritingWatcher(
            on_prepared=on_prepared,
            on_metrics_port=lambda port: shown.note(f"metrics: http://127.0.0.1:{port}/metrics"),
            on_progress=shown.show_progress,
            on_stop=lambda count: shown.note(_STOPPING if count == 1 else "stopping at once"),
        )
        with placing(manifest):
            return write_table(manifest.experiment, text, options, watcher)


@dataclass(slots=True)
class _Display:
    """One live line on a terminal, a line now and then in a log."""

    console: Console
    live: Live | None
    _planned_rows: int = 0
    _began: float = field(default_factory=time.monotonic)
    _shown: float = 0.0

    def note(self, text: str) -> None:
        """Print a line above the live one."""
        self.console.print(text, soft_wrap=True)

    def show_run(self, run: PreparedTable) -> None:
        """Print what is about to run."""
        pruning = run.plan.main.scan.pruning
        self._planned_rows = pruning.rows_read
        self.note(
            f"{run.experiment.metadata.name}: run {run.job.record.run_hash}, "
            f"{pruning.rows_read:,} rows in {pruning.row_groups_read} row groups of "
            f"{pruning.files_read} files, to {run.uri}"
        )
        if not run.job.is_new:
            self.note(f"resuming: attempt {run.job.claim.attempt}")
        for warning in (*run.plan.warnings, *run.warnings):
            self.note(f"warning: {warning}")

    def show_progress(self, progress: Progress) -> None:
        """Show how far the run is."""
        now = time.monotonic()
        if self.live is not None:
            self.live.update(Text(self._describe(progress, now), overflow="ellipsis"), refresh=True)
        elif now - self._shown >= LOG_SECONDS:
            self._shown = now
            self.note(self._describe(progress, now))

    def _describe(self, progress: Progress, now: float) -> str:
        read = progress.counts[0].rows if progress.counts else 0
        before = progress.resumed_counts[0].rows if progress.resumed_counts else 0
        parts = [
            progress.phase.lower(),
            f"{100 * min(1.0, read / max(1, self._planned_rows)):.0f} % read",
            f"{(read - before) / max(1e-9, now - self._began):,.0f} rows/s",
            f"{format_count(progress.rows)} rows",
        ]
        if progress.files_planned:
            parts.append(f"{progress.files}/{progress.files_planned} files")
            parts.append(format_bytes(progress.num_bytes))
        return " · ".join(parts)
