"""Find the API server and log in to it, by a kubeconfig or as a pod.

The official client (`configuration`) and Kopf's (`connection`) log in alike: contexts, exec plugins
and rotated tokens work in both.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import kopf
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from dataset_operator.errors import UserError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_KUBECONFIG = "~/.kube/config"
# The shortest-lived tokens of exec plugins, those of EKS, last 15 minutes.
REFRESH_SECONDS = 300.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The source of credentials.

    Attributes:
        in_cluster: True to use the service account of the pod that this process runs in.
        kubeconfig: files, separated as in KUBECONFIG; None: KUBECONFIG, else ~/.kube/config.
        context: a context of the kubeconfig; None: its current one.
    """

    in_cluster: bool = False
    kubeconfig: str | None = None
    context: str | None = None

    async def configuration(self) -> Configuration:
        """Return a configuration of the official client with a fresh token. Raises UserError."""
        found, _ = await self._load()
        return found

    async def namespace(self) -> str:
        """Return the namespace to use if none is named. Raises UserError."""
        _, namespace = await self._load()
        return namespace

    async def connection(self) -> kopf.ConnectionInfo:
        """Return a connection for Kopf with a fresh token. Raises UserError."""
        found, namespace = await self._load()
        scheme, _, token = str(found.api_key.get("BearerToken", "")).partition(" ")
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=scheme or None,
            token=token or None,
            proxy_url=found.proxy,
            default_namespace=namespace,
        )

    async def refresh_forever(self, *configurations: Configuration) -> NoReturn:
        """Keep the tokens of clients fresh; the client refreshes the token of a pod by itself."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                fresh = (await self.configuration()).api_key
                for configuration in configurations:
                    configuration.api_key = fresh
            except UserError as error:  # the API server reports an expired token
                _LOG.warning("no fresh credentials: %s", error)

    async def _load(self) -> tuple[Configuration, str]:
        found = Configuration()
        try:
            if self.in_cluster:
                config.load_incluster_config(found)  # type: ignore[no-untyped-call]
                return found, (_ACCOUNT / "namespace").read_text().strip()
            context = await self._load_kubeconfig(found)
        except (config.ConfigException, OSError) as error:
            raise UserError(self._explain(error)) from error
        return found, context.get("namespace") or "default"

    @property
    def _files(self) -> str:
        files = self.kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG
        return os.path.expanduser(files)

    async def _load_kubeconfig(self, found: Configuration) -> dict[str, Any]:
        if not any(Path(file).is_file() for file in self._files.split(os.pathsep)):
            raise FileNotFoundError("no such file")
        loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            self._files,
            context=self.context,
            client_configuration=found,
            persist_config=False,
        )
        context: dict[str, Any] = loader.current_context["context"]
        return context

    def _explain(self, error: Exception) -> str:
        if self.in_cluster:
            return (
                f"this must run in a pod with a service account, got: {error}; to use a kubeconfig "
                "give --dev"
            )
        return (
            f"{self._files}: must be a kubeconfig with the context {self.context or 'in use'}, "
            f"got: {error}; name another with --kubeconfig and --context"
        )


def is_in_pod() -> bool:
    """Return whether this process runs in a pod with a service account."""
    return (_ACCOUNT / "token").exists()


def has_kubeconfig() -> bool:
    """Return whether the user has a kubeconfig."""
    return bool(os.environ.get("KUBECONFIG")) or Path(_DEFAULT_KUBECONFIG).expanduser().exists()
