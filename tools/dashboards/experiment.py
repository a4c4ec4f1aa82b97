"""One experiment: its progress, the waits of its GPUs, the autoscaler's decisions, its tables.

What the driver serves has the labels `namespace` and `experiment` by the relabelling of
docs/operating/observe.md; `_head` takes it once, should two targets tell the same.
"""

from __future__ import annotations

from tools.dashboards.panels import Board, Mark, Panel, Query, Row, Step

_WHICH = 'namespace="$namespace", experiment="$experiment"'
_RATE = "$__rate_interval"


def _status(name: str, matchers: str = "", *labels: str) -> str:
    """A metric of the operator, once."""
    where = ", ".join(filter(None, (_WHICH, matchers)))
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by} (lastmile_experiment_{name}{{{where}}})"


def _head(name: str, *labels: str, matchers: str = "") -> str:
    """A gauge of the driver."""
    where = ", ".join(filter(None, (_WHICH, matchers)))
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by} (lastmile_{name}{{{where}}})"


def _pace(name: str, *labels: str) -> str:
    """Return the rate per second of a counter of the driver."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by} (rate(lastmile_{name}{{{_WHICH}}}[{_RATE}]))"


def _gpus(matchers: str) -> str:
    """Return the utilisation of each GPU, as a share of 1."""
    return f"max by (pod, GpuIndex) (ray_node_gpus_utilization{{{_WHICH}, {matchers}}}) / 100"


# Roles of the pods of inference workers.
_INFERENCE = "inference-.+"
_LOOP = _pace("run_loop_seconds_total")
# Beginnings of the names of metrics: of `output`, and of the step materialize while it computes.
WRITERS = ("output", "materialization")
_WAITS = Step(value=0.05, colour="orange")


_NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Phase",
            description="As `kubectl get dsexp` prints it; `kubectl lastmile describe` says why.",
            kind="stat",
            shows_label=True,
            queries=(Query(expr=_status("phase", "", "phase"), legend="{{phase}}"),),
            width=4,
        ),
        Panel(
            title="Progress",
            description="Share of the run's rows that were read.",
            kind="stat",
            unit="percentunit",
            top=1,
            queries=(Query(expr=_head("progress_ratio")),),
            width=4,
        ),
        Panel(
            title="Left",
            description="Time till the end, at the pace of the last minute.",
            kind="stat",
            unit="s",
            queries=(Query(expr=_head("estimated_remaining_seconds")),),
            width=4,
        ),
        Panel(
            title="Waits for data",
            description="Share of the trainers' last minute spent waiting for rows that no data "
            "worker had made yet. Near 0: the GPUs are fed.",
            kind="stat",
            unit="percentunit",
            steps=(_WAITS, Step(value=0.25, colour="red")),
            queries=(Query(expr=_head("production_wait_ratio")),),
            width=4,
        ),
        Panel(
            title="Since the last checkpoint",
            description="What a crash now would cost, as time; before the first checkpoint of an "
            "attempt it counts from its beginning.",
            kind="stat",
            unit="s",
            steps=(Step(value=900, colour="yellow"), Step(value=1800, colour="red")),
            queries=(Query(expr=f"time() - {_head('run_kept_timestamp_seconds')}"),),
            width=4,
        ),
        Panel(
            title="Failed attempts",
            description="Of the present run; at its backoffLimit it is given up.",
            kind="stat",
            steps=(Step(value=1, colour="orange"),),
            queries=(Query(expr=_status("failed_attempts_total")),),
            width=4,
        ),
    ),
)

_TRAINING = Row(
    title="Training",
    panels=(
        Panel(
            title="Loss",
            description="What the entrypoint reports on rank 0 under a name with `loss` in it.",
            unit="",
            from_zero=False,
            queries=(
                Query(
                    expr=_head("training_metric", "name", matchers='name=~".*loss.*"'),
                    legend="{{name}}",
                ),
            ),
        ),
        Panel(
            title="Its other metrics",
            description="What else the entrypoint reports, the first 16 names in order.",
            unit="",
            from_zero=False,
            queries=(
                Query(
                    expr=_head("training_metric", "name", matchers='name!~".*loss.*"'),
                    legend="{{name}}",
                ),
            ),
        ),
        Panel(
            title="Rows per second",
            description="Rows that all trainers took, or that were stored in the table.",
            unit="rowsps",
            queries=(Query(expr=_pace("run_rows_total"), legend="rows"),),
        ),
        Panel(
            title="Time of a step",
            description="The loop's time for a step without pauses, on average, and the last step "
            "of the slowest rank, waits left out. Far apart: steps wait.",
            unit="s",
            queries=(
                Query(expr=f"{_LOOP} / {_pace('run_steps_total')}", legend="of the loop, mean"),
                Query(expr=_head("step_seconds"), legend="last step, slowest rank"),
            ),
        ),
        Panel(
            title="Epoch",
            description="The epoch that is being trained, from 0, and the attempts so far.",
            unit="",
            queries=(
                Query(expr=_head("epoch"), legend="epoch"),
                Query(expr=_status("attempts_total"), legend="attempts"),
            ),
        ),
        Panel(
            title="Checkpoints",
            description="Written, and failed, since the attempt began.",
            unit="",
            queries=(
                Query(expr=_head("checkpoints_total"), legend="written"),
                Query(expr=_head("checkpoint_failures_total"), legend="failed"),
            ),
        ),
    ),
)

_GPUS = Row(
    title="Why GPUs wait",
    panels=(
        Panel(
            title="GPU utilisation",
            description="The mean of the trainers' GPUs as the operator reads it, each GPU as Ray "
            "tells it, and the share of time that trainers spend in their steps, which "
            "is there without GPUs too.",
            unit="percentunit",
            top=1,
            queries=(
                Query(expr=_status("gpu_utilization_ratio"), legend="mean"),
                Query(
                    expr=_gpus(f'role!~"{_INFERENCE}"'),
                    legend="{{pod}} {{GpuIndex}}",
                ),
                Query(expr=_head("trainer_busy_ratio"), legend="trainers in steps"),
            ),
        ),
        Panel(
            title="Wait by stage",
            description="Share of the training loop spent waiting, the slowest rank at each step: "
            "production is cured by data workers, transfer by the network, collate and "
            "batching by the trainer's CPUs.",
            kind="stack",
            unit="percentunit",
            top=1,
            steps=(_WAITS,),
            queries=(
                Query(
                    expr=f"{_pace('run_wait_seconds_total', 'stage')} "
                    f"/ on () group_left () ({_LOOP} > 0)",
                    legend="{{stage}}",
                ),
            ),
        ),
        Panel(
            title="What readers do",
            description="Readers by what they do. blocked_output: rows are made that nobody takes "
            "yet, so there are enough; inference: they wait for inference workers; idle: nothing "
            "is left to lease.",
            kind="stack",
            queries=(Query(expr=_pace("run_worker_seconds_total", "state"), legend="{{state}}"),),
        ),
        Panel(
            title="Cores by step",
            description="Cores of data workers that each step of the pipeline keeps busy: where a "
            "faster step would save workers.",
            kind="stack",
            queries=(Query(expr=_pace("step_busy_seconds_total", "step"), legend="{{step}}"),),
        ),
        Panel(
            title="Rows by step",
            description="Rows per second that each step gives out, to show which steps drop rows.",
            unit="rowsps",
            queries=(Query(expr=_pace("step_output_rows_total", "step"), legend="{{step}}"),),
        ),
        Panel(
            title="Chunks that wait",
            description="Chunks that wait to be cut into batches, by rank. Always 0 and trainers "
            "that wait: rows come too late.",
            unit="",
            queries=(Query(expr=_head("queue_length", "rank"), legend="rank {{rank}}"),),
        ),
    ),
)

_WORKERS = Row(
    title="Data workers",
    panels=(
        Panel(
            title="Data workers",
            description="Wanted, there, and at work, within the spec's bounds. The marks are the "
            "autoscaler's decisions, with their reason.",
            unit="",
            queries=(
                Query(
                    expr=_status("data_workers", 'state!="draining"', "state"), legend="{{state}}"
                ),
                Query(expr=_status("data_workers_limit", "", "limit"), legend="{{limit}}"),
            ),
            width=12,
        ),
        Panel(
            title="Draining",
            description="Data workers on their way out: they hand over what they hold, two minutes "
            "at most.",
            unit="",
            queries=(Query(expr=_status("data_workers", 'state="draining"'), legend="draining"),),
            width=6,
        ),
        Panel(
            title="What limits the number",
            description="Why the number of data workers is not another one; nothing: it is what it "
            "should be.",
            unit="",
            queries=(
                Query(
                    expr=_status("condition", 'type="ScalingLimited"', "reason") + " == 1",
                    legend="{{reason}}",
                ),
            ),
            width=6,
        ),
    ),
)

_SERVING = Row(
    title="Inference workers",
    panels=(
        Panel(
            title="Inference workers",
            description="Inference workers of each group that take requests: one for each GPU, or "
            "for each pod without any.",
            unit="",
            queries=(Query(expr=_head("inference_workers", "group"), legend="{{group}}"),),
            width=6,
        ),
        Panel(
            title="Rows scored per second",
            description="Rows that the models of each group scored; a row counts once for each "
            "model.",
            unit="rowsps",
            queries=(Query(expr=_pace("inference_rows_total", "group"), legend="{{group}}"),),
            width=6,
        ),
        Panel(
            title="Busy inference workers",
            description="Share of the inference workers' time spent in their models, and "
            "utilisation of their GPUs. Busy workers with idle GPUs: the batches are small, or "
            "the model works on the CPU.",
            unit="percentunit",
            top=1,
            queries=(
                Query(
                    expr=f"{_pace('inference_busy_seconds_total', 'group')} "
                    f"/ on (group) ({_head('inference_workers', 'group')} > 0)",
                    legend="{{group}}",
                ),
                Query(expr=_gpus(f'role=~"{_INFERENCE}"'), legend="{{pod}} {{GpuIndex}}"),
            ),
            width=6,
        ),
        Panel(
            title="Requests that wait",
            description="Requests of data workers that wait at inference workers. Always 0: data "
            "workers are the slower side. Many, and busy workers: more inference workers "
            "would help.",
            unit="",
            queries=(Query(expr=_head("inference_waiting_requests", "group"), legend="{{group}}"),),
            width=6,
        ),
    ),
)

_MIB = 1 << 20


def _writer(name: str, *labels: str) -> str:
    """Return a metric of the table of `output`, or of the rows that `materialize` computes."""
    return " or ".join(_head(f"{prefix}_{name}", *labels) for prefix in WRITERS)


_TABLES = Row(
    title="Tables: written, kept and read",
    panels=(
        Panel(
            title="Files",
            description="Files that were written, of the table of `output` or of the rows that "
            "`materialize` computes. They appear in the phase Merging.",
            unit="",
            queries=(Query(expr=_writer("files"), legend="files"),),
        ),
        Panel(
            title="Mean size of a file",
            description="Bytes of these files, by their number. Files far below "
            "targetFileSizeBytes, and many of them: too many partitions or buckets for "
            "the rows.",
            unit="bytes",
            steps=(Step(value=0, colour="orange"), Step(value=16 * _MIB, colour="green")),
            queries=(
                Query(expr=f"({_writer('bytes')}) / ({_writer('files')} > 0)", legend="mean size"),
            ),
        ),
        Panel(
            title="Commits",
            description="Commits to a catalog since the attempt began, and the attempts at them "
            "that another writer was faster than. Each of those waits up to five seconds; after "
            "ten minutes of them the attempt at the run fails.",
            unit="",
            queries=(
                Query(expr=_writer("commits_total"), legend="commits"),
                Query(expr=_writer("commit_retries_total"), legend="tried again"),
            ),
        ),
        Panel(
            title="Partitions",
            description="Partitions of the source that a backfill writes, or that the run needs at "
            "its step `materialize`, and those of them that are committed.",
            unit="",
            queries=(
                Query(expr=_writer("partitions"), legend="needed"),
                Query(expr=_writer("complete_partitions"), legend="complete"),
            ),
        ),
        Panel(
            title="Snapshots that are read",
            description="The snapshots of Iceberg tables that the run reads, sides of joins and "
            "the cache table of `materialize` included. All attempts read the same ones.",
            unit="",
            kind="table",
            queries=(
                Query(
                    expr=_head("read_snapshot_info", "catalog", "table", "snapshot_id"),
                    legend="{{catalog}}.{{table}} at {{snapshot_id}}",
                ),
            ),
            width=16,
        ),
    ),
)

_RESOURCES = Row(
    title="Memory and use",
    panels=(
        Panel(
            title="Memory of trainers",
            description="Of each trainer's process, and of its GPU what torch holds.",
            unit="bytes",
            queries=(
                Query(expr=_head("trainer_resident_bytes", "rank"), legend="rank {{rank}}"),
                Query(expr=_head("trainer_gpu_memory_bytes", "rank"), legend="rank {{rank}}, GPU"),
            ),
        ),
        Panel(
            title="Memory of pods",
            description="Of each pod, as its Ray tells it, Ray's objects among it. A pod that "
            "comes near its limit is killed: OutOfMemory.",
            unit="bytes",
            queries=(
                Query(expr=f"max by (pod) (ray_node_mem_used{{{_WHICH}}})", legend="{{pod}}"),
            ),
        ),
        Panel(
            title="Used so far",
            description="Hours of the present run: of GPUs, of these without work, and of data "
            "workers.",
            unit="",
            kind="table",
            queries=(
                Query(expr=f"{_status('gpu_seconds_total')} / 3600", legend="GPU hours"),
                Query(expr=f"{_status('gpu_idle_seconds_total')} / 3600", legend="GPU hours, idle"),
                Query(
                    expr=f"{_status('data_worker_seconds_total')} / 3600",
                    legend="data worker hours",
                ),
                Query(expr=_status("cost", "", "currency"), legend="cost, {{currency}}"),
            ),
        ),
    ),
)

EXPERIMENT = Board(
    name="lastmile-experiment",
    title="Lastmile / Experiment",
    description="One experiment: how its training gets on, why its GPUs wait, and what the "
    "autoscaler decided.",
    variables=("namespace", "experiment"),
    rows=(_NOW, _TRAINING, _GPUS, _WORKERS, _SERVING, _TABLES, _RESOURCES),
    marks=(
        Mark(
            name="Decisions",
            expr=_status("decision_timestamp_seconds", "", "direction", "reason") + " * 1000",
            title="data workers {{direction}}",
            text="{{reason}}",
            colour="blue",
        ),
        Mark(
            name="Attempts",
            expr=_status("attempt_start_timestamp_seconds") + " * 1000",
            title="an attempt begins",
            text="",
            colour="orange",
        ),
    ),
)
