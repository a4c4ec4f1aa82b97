"""The plan for people: what is read, pushed to the files and fused, and what runs where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline_runtime.formatting import format_bytes
from pipeline_runtime.materialization.lookup import Completeness
from pipeline_runtime.plan.mixing import Mixing, count_units
from pipeline_runtime.plan.model import Plan, PlannedStep, Stage, StreamPlan


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: `stages` of the main stream, the scan, and `text` as printed."""
    stream = plan.main
    return {
        "version": 1,
        "table": stream.table.description,
        "rowIdentity": str(stream.identity),
        "readColumns": list(stream.read_columns),
        "tableColumns": list(stream.table.schema.names),
        "pushedPredicates": list(stream.pushed),
        "scan": scan_document(stream),
        "stages": [
            _stage_document(index, stage, plan) for index, stage in enumerate(stream.stages)
        ],
        "batchColumns": {field.name: str(field.type) for field in stream.output_schema},
        "feed": {"engine": plan.feed.engine, "reason": plan.feed.reason},
        "preserveOrder": plan.preserve_order,
        **plan.consumer.document(plan),
        "snapshots": [pin.model_dump(by_alias=True, exclude_none=True) for pin in plan.pins],
        "models": [pin.model_dump(by_alias=True, exclude_none=True) for pin in plan.models],
        **_rows_document(plan),
        "warnings": list(plan.warnings),
        "text": explain(plan),
    }


def scan_document(stream: StreamPlan) -> dict[str, int]:
    """The counts of a stream's scan, as `plan.json` has them."""
    pruning = stream.scan.pruning
    return {
        "files": pruning.files_total,
        "filesRead": pruning.files_read,
        "rowGroups": pruning.row_groups_total,
        "rowGroupsRead": pruning.row_groups_read,
        "rows": pruning.rows_total,
        "rowsRead": pruning.rows_read,
    }


def _stage_document(index: int, stage: Stage, plan: Plan) -> dict[str, Any]:
    steps = [
        {"kind": step.kind, "label": step.label, "notes": _notes(step, plan)}
        for step in stage.steps
    ]
    if index == 0:
        read = {
            "kind": "read",
            "label": plan.main.table.description,
            "notes": _read_notes(plan.main),
        }
        steps.insert(0, read)
    return {"name": stage.name, "where": _where(stage), "steps": steps}


def _where(stage: Stage) -> str:
    if stage.resources is None and stage.concurrency is None:
        return "data workers, 1 CPU a task"
    resources = stage.resources
    given = {
        "CPU": resources.cpu if resources else None,
        "GPU": resources.gpu if resources else None,
        "bytes of memory": resources.memory_bytes if resources else None,
    }
    parts = [f"{value} {name}" for name, value in given.items() if value is not None]
    parts += [f"{stage.concurrency} at once"] if stage.concurrency else []
    return "data workers, tasks of their own: " + ", ".join(parts)


def _read_notes(stream: StreamPlan) -> list[str]:
    pruning, total = stream.scan.pruning, len(stream.table.schema)
    notes = [
        f"columns: {len(stream.read_columns)} of {total}: {', '.join(stream.read_columns)}",
        f"files: {pruning.files_read} of {pruning.files_total}, row groups: "
        f"{pruning.row_groups_read} of "
        f"{pruning.row_groups_total}, rows: {pruning.rows_read:,} of {pruning.rows_total:,}",
    ]
    notes += stream.scan.notes
    notes += [f"pushed to the files: {text}" for text in stream.pushed]
    if stream.first_look is not None:
        names = ", ".join(stream.first_look.columns) or "the row identity"
        notes.append(
            "read first, once a fifth of the rows is in row groups or long runs that filters leave "
            f"nothing of: {names}"
        )
    if stream.reads_ahead:
        notes.append("from a store: the next rows are read while those before are worked on")
    if stream.mixing is not None:
        notes.append(_describe_mixing(stream, stream.mixing))
    if stream.sharing.reason:
        notes.append(stream.sharing.reason)
    if not stream.kernels:
        notes.append("lists copied item by item, since pipelineOptions.debug.kernels is false")
    return [*notes, f"row identity: {stream.identity}"]


def _describe_mixing(stream: StreamPlan, mixing: Mixing) -> str:
    units = stream.scan.units
    num_units = min(len(units), count_units(units, stream.chunk_rows))
    num_bytes = num_units * sum(unit.num_bytes for unit in units) // max(1, len(units))
    size = f"{num_units} row groups at a time, {format_bytes(num_bytes)} uncompressed"
    windows = ""
    if mixing.num_windows > 1:
        windows = f"; {mixing.residues} residues of joins by bucket in {mixing.num_windows} windows"
    return f"neighbouring rows are alike (sorted, bucketed, partitioned): mixes {size}{windows}"


def _notes(step: PlannedStep, plan: Plan) -> list[str]:
    notes = list(step.notes)
    if (side := step.transform.side_table) is not None:
        how = "read once and broadcast" if plan.broadcast else "read by each worker, once"
        if side.parts is not None:
            how = "read part by part as rows need it"
        notes.append(f"side table {side.description}: {side.num_rows:,} rows, {how}; no shuffle")
        notes += side.notes
        notes += side.parts.describe(plan.main.scan.units) if side.parts is not None else ()
    way = step.transform.way
    return [*notes, way] if way else notes


def explain(plan: Plan) -> str:
    """The plan as text."""
    stream = plan.main
    lines = [f"Materialization: {line}" for line in _explain_rows(plan.materialization)]
    lines += [f"Backfill: {line}" for line in _explain_rows(plan.backfill)]
    lines += [f"Plan of the {stream.role} stream over {stream.table.description}"]
    for index, stage in enumerate(stream.stages):
        lines += _stage_lines(index, stage, plan)
    lines += plan.consumer.describe(plan)
    lines += [f"Warning: {warning}" for warning in plan.warnings]
    return "\n".join(lines)


def _explain_rows(found: Completeness | None) -> Iterator[str]:
    if found is not None:
        yield from found.explain()


def _rows_document(plan: Plan) -> dict[str, Any]:
    kept, backfill = plan.materialization, plan.backfill
    documents = {}
    if kept is not None:
        documents["materialization"] = {
            **_completeness_document(kept),
            "recipeChanges": list(kept.changes),
        }
    if backfill is not None:
        documents["backfill"] = _completeness_document(backfill)
    return documents


def _completeness_document(found: Completeness) -> dict[str, Any]:
    return {
        "state": found.state,
        "table": found.table,
        "snapshotId": None if found.snapshot_id is None else str(found.snapshot_id),
        "recipe": found.recipe.hash,
        "partitions": len(found.wanted),
        "missing": dict(found.missing),
    }


def _stage_lines(index: int, stage: Stage, plan: Plan) -> list[str]:
    steps = _stage_document(index, stage, plan)["steps"]
    fused = "one task, fused" if len(steps) > 1 else "one task"
    lines = [f"Stage {index}: {fused} ({_where(stage)})"]
    for step in steps:
        lines.append(f"  {step['kind']} {step['label']}".rstrip())
        lines += [f"      {note}" for note in step["notes"]]
    return lines
