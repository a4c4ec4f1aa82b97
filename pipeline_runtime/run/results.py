"""Files that every run leaves, whatever its consumer: plan, manifest, summary, report.

The same files are copied to the artifacts store: plan and manifest before the work starts, so that
they exist even if the run is killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline_runtime import report
from pipeline_runtime.errors import AlreadyComplete, StoreError
from pipeline_runtime.files import write_atomically
from pipeline_runtime.plan import Plan, plan_document
from pipeline_runtime.report.files.plan_file import PLAN_FILE
from pipeline_runtime.report.files.summary import SUMMARY_FILE
from pipeline_runtime.run.claims import point_latest
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import read_file, write_files

REPORT_FILE = "report.html"
# A summary has about 10 KiB; even with many warnings and steps it is far smaller than this.
MAX_SUMMARY_BYTES = 16 << 20


def build_planned(plan: Plan, manifest: str) -> dict[str, bytes]:
    """Return the files that are known before a run begins."""
    text = json.dumps(plan_document(plan), indent=2)
    return {PLAN_FILE: text.encode(), "manifest.yaml": manifest.encode()}


def begin_folder(folder: Path, planned: Mapping[str, bytes], *, is_latest: bool) -> str | None:
    """Write the files that are known before a run begins, and remove an earlier attempt's report.

    So the folder of a run that is killed has no report, rather than one of another attempt. Returns
    a warning if the link cannot be made.

    Args:
        is_latest: whether `latest` beside the folder is to be a link to it.

    Raises OSError.
    """
    for name in (SUMMARY_FILE, REPORT_FILE):
        (folder / name).unlink(missing_ok=True)
    for name, content in planned.items():
        write_atomically(folder / name, content)
    return point_latest(folder) if is_latest else None


def write_results(planned: Mapping[str, bytes], output: Path, summary: report.Summary) -> None:
    """Write all files of a report into a folder of this machine. Raises OSError."""
    for name, content in planned.items():
        write_atomically(output / name, content)
    report.write_summary(output, summary)
    report.build_report(output)


def keep_files(files: Mapping[str, bytes], location: Location) -> str | None:
    """Copy files to the artifacts store; return a warning if the store refuses."""
    try:
        write_files(location, files, "copy the report there")
    except StoreError as error:
        return str(error)
    return None


def keep_results(
    names: tuple[str, ...], output: Path, location: Location, summary: report.Summary
) -> report.Summary:
    """Copy a report to the artifacts store; return its summary, with a warning if that failed."""
    problem = keep_files({name: (output / name).read_bytes() for name in names}, location)
    if problem is None:
        return summary
    summary = summary.model_copy(update={"warnings": (*summary.warnings, problem)})
    report.write_summary(output, summary)
    return summary


def check_not_complete(run: Location, uri: str = "") -> None:
    """Raise AlreadyComplete if the report says so; a last checkpoint does not prove it.

    Args:
        run: folder of the run.
        uri: what it would resume from, for the message.
    """
    text = read_file(run.join(SUMMARY_FILE), "read the report", MAX_SUMMARY_BYTES)
    if text is None:
        return
    try:
        outcome = json.loads(text)["run"]["outcome"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # the report is damaged
    if outcome == "Complete":
        raise AlreadyComplete(
            f"{uri or run.uri}: the run is complete, and there is nothing to resume; see its "
            "report",
            summary=text.decode(),
        )
