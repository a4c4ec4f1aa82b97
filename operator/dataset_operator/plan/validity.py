"""Collects the problems of a spec that neither the models nor the API server find.

They are bad expressions (`readings` parses them) and pods that the platform does not allow. Checks
of functions, columns and types need Arrow or the table, so only the driver can make them.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataset_operator.builders.pod_templates import ClusterInput, build_pod_template
from dataset_operator.groups import locate_section, resolve_roles
from dataset_operator.plan.pod_rules import find_problems
from dataset_operator.plan.situation import Situation
from pipeline_runtime.config import DatasetExperiment, ManifestError, Problem


def parse_wanted(situation: Situation) -> DatasetExperiment:
    """Return the experiment as it is wanted now.

    Raises ManifestError with every broken rule.
    """
    reading = situation.specs.current
    problems = list(reading.problems)
    if reading.experiment is not None:
        problems += _check_pods(situation, reading.experiment)
    if problems or reading.experiment is None:
        raise ManifestError(problems)
    return reading.experiment


def _check_pods(situation: Situation, experiment: DatasetExperiment) -> Iterator[Problem]:
    """Check the pods as they would be created, since a template can replace parts of ours."""
    owner, settings = situation.owner, situation.settings
    spared = situation.specs.find_spared_templates()
    spec, groups = experiment.spec, situation.observed.groups
    source = ClusterInput(owner=owner, spec=spec, settings=settings, groups=groups)
    for group in resolve_roles(spec, groups):
        if group.kind.spec_field not in spared and group.pods.section.template:
            pod = build_pod_template(source, group.role)
            path = f"spec.{locate_section(group.role, groups)}.template"
            yield from find_problems(owner, settings, path, pod)
