"""A team that keeps its experiments in Git: its repository, its Application, its operator."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from argocd_stage import NAMESPACE, ArgoCD, health_of, out_of_sync, synced_to
from git_repository import Repository
from operated import Operated, operated, until

TEAM = "ads"
KIND = "DatasetExperiment"
REFRESH = "argocd.argoproj.io/refresh"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gitops:
    """A team's Application, and the operator that runs what it brings.

    Attributes:
        name: name of the Application.
    """

    argocd: ArgoCD
    repository: Repository
    fleet: Operated
    name: str = TEAM

    async def kubectl(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.argocd.box.kubectl, *arguments)

    async def application(self) -> Document:
        return await asyncio.to_thread(self.argocd.application, self.name)

    async def deploy(self, sample: str) -> None:
        """Apply a sample's Application, and wait until the cluster matches the last commit."""
        self.argocd.apply_sample(sample, self.repository)
        await self.push(self.repository.head)

    async def refresh(self) -> None:
        """Ask Argo CD to compare now, as a webhook of the repository's host does."""
        now = f"{REFRESH}=normal"
        await self.kubectl("annotate", "application", self.name, "-n", NAMESPACE, now)

    async def push(self, commit: str) -> None:
        """Wait until the cluster matches a commit.

        Argo CD compares by itself only every few minutes. A comparison can come too early, such as
        before its cache has the project of the Application, so each one that ends is followed by
        another.
        """

        async def is_synced() -> bool:
            application = await self.application()
            if synced_to(application) == commit:
                return True
            if REFRESH not in application["metadata"].get("annotations", {}):
                await self.refresh()
            return False

        await self.until(f"{commit} in the cluster", is_synced)

    async def is_judged(self, name: str, health: str, message: str = "", kind: str = KIND) -> None:
        """Wait until Argo CD reports this health of a resource, and `message` within its text."""

        async def holds() -> bool:
            said, why = health_of(await self.application()).get((kind, name), ("", ""))
            return said == health and message in why

        await self.until(f"{name} {health}: {message!r}", holds)

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `holds` returns True; otherwise raise with the Application's status."""
        try:
            await until(what, holds)
        except AssertionError as error:
            status = json.dumps((await self.application()).get("status"), indent=1)
            raise AssertionError(f"{error}: {status}") from None

    async def differs(self) -> list[str]:
        """Compare again, and return the names of the resources that differ from Git."""
        await self.refresh()

        async def is_compared() -> bool:
            annotations = (await self.application())["metadata"].get("annotations", {})
            return REFRESH not in annotations

        await self.until("another comparison", is_compared)
        return out_of_sync(await self.application())

    async def patch(self, name: str, spec: Document) -> None:
        """Patch the spec of an experiment, as `lastmile stop` does."""
        change = ("--type=merge", "--field-manager=lastmile-cli", "-p", json.dumps({"spec": spec}))
        await self.kubectl("patch", "dsexp", name, "-n", TEAM, *change)


def play(
    argocd: ArgoCD,
    repository: Repository,
    story: Callable[[Gitops], Awaitable[None]],
    *,
    name: str = TEAM,
) -> None:
    """Play a story of the sample's team, and remove everything afterwards.

    Args:
        name: name of its Application.
    """

    async def run() -> None:
        async with operated(argocd.box) as fleet, of_team(argocd, repository):
            await story(Gitops(argocd=argocd, repository=repository, fleet=fleet, name=name))

    asyncio.run(run())


@asynccontextmanager
async def of_team(argocd: ArgoCD, repository: Repository) -> AsyncIterator[None]:
    """Create the team's project and namespace, and delete them at the end."""

    async def kubectl(*arguments: str) -> None:
        await asyncio.to_thread(argocd.box.kubectl, *arguments)

    await kubectl("create", "namespace", TEAM)
    try:
        argocd.apply_sample("appproject.yaml", repository)
        yield
    finally:
        ours = ("applicationset,application,appproject", "--all", "-n", NAMESPACE)
        await kubectl("delete", *ours)
        await kubectl("delete", "dsexp", "--all", "-n", TEAM)
        await kubectl("delete", "namespace", TEAM)
