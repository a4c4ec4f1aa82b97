"""The table of worker groups: a third one reaches everything that is made from a row."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any

import pytest
from pydantic import Field
from world import World, build_document

from dataset_operator.api import DATA_WORKERS, HEAD, ROLE_LABEL, TRAINERS
from dataset_operator.builders.children import build_disruption_budgets
from dataset_operator.builders.frozen import correct, hash_cluster_side
from dataset_operator.builders.pod_templates import ClusterInput
from dataset_operator.builders.raycluster import build_ray_cluster, name_templates
from dataset_operator.cli.workers import explain_workers
from dataset_operator.groups import (
    DATA_WORKER_SECONDS,
    GPU_SECONDS,
    GROUPS,
    Bounds,
    PodSet,
    WorkerGroup,
    count_needed,
    find_kind,
    find_scaled_bounds,
    resolve_groups,
    sum_usage,
)
from dataset_operator.names import Owner
from dataset_operator.observed import Observed
from dataset_operator.plan import decide
from dataset_operator.readings import Reading, Readings
from dataset_operator.settings import parse_settings
from dataset_operator.telemetry.experiment_metrics import collect_experiments
from dataset_operator.telemetry.standing import read_standing
from pipeline_runtime.config import (
    DatasetExperiment,
    ExperimentSpec,
    ExperimentStatus,
    PodGroup,
    Resources,
    RuleSet,
    WorkerStatus,
)

OWNER = Owner(name="clicks", namespace="team", uid="0f3c6c1e-1111-2222-3333-444455556666")
SETTINGS = parse_settings({"runtimeImage": "runtime:1"})
LARGE, SMALL = "toy-workers-large", "toy-workers-small"


class ToyWorkers(PodGroup):
    """Pods of a third kind, in a list of named groups."""

    name: str
    min_replicas: int = 1
    max_replicas: int = 8
    gpus_per_replica: int = 0


class ToySpec(ExperimentSpec):
    """A spec with such groups."""

    toy_workers: Annotated[tuple[ToyWorkers, ...], Field(max_length=4)] = ()


class ToyExperiment(DatasetExperiment):
    """An experiment with such a spec."""

    spec: ToySpec


class ToyNumbers(WorkerStatus):
    """The numbers of one of these groups."""

    name: str


class ToyStatus(ExperimentStatus):
    """A status with their numbers."""

    toy_workers: tuple[ToyNumbers, ...] = ()


def find_toys(spec: ExperimentSpec) -> list[PodSet]:
    assert isinstance(spec, ToySpec)
    return [
        PodSet(
            name=toy.name,
            section=toy,
            bounds=Bounds(toy.min_replicas, toy.min_replicas, toy.max_replicas),
            gpus=toy.gpus_per_replica,
            num_needed=toy.min_replicas,
            num_kept=toy.min_replicas,
        )
        for toy in spec.toy_workers
    ]


TOYS = WorkerGroup(
    role="toy-workers",
    spec_field="toyWorkers",
    noun="toy worker",
    find=find_toys,
    default_resources=Resources(requests={"cpu": "3"}),
    labels={"ray-subcluster": "toys"},
    scaled_by="Policy",
    loss="CostsUnits",
    numbers=ToyNumbers,
    is_list=True,
    live_fields=frozenset({"minReplicas", "maxReplicas"}),
)
WITH_TOYS = (*GROUPS, TOYS)
TWO = [{"name": "large", "minReplicas": 2, "gpusPerReplica": 4}, {"name": "small"}]


def parse(**spec: Any) -> ToySpec:
    document = {"dataset": {"parquet": {"uri": "t/"}}, **spec}
    return ToySpec.model_validate_json(json.dumps(document))


def build(spec: ToySpec, **replicas: int) -> dict[str, Any]:
    numbers = {f"toy-workers-{name}": number for name, number in replicas.items()}
    source = ClusterInput(
        owner=OWNER, spec=spec, settings=SETTINGS, replicas=numbers, groups=WITH_TOYS
    )
    return build_ray_cluster(source)


def groups_of(cluster: dict[str, Any]) -> dict[str, Any]:
    return {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}


def test_a_third_group_is_part_of_the_cluster() -> None:
    cluster = build(parse(toyWorkers=TWO), large=5)
    found = groups_of(cluster)
    assert list(found) == [TRAINERS, DATA_WORKERS, LARGE, SMALL]
    large = found[LARGE]
    sizes = [large[field] for field in ("minReplicas", "replicas", "maxReplicas")]
    assert sizes == [2, 5, 8]
    assert large["labels"] == {"ray-subcluster": "toys"}
    assert large["template"]["metadata"]["labels"][ROLE_LABEL] == LARGE
    [ray] = large["template"]["spec"]["containers"]
    assert ray["resources"]["requests"] == {"cpu": "3", "nvidia.com/gpu": "4"}
    assert found[SMALL]["replicas"] == 1
    paths = name_templates(cluster, WITH_TOYS)
    assert paths["spec.workerGroupSpecs[2].template"] == "spec.toyWorkers[large].template"


def test_a_cluster_without_the_third_group_is_as_before() -> None:
    spec = parse()
    source = ClusterInput(owner=OWNER, spec=spec, settings=SETTINGS)
    assert build(spec) == build_ray_cluster(source)
    assert build_disruption_budgets(OWNER, spec, WITH_TOYS) == build_disruption_budgets(OWNER, spec)


def test_the_driver_waits_for_pods_of_each_group() -> None:
    spec = parse(toyWorkers=TWO, trainers={"replicas": 3})
    needed = count_needed(spec, WITH_TOYS)
    assert needed == {HEAD: 1, TRAINERS: 3, DATA_WORKERS: 1, LARGE: 2, SMALL: 1}


def test_a_job_without_trainers_waits_for_none() -> None:
    spec = parse(output={"parquet": {"uri": "o/"}}, toyWorkers=TWO)
    assert count_needed(spec, WITH_TOYS) == {HEAD: 1, DATA_WORKERS: 1, LARGE: 2, SMALL: 1}


def test_usage_counts_the_gpus_of_each_group() -> None:
    spec = parse(toyWorkers=TWO, trainers={"gpusPerReplica": 8})
    seconds = {HEAD: 60, TRAINERS: 10, DATA_WORKERS: 7, LARGE: 5, SMALL: 9}
    used = sum_usage(seconds, resolve_groups(spec, WITH_TOYS))
    assert used == {GPU_SECONDS: 10 * 8 + 5 * 4, DATA_WORKER_SECONDS: 7}


def test_one_disruption_budget_covers_a_list_of_groups() -> None:
    budgets = build_disruption_budgets(OWNER, parse(toyWorkers=TWO), WITH_TOYS)
    *_, last = budgets
    assert last["metadata"]["name"] == OWNER.disruption_budget("toy-workers")
    assert last["spec"]["minAvailable"] == 3
    [expression] = last["spec"]["selector"]["matchExpressions"]
    assert expression["values"] == [LARGE, SMALL]
    names = [name for kind, name in OWNER.list_guards(WITH_TOYS) if kind == "PodDisruptionBudget"]
    # The names of all rows, since groups may have had budgets before an edit.
    assert {budget["metadata"]["name"] for budget in budgets} <= set(names)


@pytest.mark.parametrize(
    ("edit", "is_same"),
    [
        ({"maxReplicas": 9}, True),
        ({"gpusPerReplica": 2}, False),
        ({"template": {"spec": {"priority": 1}}}, False),
    ],
)
def test_only_the_numbers_of_a_group_keep_the_cluster(edit: dict[str, Any], is_same: bool) -> None:
    before, after = (parse(toyWorkers=[TWO[0] | each]) for each in ({}, edit))
    hashes = {hash_cluster_side(spec, WITH_TOYS) for spec in (before, after)}
    assert (len(hashes) == 1) == is_same


def test_edits_by_hand_are_undone_but_for_the_scaled_number() -> None:
    spec = parse(toyWorkers=TWO)
    cluster = build(spec, large=2)
    rendered = json.loads(json.dumps(cluster["spec"]))
    cluster["metadata"]["resourceVersion"] = "1"
    bounds = find_scaled_bounds(spec, WITH_TOYS)
    groups_of(cluster)[LARGE]["replicas"] = 6
    assert correct(cluster, rendered, bounds) is None
    groups_of(cluster)[LARGE]["template"]["spec"]["hostNetwork"] = True
    groups_of(cluster)[TRAINERS]["replicas"] = 6
    patch = correct(cluster, rendered, bounds)
    assert patch is not None
    corrected = groups_of(patch)
    assert corrected[LARGE]["replicas"] == 6
    assert "hostNetwork" not in corrected[LARGE]["template"]["spec"]
    assert corrected[TRAINERS]["replicas"] == 1


def test_metrics_and_describe_have_the_numbers_of_a_third_group() -> None:
    counted = {"name": "large", "currentReplicas": 3, "readyReplicas": 2, "desiredReplicas": 4}
    document: dict[str, Any] = {
        "metadata": {"name": "clicks"},
        "spec": {"toyWorkers": [TWO[0] | {"maxReplicas": 8}]},
        "status": {"rayClusterName": "c", "toyWorkers": [counted]},
    }
    status = ToyStatus.model_validate_json(json.dumps(document["status"]))
    standing = read_standing(document, status, WITH_TOYS)
    families = collect_experiments([(("team", "clicks"), standing)], WITH_TOYS)
    samples = {
        tuple(sample.labels.values())[2:]: sample.value
        for family in families
        if family.name.startswith("lastmile_experiment_toy_workers")
        for sample in family.samples
    }
    numbers = {"current": 3, "ready": 2, "desired": 4, "draining": 0, "min": 2, "max": 8}
    assert samples == {(word,): number for word, number in numbers.items()}
    explained = dict(explain_workers(document, status, groups=WITH_TOYS))
    assert explained == {"Toy workers large": "2 of 4 ready, may be 2 to 8"}


@pytest.mark.parametrize("role", ["", "toy-workers", "trainers-large", "somebody-else"])
def test_a_role_that_no_row_has_is_unknown(role: str) -> None:
    assert find_kind(role, WITH_TOYS) is None


@pytest.mark.parametrize(("role", "found"), [(LARGE, TOYS), (HEAD, "head"), (TRAINERS, "trainers")])
def test_rows_are_found_by_the_role_of_a_pod(role: str, found: Any) -> None:
    kind = find_kind(role, WITH_TOYS)
    assert kind is not None
    assert found in (kind, kind.spec_field)


class ToyReadings(Readings):
    """Readings of specs that may have such groups."""

    def read_wanted(
        self,
        document: Mapping[str, Any],
        rules: RuleSet = RuleSet.ALL,
        *,
        without: frozenset[str] = frozenset(),
    ) -> Reading:
        known = {name: document[name] for name in ("apiVersion", "kind", "spec")}
        known["metadata"] = {"name": document["metadata"]["name"]}
        experiment = ToyExperiment.model_validate_json(json.dumps(known))
        return Reading(experiment=experiment, groups=self.groups)

    def read_accepted(self, document: Mapping[str, Any], owner: Owner, rules: RuleSet) -> Reading:
        return self.read_wanted(document)


class ToyObserved(Observed):
    """The observation of a pass, with such a status."""

    @cached_property
    def status(self) -> ExperimentStatus:
        return ToyStatus.model_validate_json(json.dumps(self.document.get("status", {})))


class ToyWorld(World):
    """A world whose operator knows such groups; a pod has a node from when it was created."""

    def observe(self) -> Observed:
        seen = super().observe()
        pods = tuple(replace(pod, scheduled=pod.created or BEGAN) for pod in seen.pods)
        known = {field.name: getattr(seen, field.name) for field in fields(seen)}
        return ToyObserved(**known | {"pods": pods})


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def world() -> World:
    readings = ToyReadings(groups=WITH_TOYS)
    document = build_document(toyWorkers=TWO, trainers={"replicas": 1, "gpusPerReplica": 2})
    return ToyWorld(document, readings=readings)


def message_of(world: World, kind: str) -> str:
    [found] = [known for known in world.status["conditions"] if known["type"] == kind]
    return str(found["message"])


def test_a_pass_builds_the_third_group_and_waits_for_it(world: World) -> None:
    world.unready = {SMALL}
    world.settle()
    assert world.ray_cluster is not None
    assert list(groups_of(world.ray_cluster)) == [TRAINERS, DATA_WORKERS, LARGE, SMALL]
    assert OWNER.disruption_budget("toy-workers") in world.children
    assert world.condition("ClusterReady") == ("False", "WaitingForPods")
    assert f"0 of 1 {SMALL} ready" in message_of(world, "ClusterReady")
    assert not world.submitted
    world.unready = set()
    world.settle()
    assert world.condition("ClusterReady") == ("True", "PodsReady")
    assert "toy workers" in message_of(world, "ClusterReady")
    assert world.submitted


def test_passes_report_the_numbers_of_the_third_group(world: World) -> None:
    world.settle()
    assert world.ray_cluster is not None
    groups_of(world.ray_cluster)[LARGE]["replicas"] = 5  # as a policy does
    world.settle()
    numbers = {
        "large": {"currentReplicas": 5, "readyReplicas": 5, "desiredReplicas": 5},
        "small": {"currentReplicas": 1, "readyReplicas": 1, "desiredReplicas": 1},
    }
    assert world.status["toyWorkers"] == [{"name": name} | numbers[name] for name in numbers]


def test_the_next_cluster_has_as_many_pods_of_the_third_group(world: World) -> None:
    world.settle()
    assert world.ray_cluster is not None
    groups_of(world.ray_cluster)[LARGE]["replicas"] = 5
    world.settle()
    world.lose_cluster()
    world.settle()
    world.step(seconds=60)
    assert world.num_clusters == 2
    assert groups_of(world.ray_cluster)[LARGE]["replicas"] == 5


def test_passes_undo_edits_of_the_third_group_beyond_its_bounds(world: World) -> None:
    world.settle()
    assert world.ray_cluster is not None
    groups_of(world.ray_cluster)[LARGE] |= {"replicas": 1, "minReplicas": 0}
    world.settle()
    large = groups_of(world.ray_cluster)[LARGE]
    assert (large["minReplicas"], large["replicas"]) == (2, 2)


@pytest.mark.parametrize(
    ("edit", "is_replaced"), [({"maxReplicas": 9}, False), ({"gpusPerReplica": 1}, True)]
)
def test_passes_replace_a_cluster_whose_third_group_changed(
    world: World, edit: dict[str, Any], is_replaced: bool
) -> None:
    world.settle()
    world.edit(toyWorkers=[TWO[0] | edit, TWO[1]], updatePolicy="Restart")
    world.settle()
    world.step(seconds=60)
    world.settle()
    assert world.num_clusters == 1 + is_replaced
    assert world.ray_cluster is not None
    assert groups_of(world.ray_cluster)[LARGE]["maxReplicas"] == edit.get("maxReplicas", 8)


def test_passes_account_for_the_gpus_of_the_third_group(world: World) -> None:
    world.settle()
    before = world.status["usage"]
    world.step(seconds=60)
    used = world.status["usage"]
    assert used["gpuSeconds"] - before["gpuSeconds"] == 60 * (1 * 2 + 2 * 4)
    assert used["dataWorkerSeconds"] - before["dataWorkerSeconds"] == 60


def test_a_third_group_without_memory_fails_the_attempt_by_name(world: World) -> None:
    world.settle()
    observed = world.observe()
    pods = [replace(pod, out_of_memory=world.now) for pod in observed.pods if pod.role == LARGE]
    world.end_job("FAILED", message="boom")
    failed = replace(world.observe(), pods=(*observed.pods, *pods))
    status = decide(failed, world.now).status
    condition = status.find("Training")
    assert condition is not None
    assert "spec.toyWorkers[large].resources.limits.memory" in condition.message


def test_the_loss_of_the_third_group_costs_units_alone(world: World) -> None:
    """Its row says so; the loss of a trainer would be the reason of the failure."""
    world.settle()
    world.end_job("FAILED", message="boom")
    observed = world.observe()
    for role, reason in ((LARGE, "JobFailed"), (TRAINERS, "NodeLost")):
        left = tuple(pod for pod in observed.pods if pod.role != role)
        condition = decide(replace(observed, pods=left), world.now).status.find("Training")
        assert condition is not None
        assert f"({reason})" in condition.message


def test_a_pod_of_no_row_is_not_blamed(world: World) -> None:
    """Anybody may label a pod."""
    world.settle()
    world.end_job("FAILED", message="boom")
    observed = world.observe()
    other = replace(observed.pods[-1], role="somebody-else", out_of_memory=world.now)
    decision = decide(replace(observed, pods=(*observed.pods, other)), world.now)
    condition = decision.status.find("Training")
    assert condition is not None
    assert "(JobFailed)" in condition.message
