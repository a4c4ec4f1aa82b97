"""Each of ten thousand broken specs is refused with a helpful message, or is harmless.

LASTMILE_SEED repeats a failure; LASTMILE_BAD_SPECS sets the number of specs.
"""

import json
import os
import re
import time
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from broken_specs import Broken, generate, load_samples, walk
from counted_calls import counting
from large_specs import SHAPES, count_values
from world import SETTINGS, UID, World, build_document

from dataset_operator.observed import Observed
from dataset_operator.plan import decide
from dataset_operator.readings import MAX_EXPRESSION_CHARS, Readings
from dataset_operator.status import find_condition
from pipeline_runtime.config import DatasetExperiment, ExperimentStatus, ManifestError
from pipeline_runtime.config.introspect import walk_fields
from pipeline_runtime.config.reading.validation import (
    Verdict,
    judge,
    parse_experiment,
    parse_stored,
)
from pipeline_runtime.config.reading.wording import UNKNOWN
from pipeline_runtime.config.texts.yaml_documents import format_path
from pipeline_runtime.grammar import check_grammar
from pipeline_runtime.plan.syntax import check_syntax

NUMBER = int(os.environ.get("LASTMILE_BAD_SPECS", "1000"))
SEED = int(os.environ.get("LASTMILE_SEED", "7"))
PARTS = 20  # so that two processes share them
# A bound on one experiment, while others wait. Most need a hundredth of it.
MOST_CPU_SECONDS = 10.0  # more is a hang, even on a slow machine
MOST_CHARS_OF_A_PROBLEM = 2_048
MOST_CHARS_OF_ALL = 16_384
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]")
WHOLE_STATUS = 16 << 10
# Bound of function calls per value while planning with a large valid spec, C functions included.
# Quadratic work would take a thousand. A pod is checked as written, as merged and as applied.
MOST_CALLS = 20_000
MOST_CALLS_OF_A_VALUE = 200


def test_the_samples_cover_every_field() -> None:
    said = {
        format_path(tuple(0 if isinstance(part, int) else part for part in place))
        for sample in load_samples()
        for place in walk(sample)
    }
    paths = [path for path, _ in walk_fields(DatasetExperiment) if path[0] == "spec"]
    assert [format_path(path) for path in paths if format_path(path) not in said] == []
    for sample in load_samples():
        assert check_syntax(parse_experiment(sample).spec) == []


@pytest.mark.parametrize("part", range(PARTS))
def test_broken_specs_are_refused_or_harmless(part: int) -> None:
    refused = 0
    for broken in list(generate(SEED + part, NUMBER // PARTS)):
        try:
            refused += check(broken)
        except Exception as error:
            error.add_note(f"LASTMILE_SEED={SEED} part {part}: {broken.how}")
            raise
    assert 0.5 * NUMBER / PARTS < refused < NUMBER / PARTS  # else too few or all specs are broken


def check(broken: Broken) -> bool:
    """Give a spec to everything that reads one; return whether it is refused."""
    started = time.process_time()
    verdict = judge(broken.document)
    problems = find_problems(verdict)
    check_words(problems)
    if is_admitted(broken.document, verdict):
        check_operator(broken.document, verdict)
    assert time.process_time() - started < MOST_CPU_SECONDS
    return bool(problems)


def find_problems(verdict: Verdict) -> list[str]:
    """Return the problems that `lastmile validate` finds."""
    if verdict.experiment is not None:
        return [str(problem) for problem in check_syntax(verdict.experiment.spec)]
    return [f"{format_path(path)}: {said}" if path else said for path, said in verdict.found]


def check_words(problems: list[str]) -> None:
    for problem in problems:
        assert len(problem) <= MOST_CHARS_OF_A_PROBLEM, problem[:3000]
        assert not CONTROL.search(problem), repr(problem)
        assert re.match(r"(spec|metadata|apiVersion|kind|\w+:|must|breaks )", problem), problem
    assert sum(map(len, problems)) <= MOST_CHARS_OF_ALL
    assert len(set(problems)) == len(problems)


def is_admitted(document: dict[str, Any], verdict: Verdict) -> bool:
    """Return whether an API server would accept the fields around the spec."""
    around = [path for path, _ in verdict.found if path and path[0] != "spec"]
    has_both = all(isinstance(document.get(part), dict) for part in ("metadata", "spec"))
    return has_both and not around


def check_operator(document: dict[str, Any], verdict: Verdict) -> None:
    """Check that the operator reports the problems that a laptop finds, or trains without any."""
    metadata = {**document["metadata"], "namespace": "team", "uid": UID, "generation": 1}
    document = {**document, "metadata": metadata}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    status = decide(Observed(document=document, settings=SETTINGS), now).status.to_document()
    found = find_condition(status, "Accepted")
    assert found is not None
    if found["reason"] != "InvalidSpec":
        world = World(document)
        world.step()
        world.step()
        status = world.status
        # If a template is no mapping, its pods lose their service account, which is checked last.
        is_refused = world.condition("ClusterReady") == ("False", "ClusterRefused")
        is_suspended = document["spec"].get("suspend", False)
        assert (world.ray_cluster is None) == (is_suspended or is_refused)
    elif not (problems := find_problems_of_operator(document, verdict)):
        assert "service account" in found["message"]  # only the operator checks it
    else:
        whole = "\n".join(problems)
        begin = found["message"].find(whole[:30])  # ignored fields come first
        assert begin >= 0
        said = found["message"][begin:]
        assert said == whole or (said.endswith("…") and whole.startswith(said[:-1]))
    written = json.dumps(status)
    assert len(written) <= WHOLE_STATUS
    ExperimentStatus.model_validate_json(written, by_alias=True, by_name=False)


def find_problems_of_operator(document: dict[str, Any], verdict: Verdict) -> list[str]:
    """Drop unknown fields, and problems that need Arrow or the table."""
    experiment = verdict.experiment
    if experiment is None and not any(said.startswith(UNKNOWN) for _, said in verdict.found):
        return find_problems(verdict)
    try:
        experiment = experiment or parse_stored(document)[0]
    except ManifestError as error:
        return [str(problem) for problem in error.problems]
    found = check_grammar(experiment.spec, max_chars=MAX_EXPRESSION_CHARS)
    return [str(problem) for problem in found]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_for_a_large_valid_spec_grows_with_its_size(shape: str) -> None:
    document = build_document(**SHAPES[shape](Random(f"{SEED} {shape}")))
    world = World(document, readings=Readings())
    most = MOST_CALLS + MOST_CALLS_OF_A_VALUE * count_values(document)
    for _ in range(2):  # create the cluster, then compare it with the wanted one
        observed = world.observe()
        with counting() as calls:
            decide(observed, world.now)
        assert calls.total < most
        world.step()
    assert world.condition("Accepted") == ("True", "ValidSpec")
