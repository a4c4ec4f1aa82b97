"""A process that takes part in an election, and prints each moment at which it may act.

    python standing_candidate.py KUBECONFIG NAME '{"name": "lease", "namespace": …}'

It reads the clock before it checks that it leads, and the check ends the process if it does not.
All processes of a machine share the clock, so the moments of successive leaders never overlap.
"""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from dataset_operator.election.candidate import Candidate
from dataset_operator.election.elector import Elector, Terms
from dataset_operator.election.guard import now
from dataset_operator.kube.client import KubeClient

PAUSE_SECONDS = 0.02


async def stand(kubeconfig: str, name: str, terms: Terms) -> None:
    configuration = Configuration()
    await config.load_kube_config(kubeconfig, client_configuration=configuration)

    @asynccontextmanager
    async def connect() -> AsyncIterator[KubeClient]:  # as `process` does it
        async with ApiClient(configuration) as client:
            yield KubeClient(client, request_seconds=terms.deadline_seconds / 2)

    candidate = Candidate(connect=connect, elector=Elector(identity=name, terms=terms))
    async with candidate.leading(asyncio.Event()):
        while True:
            moment = now()
            candidate.check()
            print(moment, flush=True)
            await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(stand(sys.argv[1], sys.argv[2], Terms(**json.loads(sys.argv[3]))))
