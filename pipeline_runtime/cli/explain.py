"""`lastmile explain`: the optimised plan, without running it."""

from __future__ import annotations

import json

from pipeline_runtime.cli.failures import placing
from pipeline_runtime.cli.judging import judge, refuse
from pipeline_runtime.cli.options import (
    DEFAULT_STORAGE_ROOT,
    FilesOption,
    JsonOption,
    SetOption,
    StorageRootOption,
)
from pipeline_runtime.importing import importing


def explain(
    files: FilesOption,
    overrides: SetOption = None,
    storage_root: StorageRootOption = DEFAULT_STORAGE_ROOT,
    as_json: JsonOption = False,
) -> None:
    """Show what is read, which predicates are pushed to the files, what is fused, what runs where.

    Refuses what run would refuse on this machine before it starts, as validate does. Reads footers
    of tables and, to count the rows of an evaluation, the columns of its condition and of the rows'
    identity.
    """
    with importing():
        from pipeline_runtime import plan as planning
        from pipeline_runtime.feed.making.matching import count_roles

    verdict = judge(files, overrides or [], storage_root, opens_tables=True)
    refuse(verdict)
    plans = []
    for manifest, plan in verdict.plans:
        with placing(manifest):
            counts = count_roles(plan, manifest.experiment.spec.training.evaluation)
        plans.append((manifest, plan, counts))
    if as_json:
        documents = [
            {**planning.plan_document(plan), "rows": counts.to_json() if counts else None}
            for _, plan, counts in plans
        ]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
        return
    for manifest, plan, counts in plans:
        if len(plans) > 1:
            print(f"# {manifest.file}: {manifest.experiment.metadata.name}")
        print(planning.explain(plan))
        if counts:
            print(counts.describe())
