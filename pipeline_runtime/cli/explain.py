"""`lastmile explain`: the optimised plan, without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline_runtime.cli.failures import placing
from pipeline_runtime.cli.judging import judge, refuse
from pipeline_runtime.cli.options import (
    DEFAULT_STORAGE_ROOT,
    FilesOption,
    JsonOption,
    SetOption,
    StorageRootOption,
    find_storage_root,
)
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.importing import importing

if TYPE_CHECKING:  # these import Arrow, which --help does without
    from pipeline_runtime.config import LoadedManifest
    from pipeline_runtime.plan import Plan


def explain(
    files: FilesOption,
    overrides: SetOption = None,
    storage_root: StorageRootOption = DEFAULT_STORAGE_ROOT,
    measures: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="With a step materialize whose table lacks rows: measure on a sample whether "
            "keeping them pays.",
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Show what is read, which predicates are pushed to the files, what is fused, what runs where.

    Refuses what run would refuse on this machine before it starts, as validate does. Reads footers
    of tables and, to count the rows of an evaluation, the columns of its condition and of the rows'
    identity. With a step materialize whose table lacks rows, it also runs the steps on a sample,
    for some seconds.
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
        advice = _measure(manifest, plan, storage_root) if measures else _Measured()
        plans.append((manifest, plan, counts, advice))
    if as_json:
        documents = [
            {
                **planning.plan_document(plan),
                "rows": counts.to_json() if counts else None,
                **advice.document,
            }
            for _, plan, counts, advice in plans
        ]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
        return
    for manifest, plan, counts, advice in plans:
        if len(plans) > 1:
            print(f"# {manifest.file}: {manifest.experiment.metadata.name}")
        for line in advice.lines:
            print(f"Materialization: {line}")
        print(planning.explain(plan))
        if counts:
            print(counts.describe())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Advice whether materializing pays, as lines and as a part of the JSON."""

    lines: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)


def _measure(manifest: LoadedManifest, plan: Plan, storage_root: str) -> _Measured:
    """Measure whether materializing pays; a sample that fails is reported, since a run may work."""
    if plan.materialization is None:
        return _Measured()
    with importing():
        from pipeline_runtime.run.advising import measure_advice

    root = find_storage_root(manifest, storage_root)
    try:
        advice = measure_advice(manifest.experiment, plan, root)
    except LastmileError as error:
        return _Measured(lines=(f"whether it pays could not be measured: {error}",))
    if advice is None:
        return _Measured()
    document = {"materializationAdvice": advice.to_json()}
    return _Measured(lines=tuple(advice.explain()), document=document)
