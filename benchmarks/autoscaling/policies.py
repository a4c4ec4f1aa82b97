"""All policies by name, and the grids on which the peers' settings are tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Final

from benchmarks.autoscaling import oracles, ours, peers
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.loop import AutoscalingPolicy

MakePolicy = Callable[..., AutoscalingPolicy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Attributes:

    name: name in the results.
    make: builds it from a cluster and the settings of its grid.
    grid: values by the name of each setting; empty: nothing is tuned.
    is_oracle: True if it knows what no policy can.
    is_ablation: True if it is ours without one rule.
    """

    name: str
    make: MakePolicy
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    is_oracle: bool = False
    is_ablation: bool = False

    def settings(self) -> list[dict[str, Any]]:
        """Return every combination of the grid."""
        names = list(self.grid)
        return [dict(zip(names, values, strict=True)) for values in product(*self.grid.values())]


OURS: Final = "lastmile"
LATENCY_ORACLE: Final = "latency oracle"
BEST_CONSTANT: Final = "best constant in hindsight"


def _least(cluster: Cluster) -> AutoscalingPolicy:
    return peers.Constant(cluster, workers=cluster.setting.min_workers)


def _most(cluster: Cluster) -> AutoscalingPolicy:
    return peers.Constant(cluster, workers=cluster.setting.max_workers)


def _advised(cluster: Cluster) -> AutoscalingPolicy:
    """Return the constant that `lastmile profile` advises: ⌈D (1 + h) ÷ μ⌉ without storage."""
    phase = cluster.setting.phases[0]
    step = phase.step_seconds + sum(phase.waits.values())
    demand = cluster.setting.batch_rows / step
    headroom = ours.rules_of(cluster).headroom
    return peers.Constant(cluster, workers=-int(-demand * phase.row_seconds * (1 + headroom) // 1))


POLICIES: Final = (
    Policy(name="minReplicas", make=_least),
    Policy(name="maxReplicas", make=_most),
    Policy(name="constant of a profile", make=_advised),
    Policy(name=BEST_CONSTANT, make=peers.Constant),
    Policy(name="HPA on CPU", make=peers.Hpa, grid={"target": (0.6, 0.7, 0.8, 0.9)}),
    Policy(
        name="HPA on idle GPUs", make=peers.HpaOnIdleGpus, grid={"target": (0.7, 0.8, 0.9, 0.95)}
    ),
    Policy(name="KEDA on the queue", make=peers.Keda, grid={"target": (0.25, 0.5, 1.0, 2.0)}),
    Policy(
        name="PI on the queue",
        make=peers.QueuePi,
        grid={
            "set_point": (0.3, 0.5, 0.7),
            "gain": (2.0, 8.0),
            "integral_seconds": (60.0, 180.0, 600.0),
        },
    ),
    Policy(name="dask", make=peers.Dask, grid={"target_seconds": (2.0, 5.0, 10.0, 20.0)}),
    Policy(
        name="Ray autoscaler",
        make=peers.RayAutoscaler,
        grid={"idle_seconds": (60.0, 180.0), "is_conservative": (False, True)},
    ),
    Policy(
        name="Ray Data, utilisation",
        make=peers.RayDataUtilisation,
        grid={"threshold": (0.75, 0.85, 0.95)},
    ),
    Policy(
        name="Ray Data, rate",
        make=peers.RayDataRate,
        grid={"factor": (1.1, 1.5, 2.0), "gate": (0.5, 0.75, 0.95)},
    ),
    Policy(
        name="Cachew",
        make=peers.Cachew,
        grid={"gain": (0.03, 0.07), "loss": (0.01, 0.03), "stable_reports": (10, 20)},
    ),
    Policy(
        name="tf.data service",
        make=peers.TfDataService,
        grid={"window_seconds": (15.0, 60.0, 300.0)},
    ),
    Policy(name=OURS, make=ours.Lastmile),
    Policy(name="lastmile, GPU only", make=ours.LastmileByGpu),
    *(
        Policy(
            name=f"lastmile without {name}",
            make=partial(ours.Lastmile, change=change),
            is_ablation=True,
        )
        for name, change in ours.ABLATIONS.items()
    ),
    Policy(name=LATENCY_ORACLE, make=oracles.LatencyOracle, is_oracle=True),
    Policy(name="clairvoyant", make=oracles.Clairvoyant, is_oracle=True),
)
