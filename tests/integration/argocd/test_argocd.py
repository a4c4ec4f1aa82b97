"""The real Argo CD syncs the samples and judges experiments that the operator runs."""

import json
from typing import Any

import pytest
from argocd_stage import NAMESPACE, ArgoCD
from git_repository import Repository
from gitops_stage import KIND, TEAM, Document, Gitops, play
from operated import until

from dataset_operator.names import Owner

pytestmark = pytest.mark.timeout(600)

FOLDER = f"teams/{TEAM}"
SAMPLE = f"{FOLDER}/clicks.yaml"


def experiment(name: str, namespace: str | None = None, **spec: Any) -> Document:
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": KIND,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
    }


def keep(percent: int, document: Document) -> None:
    document["spec"]["pipeline"][1]["downsample"]["keepPercent"] = percent


def test_experiments_of_every_phase_are_judged_and_none_is_out_of_sync(
    argocd: ArgoCD, repository: Repository
) -> None:
    async def story(ops: Gitops) -> None:
        huge = {"resources": {"requests": {"cpu": "5000"}}}  # no node has as much
        repository.write(f"{FOLDER}/waits.yaml", experiment("waits", trainers=huge))
        repository.write(f"{FOLDER}/ends.yaml", experiment("ends"))
        repository.write(f"{FOLDER}/fails.yaml", experiment("fails", backoffLimit=0))
        repository.write(f"{FOLDER}/rests.yaml", experiment("rests", suspend=True))
        repository.commit()
        await ops.deploy("application.yaml")
        head = ops.fleet.head
        head.end(await ops.fleet.driver(TEAM, "ends"), "SUCCEEDED")
        failed = await ops.fleet.driver(TEAM, "fails")
        head.end(failed, "FAILED", message="no such column: clikced", driver_exit_code=1)

        await ops.is_judged("waits", "Progressing", "Insufficient cpu")
        await ops.is_judged("clicks", "Healthy", "Running")
        await ops.is_judged("ends", "Healthy", "Succeeded")
        await ops.is_judged("fails", "Degraded", "no such column: clikced")
        await ops.is_judged("rests", "Suspended", "SuspendedBySpec")
        assert await ops.differs() == []
        status = (await ops.application())["status"]
        assert status["operationState"]["phase"] == "Succeeded"  # though one waits
        waves = {found["name"]: found.get("syncWave", 0) for found in status["resources"]}
        assert waves["environment"] < waves["clicks"]

    play(argocd, repository, story)


async def scale(ops: Gitops, replicas: int) -> None:
    """Set the number of data workers as the autoscaler does, and wait until the status has it."""
    owner = Owner.of(await ops.fleet.experiment(TEAM, "clicks"))
    path = "/spec/workerGroupSpecs/1/replicas"
    patch = json.dumps([{"op": "replace", "path": path, "value": replicas}])
    place = ("raycluster", owner.ray_cluster, "-n", TEAM)
    await ops.kubectl("patch", *place, "--type=json", "-p", patch)

    async def is_there() -> bool:
        status = await ops.fleet.status(TEAM, "clicks")
        return bool(status["dataWorkers"]["currentReplicas"] == replicas)

    await until(f"{replicas} data workers", is_there)


@pytest.mark.slow
def test_workers_come_and_go_a_commit_makes_another_run_and_a_removed_manifest_ends_it(
    argocd: ArgoCD, repository: Repository
) -> None:
    async def story(ops: Gitops) -> None:
        await ops.deploy("application.yaml")
        fleet = ops.fleet
        first = await fleet.driver(TEAM, "clicks")
        await scale(ops, 3)
        assert await ops.differs() == []

        await ops.push(repository.edit(SAMPLE, lambda document: keep(10, document)))

        async def another() -> str:
            driver = await fleet.driver(TEAM, "clicks")
            return driver if driver != first else ""

        second = await until("another driver", another)
        assert (await fleet.status(TEAM, "clicks"))["run"] == 2
        trained = fleet.head.experiment_of(second)["spec"]["pipeline"]
        assert trained[1]["downsample"]["keepPercent"] == 10
        await ops.is_judged("clicks", "Healthy", "Running")

        owner = Owner.of(await fleet.experiment(TEAM, "clicks"))
        fleet.head.keeps_running = True
        commit = repository.remove(SAMPLE)
        await ops.refresh()

        async def is_asked() -> bool:
            return second in fleet.head.asked

        await until("the driver to be asked for its checkpoint", is_asked)
        cluster = await fleet.kube.get("RayCluster", TEAM, owner.ray_cluster)
        assert cluster is not None
        assert "deletionTimestamp" not in cluster["metadata"], "the driver is at its checkpoint"
        fleet.head.end(second, "STOPPED")

        async def is_gone() -> bool:
            left = await ops.kubectl("get", "dsexp,raycluster,pods", "-n", TEAM, "-o", "name")
            return not left

        await until("the end of all that was made for it", is_gone)
        await ops.push(commit)

    play(argocd, repository, story)


@pytest.mark.slow
def test_who_stops_an_experiment_keeps_it_stopped_unless_git_has_a_say(
    argocd: ArgoCD, repository: Repository
) -> None:
    async def story(ops: Gitops) -> None:
        await ops.deploy("application.yaml")
        await ops.fleet.driver(TEAM, "clicks")
        await ops.patch("clicks", {"suspend": True})
        await ops.is_judged("clicks", "Suspended", "SuspendedBySpec")
        assert await ops.differs() == []
        await ops.push(repository.edit(SAMPLE, lambda document: keep(10, document)))
        found = await ops.fleet.experiment(TEAM, "clicks")
        assert found["spec"]["suspend"], "a commit that does not name it leaves it"
        await ops.patch("clicks", {"suspend": False})
        await ops.is_judged("clicks", "Healthy", "Running")

        await ops.push(
            repository.edit(SAMPLE, lambda document: document["spec"].update(suspend=False))
        )
        await ops.patch("clicks", {"suspend": True})
        assert await ops.differs() == ["clicks"]
        await ops.push(repository.edit(SAMPLE, lambda document: keep(20, document)))
        await ops.is_judged("clicks", "Healthy", "Running")

    play(argocd, repository, story)


@pytest.mark.slow
def test_a_set_has_an_application_for_each_team_which_its_project_keeps_within_bounds(
    argocd: ArgoCD, repository: Repository
) -> None:
    async def story(ops: Gitops) -> None:
        repository.write("teams/search/stray.yaml", experiment("stray"))
        repository.commit()
        argocd.apply_sample("applicationset.yaml", repository)
        await ops.fleet.driver(TEAM, "clicks")
        await ops.is_judged("clicks", "Healthy", "Running")

        async def is_told(kind: str, name: str, words: str) -> bool:
            return words in await ops.kubectl("get", kind, name, "-n", NAMESPACE, "-o", "json")

        async def is_without_project() -> bool:
            words = "experiments-search which does not exist"
            return await is_told("applicationset", "experiments", words)

        await ops.until("a team without a project to be told", is_without_project)

        repository.write(f"{FOLDER}/stray.yaml", experiment("stray", "default"))
        repository.commit()
        await ops.refresh()

        async def is_out_of_bounds() -> bool:
            words = "namespace default is not permitted in project"
            return await is_told("application", ops.name, words)

        await ops.until("another's namespace to be refused", is_out_of_bounds)
        assert not await ops.kubectl("get", "dsexp", "-n", "default", "-o", "name")

        repository.remove(FOLDER)
        look = "argocd.argoproj.io/application-set-refresh=true"
        await ops.kubectl("annotate", "applicationset", "experiments", "-n", NAMESPACE, look)

        async def is_left() -> bool:
            names = await ops.kubectl("get", "application", "-n", NAMESPACE, "-o", "name")
            return ops.name not in names

        await until("the end of the Application", is_left)
        assert await ops.fleet.driver(TEAM, "clicks"), "it trains on"

    play(argocd, repository, story, name="experiments-ads")
