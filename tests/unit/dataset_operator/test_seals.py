"""Content that users write in place of the operator's is neither trusted nor expensive."""

import asyncio
import base64
import copy
import json
import tracemalloc
import zlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import SEAL, UID, World, build_document, running

from dataset_operator.api import (
    CLUSTER_HASH_ANNOTATION,
    RENDERED_ANNOTATION,
    SEAL_ANNOTATION,
    TRAINERS_ANNOTATION,
)
from dataset_operator.builders.frozen import MAX_RENDERED_BYTES, read_trainers, thaw
from dataset_operator.documents import Document
from dataset_operator.errors import KubeConflict, UserError
from dataset_operator.kube.seal_key import fetch_seal
from dataset_operator.plan.outcome import Decision
from dataset_operator.sealing import ABSENT, BROKEN, KEY_BYTES, VALID, Seal
from dataset_operator.settings import parse_settings

FORGED = "forged-by-a-user"
OTHER_KEY = Seal(b"o" * KEY_BYTES)
BAD_EDIT = {"backoffLimit": -1}
HOST = {"template": {"spec": {"hostNetwork": True}}}


def cluster_of(world: World) -> dict[str, Any]:
    assert world.ray_cluster is not None
    return world.ray_cluster


def annotations_of(world: World) -> dict[str, str]:
    found: dict[str, str] = cluster_of(world)["metadata"]["annotations"]
    return found


def accepted_of(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.children[world.owner.accepted]
    return found


def remove_seals(world: World) -> None:
    """Leave the objects as an operator without seals does."""
    for child in (cluster_of(world), *world.children.values()):
        child["metadata"].get("annotations", {}).pop(SEAL_ANNOTATION, None)


def compress(spec: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(spec).encode(), 9)).decode()


def forge_rendering(world: World) -> None:
    spec = copy.deepcopy(cluster_of(world)["spec"])
    pod = spec["headGroupSpec"]["template"]["spec"]
    pod |= {"hostPID": True, "serviceAccountName": FORGED}
    annotations_of(world)[RENDERED_ANNOTATION] = compress(spec)


def forge_accepted(world: World, **spec: Any) -> None:
    data = accepted_of(world)["data"]
    config = json.loads(data["experiment.json"])
    config["spec"] |= spec
    data["experiment.json"] = json.dumps(config)


def make_run_that_newer_rules_refuse() -> World:
    """Return a run that an older release accepted; the host's network stands for any new rule."""
    world = running()
    world.document["spec"]["head"] = HOST
    forge_accepted(world, head=HOST)
    world.children[world.owner.accepted] = SEAL.stamp(accepted_of(world))
    del world.status["acceptedDigests"]
    world.settle()
    return world


def written(decision: Decision) -> str:
    return json.dumps([decision.create, decision.apply, decision.patches])


def numbers(world: World) -> list[int]:
    return [world.num_clusters, world.status["run"], world.status["attempt"]]


# --- the RayCluster -------------------------------------------------------------------------------


def test_a_forged_rendering_reaches_no_object() -> None:
    world = running()
    forge_rendering(world)
    decision = world.step()
    assert decision.patches == ()
    world.settle()
    assert FORGED not in str(cluster_of(world)["spec"])
    assert world.condition("ClusterReady") == ("True", "NotCorrected")
    assert world.events.count("Warning NotCorrected") == 1
    assert numbers(world) == [1, 1, 1]


def test_a_forged_rendering_with_a_copied_seal_reaches_no_object() -> None:
    world, other = running(), running()
    other.document["metadata"]["uid"] = "another"
    forge_rendering(world)
    cluster_of(world)["metadata"]["annotations"][SEAL_ANNOTATION] = annotations_of(other)[
        SEAL_ANNOTATION
    ]
    assert world.step().patches == ()


def test_a_cluster_without_a_seal_runs_on_uncorrected_and_the_next_is_sealed() -> None:
    world = running()
    remove_seals(world)
    cluster_of(world)["spec"]["headGroupSpec"]["template"]["spec"]["hostNetwork"] = True
    before = copy.deepcopy(cluster_of(world))
    world.settle()
    assert cluster_of(world) == before
    assert world.condition("ClusterReady") == ("True", "PodsReady")
    assert numbers(world) == [1, 1, 1]

    world.edit(suspend=True)
    world.settle()
    assert world.ray_cluster is None
    world.edit(suspend=False)
    world.settle()
    assert SEAL.judge(cluster_of(world), UID) == VALID


def test_a_cluster_without_a_seal_is_deleted_and_its_workers_keep_to_their_bounds() -> None:
    world = running(dataWorkers={"minReplicas": 1, "maxReplicas": 4})
    remove_seals(world)
    world.edit(dataWorkers={"minReplicas": 3, "maxReplicas": 4})
    world.settle()
    assert cluster_of(world)["spec"]["workerGroupSpecs"][1]["replicas"] == 3
    world.delete()
    for _ in range(3):
        world.step(seconds=2)
    assert world.gone


def test_another_key_restarts_nothing() -> None:
    world = running()
    world.seal = OTHER_KEY
    world.settle()
    assert numbers(world) == [1, 1, 1]
    assert OTHER_KEY.judge(accepted_of(world), UID) == VALID
    assert world.events.count("Warning SealBroken") == 1
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert numbers(world) == [1, 1, 1]


def test_an_edit_is_not_undone_to_what_is_no_longer_allowed() -> None:
    wide = parse_settings({"runtimeImage": "runtime:1", "serviceAccounts": {"*": ["strong"]}})
    account = {"template": {"spec": {"serviceAccountName": "strong"}}}
    world = running(settings=wide, head=account)
    world.settings = parse_settings({"runtimeImage": "runtime:1"})
    world.edit(head={})
    world.document["spec"].pop("head")
    remove = cluster_of(world)["spec"]["headGroupSpec"]["template"]["spec"]
    remove["serviceAccountName"] = "weak"
    decision = world.step()
    assert "strong" not in written(decision)


def bomb() -> str:
    """Return 26 KB of text that inflate to 20 MB, and would take 400 MB once parsed."""
    return base64.b64encode(zlib.compress(b"[" + b"[]," * (7 << 20), 9)).decode()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_rendering_inflates_to_no_more_than_a_cluster_may_hold(is_sealed: bool) -> None:
    world = running()
    annotations_of(world)[RENDERED_ANNOTATION] = bomb()
    cluster = SEAL.stamp(cluster_of(world)) if is_sealed else cluster_of(world)
    assert SEAL.judge(cluster, UID) == (VALID if is_sealed else BROKEN)
    tracemalloc.start()
    try:
        assert thaw(cluster, UID, SEAL) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (4 * MAX_RENDERED_BYTES if is_sealed else 1 << 20)


@pytest.mark.parametrize(
    "text", ["9" * 200_000 + "x1", "1x" + "9" * 5000, "٣x١", "0x1", "-1x2", "1x2\n", "x", ""]
)
def test_numbers_of_trainers_that_no_spec_asks_for_are_none(text: str) -> None:
    assert read_trainers({"metadata": {"annotations": {TRAINERS_ANNOTATION: text}}}) is None


# --- the accepted spec ----------------------------------------------------------------------------


def test_a_forged_accepted_spec_does_not_count_while_the_spec_is_bad() -> None:
    world = running()
    forge_accepted(world, dataset={"parquet": {"uri": FORGED}}, head=HOST)
    world.edit(**BAD_EDIT)
    world.settle()
    world.lose_cluster()
    for _ in range(4):
        assert FORGED not in written(world.step(seconds=60))
    assert "hostNetwork" not in str(world.ray_cluster)
    assert world.condition("Accepted") == ("False", "InvalidSpec")


def test_an_accepted_spec_of_an_older_operator_is_sealed_and_begins_nothing() -> None:
    world = running()
    remove_seals(world)
    world.settle()
    assert SEAL.judge(accepted_of(world), UID) == VALID
    assert "Warning SealBroken" not in world.events
    assert numbers(world) == [1, 1, 1]


def test_a_run_that_newer_rules_refuse_goes_on_to_its_end() -> None:
    world = make_run_that_newer_rules_refuse()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Training") == ("True", "Running")
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert numbers(world) == [1, 1, 1]


def test_a_run_from_before_seals_continues_despite_newer_rules() -> None:
    world = running()
    world.document["spec"]["head"] = HOST
    forge_accepted(world, head=HOST)
    world.replace_cluster_as_older()
    remove_seals(world)
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")


def test_no_template_is_spared_by_a_config_map_without_a_seal() -> None:
    world = running()
    template = {"template": {"spec": {"serviceAccountName": "another"}}}
    forge_accepted(world, head=template)
    remove_seals(world)
    world.edit(head=template)
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert "another" not in str(world.ray_cluster)


def test_a_uri_that_was_not_accepted_is_refused_though_the_run_is_the_same() -> None:
    world = running()
    world.edit(storage={"root": "gs://b/p?endpoint_override=evil.example"})
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")


def test_a_lost_cluster_is_not_made_again_with_what_is_forbidden() -> None:
    world = make_run_that_newer_rules_refuse()
    world.lose_cluster()
    for _ in range(4):
        world.step(seconds=60)
    assert world.ray_cluster is None
    assert world.condition("ClusterReady") == ("False", "ClusterRefused")


def test_a_template_that_drops_the_account_is_refused_before_a_cluster_is_made() -> None:
    pod = {"$patch": "replace", "containers": [{"name": "ray", "image": "mine:1"}]}
    world = World(build_document(trainers={"replicas": 1, "template": {"spec": pod}}))
    for _ in range(3):
        world.step()
    assert world.ray_cluster is None


# --- anything at all ------------------------------------------------------------------------------

TEXTS = st.text(max_size=60) | st.sampled_from(
    [bomb(), "[" * 100_000, "{}", "null", "7", '{"spec": 1}', compress({}), compress([1]), "v1:"]
)


@given(
    annotations=st.dictionaries(
        st.sampled_from(
            [CLUSTER_HASH_ANNOTATION, RENDERED_ANNOTATION, TRAINERS_ANNOTATION, SEAL_ANNOTATION]
        ),
        TEXTS,
    ),
    data=st.none() | st.dictionaries(st.sampled_from(["run", "experiment.json"]), TEXTS),
    seal=st.none() | TEXTS,
    is_edit_bad=st.booleans(),
)
def test_no_text_in_a_stored_object_is_an_error_or_reaches_another(
    annotations: dict[str, str], data: dict[str, str] | None, seal: str | None, is_edit_bad: bool
) -> None:
    world = copy.deepcopy(TRAINS)
    annotations_of(world).update(annotations)
    accepted = accepted_of(world)
    accepted["data"] = data
    if data is None:
        del accepted["data"]
    accepted["metadata"]["annotations"] = {} if seal is None else {SEAL_ANNOTATION: seal}
    if is_edit_bad:
        world.edit(**BAD_EDIT)
    said = written(world.step())
    for text in (*annotations.values(), *(data or {}).values()):
        assert len(text) < 8 or text not in said
    world.step()
    assert world.status["run"] == 1


TRAINS = running()


# --- seals and their key --------------------------------------------------------------------------


def test_a_seal_holds_for_one_object_of_one_experiment() -> None:
    world = running()
    config_map, cluster = accepted_of(world), cluster_of(world)
    assert SEAL.judge(config_map, UID) == SEAL.judge(cluster, UID) == VALID
    assert SEAL.judge(config_map, "another") == BROKEN
    assert OTHER_KEY.judge(config_map, UID) == BROKEN
    renamed = {**config_map, "metadata": {**config_map["metadata"], "name": "other"}}
    assert SEAL.judge(renamed, UID) == BROKEN
    changed = {**config_map, "data": {**config_map["data"], "run": "2"}}
    assert SEAL.judge(changed, UID) == BROKEN
    assert SEAL.judge({**config_map, "metadata": {"name": "x"}}, UID) == ABSENT
    assert SEAL.key.decode() not in repr(SEAL)


@dataclass
class Secrets:
    """An API server with one Secret; another replica may create it first."""

    secret: Document | None = None
    faster: Document | None = None
    writes: list[Document] = field(default_factory=list)

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        assert (kind, namespace, name) == ("Secret", "system", "seal")
        return self.secret

    async def create_new(self, document: Document) -> Document:
        self.writes.append(document)
        if self.faster is not None:
            self.secret = self.faster
            raise KubeConflict("already exists")
        self.secret = document
        return document


def fetch(secrets: Secrets) -> Seal:
    return asyncio.run(fetch_seal(secrets, "system", "seal"))


def test_the_key_is_made_once() -> None:
    secrets = Secrets()
    first = fetch(secrets)
    assert len(first.key) == KEY_BYTES
    assert (fetch(secrets), len(secrets.writes)) == (first, 1)
    assert fetch(Secrets()) != first


def test_replicas_that_start_together_use_one_key() -> None:
    first = Secrets()
    fetch(first)
    assert fetch(Secrets(faster=first.secret)) == fetch(first)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"key": ""},
        {"key": "c2hvcnQ="},
        {"key": "no base64!"},
        {"key": base64.b64encode(b"k" * (1 << 20)).decode()},
    ],
    ids=str,
)
def test_a_secret_without_a_key_is_named(data: Any) -> None:
    with pytest.raises(UserError, match="system/seal"):
        fetch(Secrets(secret={"data": data}))
