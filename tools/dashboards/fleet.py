"""All experiments of some namespaces, and the operator: what it costs, what waits, what is wrong.

Two replicas of the operator tell the same of every experiment, and one that has been replaced is
told for five minutes more, so series are taken together by their experiment first.
"""

from __future__ import annotations

from tools.dashboards.panels import Board, Panel, Query, Row, Step

# Of usage, which is added up once a minute.
_USAGE_WINDOW = "10m"
STARVED_RATIO = 0.05  # of the trainers' time; below it a data worker more brings next to nothing


def _each(name: str, matchers: str = "", *labels: str) -> str:
    """A metric of each experiment, once."""
    by = ", ".join(("namespace", "experiment", *labels))
    where = ", ".join(filter(None, ('namespace=~"$namespace"', matchers)))
    return f"max by ({by}) (lastmile_experiment_{name}{{{where}}})"


def _each_rate(name: str, window: str, function: str = "rate") -> str:
    """Return the rate of a counter, once per experiment.

    The operators' series are made one before its increase is taken: each of them begins in the
    midst, and what was counted while another took over would be in none.
    """
    return f"{function}({_each(name)}[{window}:])"


def _number_in(phases: str) -> str:
    phase = _each("phase", f'phase=~"{phases}"')
    return f"sum({phase}) or vector(0)"


_START = _each("start_timestamp_seconds")
_WAITED = f"{_each('training_start_timestamp_seconds')} - {_START}"
_WAITS = _each("phase", 'phase=~"Pending|Starting"')
_IN_QUEUE = f"time() - ({_START} and on (namespace, experiment) {_WAITS})"
_UNKNOWN = _each("condition", 'type="ScalingActive", reason="MetricsUnknown"', "reason")
_RUNS = _each("phase", 'phase=~"Training|Writing"')
_BLIND = f"{_UNKNOWN} == 0 and on (namespace, experiment) {_RUNS} == 1"
_STARVED = f"{_each('production_wait_ratio')} > {STARVED_RATIO}"
_UTILIZATION = _each("gpu_utilization_ratio")
_GPUS = _each("gpus")
_IDLE_GPUS = f"sum({_each_rate('gpu_idle_seconds_total', _USAGE_WINDOW)})"
_RETRIES = (
    "max by (namespace, experiment) "
    '(increase(lastmile_output_commit_retries_total{namespace=~"$namespace"}[1h]))'
)
_BY_NAME = "{{namespace}}/{{experiment}}"


_NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Running",
            description="Experiments whose driver trains, or writes a table.",
            kind="stat",
            queries=(Query(expr=_number_in("Training|Writing")),),
            width=4,
        ),
        Panel(
            title="Waiting",
            description="Experiments that wait for pods or for their driver: Pending and Starting.",
            kind="stat",
            queries=(Query(expr=_number_in("Pending|Starting")),),
            width=4,
        ),
        Panel(
            title="In trouble",
            description="Experiments that are refused, that try again after a failure, or that "
            "failed and were not deleted: Invalid, Retrying and Failed.",
            kind="stat",
            steps=(Step(value=1, colour="orange"),),
            queries=(Query(expr=_number_in("Invalid|Retrying|Failed")),),
            width=4,
        ),
        Panel(
            title="Starved",
            description="Experiments whose trainers spend more than a twentieth of their time "
            "waiting for data workers. Zero is what the autoscaler works for.",
            kind="stat",
            steps=(Step(value=1, colour="orange"),),
            queries=(Query(expr=f"count({_STARVED}) or vector(0)"),),
            width=4,
        ),
        Panel(
            title="GPUs held",
            description="GPUs of all trainers that have a cluster, at work or not.",
            kind="stat",
            queries=(Query(expr=f"sum({_GPUS}) or vector(0)"),),
            width=4,
        ),
        Panel(
            title="GPU time idle, last hour",
            description="Of the GPU seconds of the last hour of which it is known whether the GPUs "
            "worked, the share in which they did not.",
            kind="stat",
            unit="percentunit",
            steps=(Step(value=0.1, colour="yellow"), Step(value=0.25, colour="red")),
            queries=(
                Query(
                    expr=f"sum({_each_rate('gpu_idle_seconds_total', '1h', 'increase')}) / "
                    f"sum({_each_rate('gpu_measured_seconds_total', '1h', 'increase')})"
                ),
            ),
            width=4,
        ),
    ),
)

_EXPERIMENTS = Row(
    title="Experiments",
    panels=(
        Panel(
            title="By phase",
            description="How many experiments are in each phase.",
            kind="stack",
            queries=(
                Query(expr=f"sum by (phase) ({_each('phase', '', 'phase')})", legend="{{phase}}"),
            ),
        ),
        Panel(
            title="Queue time",
            description="From a run's beginning until its driver first ran, of the runs that there "
            "are; and how long the one that has waited longest has waited now. It is "
            "the time for pods, images and nodes, and for a queue such as Kueue's.",
            unit="s",
            queries=(
                Query(expr=f"quantile(0.5, {_WAITED})", legend="median"),
                Query(expr=f"quantile(0.95, {_WAITED})", legend="95 of 100"),
                Query(expr=f"max({_IN_QUEUE})", legend="waiting longest now"),
            ),
        ),
        Panel(
            title="Starved experiments",
            description="Share of the trainers' time spent waiting for data workers, of the ten "
            "that wait most. One that stays up here is at its maxReplicas, or waits for nodes: "
            "its own dashboard says which.",
            unit="percentunit",
            steps=(Step(value=STARVED_RATIO, colour="orange"),),
            queries=(Query(expr=f"topk(10, {_each('production_wait_ratio')})", legend=_BY_NAME),),
        ),
        Panel(
            title="Data workers",
            description="Of all experiments: those that are wanted, that are there, that work, and "
            "that are on their way out. Wanted above ready for long: nodes are short.",
            queries=(
                Query(
                    expr=f"sum by (state) ({_each('data_workers', '', 'state')})",
                    legend="{{state}}",
                ),
            ),
        ),
        Panel(
            title="Attempts that failed, in an hour",
            description="Over all experiments. An attempt that fails is tried again until its "
            "backoffLimit; many at once are nodes that go, or a store that refuses.",
            queries=(
                Query(
                    expr=f"sum({_each_rate('failed_attempts_total', '1h', 'increase')})",
                    legend="failed",
                ),
            ),
        ),
        Panel(
            title="Commits tried again, in an hour",
            description="Attempts at a commit to a catalog that another writer was faster than: "
            "the ten experiments with most. Many at once write to the same tables.",
            queries=(Query(expr=f"topk(10, {_RETRIES})", legend=_BY_NAME),),
        ),
        Panel(
            title="Autoscaler is blind",
            description="Experiments that run and of which the autoscaler knows too little to "
            "act; none is as it should be. Their number of data workers stays.",
            queries=(
                Query(
                    expr=f"count by (reason) ({_BLIND})",
                    legend="{{reason}}",
                ),
            ),
        ),
    ),
)

_GPU_ROW = Row(
    title="GPUs and what they cost",
    panels=(
        Panel(
            title="GPU utilisation",
            description="Of all trainers' GPUs together, weighed by their number, and of the ten "
            "experiments with the least. A model that is small for its GPU stays low "
            "whatever the data workers do.",
            unit="percentunit",
            top=1,
            queries=(
                Query(
                    expr=f"sum({_UTILIZATION} * {_GPUS}) / sum({_GPUS} and {_UTILIZATION})",
                    legend="all",
                ),
                Query(expr=f"bottomk(10, {_UTILIZATION})", legend=_BY_NAME),
            ),
        ),
        Panel(
            title="GPUs held and idle",
            description="GPUs that trainers hold, and the part of them without work, over ten "
            "minutes, since usage is added up once a minute.",
            queries=(
                Query(expr=f"sum({_each_rate('gpu_seconds_total', _USAGE_WINDOW)})", legend="held"),
                Query(expr=_IDLE_GPUS, legend="idle"),
            ),
        ),
        Panel(
            title="Cost of idle GPUs, an hour",
            description="What is paid in an hour for GPUs without work, at the present rate and by "
            "the setting `prices`; without that setting there is nothing to show.",
            unit="short",
            queries=(
                Query(
                    expr=f"{_IDLE_GPUS} * on () group_right () "
                    'max by (currency) (lastmile_operator_price_per_hour{resource="gpu"})',
                    legend="{{currency}}",
                ),
            ),
        ),
        Panel(
            title="Idle GPU hours, in the time shown",
            description="The ten experiments that left most GPU time unused.",
            kind="table",
            queries=(
                Query(
                    expr="topk(10, "
                    f"{_each_rate('gpu_idle_seconds_total', '$__range', 'increase')}) / 3600",
                    legend=_BY_NAME,
                ),
            ),
            width=12,
        ),
        Panel(
            title="Cost of the present runs",
            description="What the runs that there are have cost so far, GPUs and data workers, by "
            "the setting `prices`: the ten dearest.",
            kind="table",
            unit="short",
            queries=(
                Query(
                    expr=f"topk(10, {_each('cost', '', 'currency')})",
                    legend=f"{_BY_NAME}, {{{{currency}}}}",
                ),
            ),
            width=12,
        ),
    ),
)

_OPERATOR = Row(
    title="Operator",
    panels=(
        Panel(
            title="Passes",
            description="Reconcile passes per second. A conflict is retried at once, a failed "
            "pass within a minute; a defect is a bug.",
            unit="ops",
            kind="stack",
            queries=(
                Query(
                    expr="sum by (result) "
                    "(rate(lastmile_operator_reconcile_total[$__rate_interval]))",
                    legend="{{result}}",
                ),
            ),
        ),
        Panel(
            title="Time of a pass",
            description="Half of the passes, and 99 of 100, took no longer. It is nearly all "
            "waiting for the API server and for Ray.",
            unit="s",
            queries=tuple(
                Query(
                    expr=f"histogram_quantile({quantile}, sum by (le) "
                    "(rate(lastmile_operator_reconcile_seconds_bucket[$__rate_interval])))",
                    legend=legend,
                )
                for quantile, legend in ((0.5, "median"), (0.99, "99 of 100"))
            ),
        ),
        Panel(
            title="Wait for a pass",
            description="99 of 100 waited no longer for their turn, by what asked for it: an edit "
            "goes first, the clock can wait. Seconds are a full operator; see "
            "docs/operating/scaling.md.",
            unit="s",
            queries=(
                Query(
                    expr="histogram_quantile(0.99, sum by (le, trigger) "
                    "(rate(lastmile_operator_queue_seconds_bucket[$__rate_interval])))",
                    legend="{{trigger}}",
                ),
            ),
        ),
        Panel(
            title="Passes that failed, by error",
            description="Failed passes per second. KubeUnavailable: the API server does not "
            "answer. KubeRefused: it refuses, for example for missing rights or quota.",
            unit="ops",
            queries=(
                Query(
                    expr="sum by (reason) (rate(lastmile_operator_errors_total[$__rate_interval]))",
                    legend="{{reason}}",
                ),
            ),
        ),
        Panel(
            title="Requests to the API server",
            description="Requests per second, by status code; 0 means no answer.",
            unit="reqps",
            kind="stack",
            queries=(
                Query(
                    expr="sum by (code) "
                    "(rate(lastmile_operator_api_request_seconds_count[$__rate_interval]))",
                    legend="{{code}}",
                ),
            ),
        ),
        Panel(
            title="Watch behind",
            description="For how long something that the API server lists has not come through the "
            "watch. Beyond 120 s the watch counts as dead and the kubelet restarts the pod.",
            unit="s",
            steps=(Step(value=60, colour="yellow"), Step(value=120, colour="red")),
            queries=(Query(expr="max(lastmile_operator_watch_lag_seconds)", legend="behind"),),
        ),
        Panel(
            title="Memory of the operator",
            description="Of each replica; it grows with the number of experiments, a little.",
            unit="bytes",
            queries=(
                Query(
                    expr="process_resident_memory_bytes "
                    "* on (job, instance) group_left (version) lastmile_operator_build_info",
                    legend="{{instance}}, {{version}}",
                ),
            ),
        ),
    ),
)

FLEET = Board(
    name="lastmile-fleet",
    title="Lastmile / Fleet",
    description="All experiments and the operator: what runs, what waits, what GPU time is lost, "
    "and whether the operator is well.",
    variables=("namespace",),
    rows=(_NOW, _EXPERIMENTS, _GPU_ROW, _OPERATOR),
)
