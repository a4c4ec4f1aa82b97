"""The autoscaling policy, a pure function: it decides the number of data workers of a run.

    decide(memory, sample, rules) -> (Decision, Memory)      every control period of 15 s

Nothing here does I/O or reads a clock. On the way from what was measured to a number:

    signals     counters and pods at a moment; the interval between two moments
    history     intervals since the last change, and what outlives them
    estimates   demand D, rate of a busy worker μ, workers needed D / μ with bounds; shares of waits
    recommend   the number that the signals ask for, by rules asked in order, each with its reason
    stabilise   the most careful recommendation of a window
    limit_rate  how far one move may go
    clamp       minReplicas to maxReplicas

Reasons are the words of the HorizontalPodAutoscaler where it has them. What is not known is None
and changes nothing: unknown is never 0.
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
