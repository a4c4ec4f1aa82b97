"""Ten thousand specs, each broken somewhere: each is refused in words one can use, or harmless.

LASTMILE_SEED repeats what failed; LASTMILE_BAD_SPECS is how many there are.
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
from dataset_operator.plan import plan
from dataset_operator.plan.readings import MAX_EXPRESSION_CHARS, Readings
from dataset_operator.status import find_condition
from pipeline_runtime.config import DatasetExperiment, ExperimentStatus, ManifestError
from pipeline_runtime.config.documents import format_path
from pipeline_runtime.config.introspect import walk_fields
from pipeline_runtime.config.parsing import Verdict, judge, parse_experiment, parse_stored
from pipeline_runtime.config.problems import UNKNOWN
from pipeline_runtime.grammar import check_grammar
from pipeline_runtime.plan.syntax import check_syntax

NUMBER = int(os.environ.get("LASTMILE_BAD_SPECS", "1000"))
SEED = int(os.environ.get("LASTMILE_SEED", "7"))
PARTS = 20  # so that two processes share them
# Of one experiment's; others wait meanwhile. Most take a hundredth of it.
MOST_CPU_SECONDS = 10.0  # a pass that hangs, on however slow a machine; all of them take far less
MOST_CHARS_OF_A_PROBLEM = 2_048
MOST_CHARS_OF_ALL = 16_384
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]")
WHOLE_STATUS = 16 << 10
# Of planning with a large valid spec, calls of C functions among them. Work that grows with the
# square of the size makes a thousand calls a value. A pod is judged as it was written, as merged,
# and as it is about to be applied.
MOST_CALLS = 20_000
MOST_CALLS_OF_A_VALUE = 200


def test_the_samples_say_every_field_of_a_spec() -> None:
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
def test_a_broken_spec_is_refused_in_a_few_words_or_does_no_harm(part: int) -> None:
    refused = 0
    for broken in list(generate(SEED + part, NUMBER // PARTS)):
        try:
            refused += check(broken)
        except Exception as error:
            error.add_note(f"LASTMILE_SEED={SEED} part {part}: {broken.how}")
            raise
    assert 0.5 * NUMBER / PARTS < refused < NUMBER / PARTS  # else little of it is broken, or all


def check(broken: Broken) -> bool:
    """Ask everybody who reads a spec; returns whether it is refused."""
    started = time.process_time()
    verdict = judge(broken.document)
    problems = find_problems(verdict)
    check_words(problems)
    if is_admitted(broken.document, verdict):
        check_operator(broken.document, verdict)
    assert time.process_time() - started < MOST_CPU_SECONDS
    return bool(problems)


def find_problems(verdict: Verdict) -> list[str]:
    """As `lastmile validate` finds them."""
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
    """Return whether an API server would take what is around the spec: others reach no operator."""
    around = [path for path, _ in verdict.found if path and path[0] != "spec"]
    has_both = all(isinstance(document.get(part), dict) for part in ("metadata", "spec"))
    return has_both and not around


def check_operator(document: dict[str, Any], verdict: Verdict) -> None:
    """It says the same of a spec as a laptop does, or makes a cluster and trains."""
    metadata = {**document["metadata"], "namespace": "team", "uid": UID, "generation": 1}
    document = {**document, "metadata": metadata}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    status = plan(Observed(document=document), SETTINGS, now, "token").status
    found = find_condition(status, "Accepted")
    assert found is not None
    if found["reason"] != "InvalidSpec":
        world = World(document)
        world.step()
        world.step()
        status = world.status
        # A template that is no mapping loses its pods' service account, which is found at last.
        is_refused = world.condition("ClusterReady") == ("False", "ClusterRefused")
        is_suspended = document["spec"].get("suspend", False)
        assert (world.ray_cluster is None) == (is_suspended or is_refused)
    elif not (problems := find_problems_of_operator(document, verdict)):
        assert "service account" in found["message"]  # the platform's to allow
    else:
        whole = "\n".join(problems)
        begin = found["message"].find(whole[:30])  # what is ignored is first
        assert begin >= 0
        said = found["message"][begin:]
        assert said == whole or (said.endswith("…") and whole.startswith(said[:-1]))
    written = json.dumps(status)
    assert len(written) <= WHOLE_STATUS
    ExperimentStatus.model_validate_json(written, by_alias=True, by_name=False)


def find_problems_of_operator(document: dict[str, Any], verdict: Verdict) -> list[str]:
    """Beside unknown fields, and what takes Arrow or the table to tell."""
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
    for _ in range(2):  # the cluster is made, and compared with what it should be
        observed = world.observe()
        with counting() as calls:
            plan(observed, SETTINGS, world.now, "token", world.readings)
        assert calls.total < most
        world.step()
    assert world.condition("Accepted") == ("True", "ValidSpec")
