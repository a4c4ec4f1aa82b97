"""Advice for a run that has failed for good, by the reason of its end.

The operator writes it into the condition and the event, for `kubectl describe`; `cli.describe`
prints it once, where it prints what to do about everything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from dataset_operator import api

END_ADVICE: Mapping[str, str] = {
    api.BACKOFF_LIMIT_EXCEEDED: "find out why: lastmile artifacts {name} --download FOLDER; edit "
    "resources, env, templates or backoffLimit to go on from the last checkpoint or stored chunk",
    api.DEADLINE_EXCEEDED: "raise activeDeadlineSeconds and apply it again: it goes on from the "
    "last checkpoint or stored chunk; a smaller data set is a new run",
    api.PRE_RUNNING_DEADLINE_EXCEEDED: "see what the pods waited for; ask for less in resources or "
    "templates, or raise preRunningDeadlineSeconds: it goes on from the last checkpoint or chunk",
    api.CHECKPOINT_REFUSED: "do as the driver says, then edit backoffLimit to try again, or apply "
    "it under another name to start anew",
    api.OUTPUT_REFUSED: "do as the driver says: an edit of output.mode or backoffLimit tries "
    "again, another folder is a new run; or apply it under another name to start anew",
}


def advise_on_end(reason: str, name: str) -> str:
    """Return the advice as a clause; "" for a reason that contains its own."""
    return END_ADVICE.get(reason, "").format(name=name)
