"""The autoscaling policy, a pure function: it decides the number of data workers of a run.

    decide(memory, sample, rules) -> (Decision, Memory)      every control period of 15 s

Nothing here does I/O or reads a clock. From measurements to a number:

    signals      counters and pods at one time; the interval between two samples
    intervals    intervals since the last change, and the memory that outlives them
    estimates    demand D, throughput of a busy worker μ, required workers D / μ with bounds, waits
    bottleneck   the stage that limits the trainers where more workers do not help
    saturation   the number of workers beyond which rows per second do not increase
    recommend    the number that follows from the signals: rules in order, each with its reason
    chain        stabilise, limit the rate of change, clamp to minReplicas and maxReplicas
    policy       one decision from all of these
    inference    the same for the pods of a group of inference workers, from signals of its own

Reasons are the words of the HorizontalPodAutoscaler where it has one. An unknown value is None and
changes nothing: unknown is never 0. Each rule names the benchmark scenario that it guards; the
scenarios are in `benchmarks/autoscaling/scenarios.py`, and `make bench-autoscaling` compares the
policy with others. What each rule brings is in `benchmarks/results/autoscaling-rules.md`.
"""

from dataset_operator.autoscaling.interface import Decision, Rules
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.autoscaling.policy import decide
from dataset_operator.autoscaling.signals import Pods, Sample, TrainerCounters, WorkerCounters

__all__ = [
    "Decision",
    "Memory",
    "Pods",
    "Rules",
    "Sample",
    "TrainerCounters",
    "WorkerCounters",
    "decide",
]
