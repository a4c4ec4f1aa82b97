"""The key of the operator's seals: a Secret in the operator's namespace, created if it is absent.

All replicas and later versions use the same key, so it outlives the process. The leading replica
reads it once, at its start.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from dataset_operator.documents import Document
from dataset_operator.errors import KubeConflict, KubeRefused, UserError
from dataset_operator.sealing import KEY_BYTES, Seal

_DATA_KEY = "key"
_LOG = logging.getLogger(__name__)


class Secrets(Protocol):
    """The two requests to the API server that are needed; `KubeClient` makes them."""

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """Return an object; None if it does not exist."""

    async def create_new(self, document: Document) -> Document:
        """Create an object; return it as stored. Raises KubeConflict if it exists."""


async def fetch_seal(kube: Secrets, namespace: str, name: str) -> Seal:
    """Return the seal whose key is in a Secret; create the Secret if it does not exist.

    Raises:
        UserError: the Secret holds no key.
        KubeRefused: the operator has no right to it.
        KubeUnavailable: the API server did not answer.
    """
    found = await kube.get("Secret", namespace, name)
    if found is None:
        try:
            found = await kube.create_new(_build_secret(namespace, name))
            _LOG.info("created the Secret %s/%s: the key of the operator's seals", namespace, name)
        except KubeConflict as conflict:  # another replica was faster: its key counts
            found = await kube.get("Secret", namespace, name)
            if found is None:
                raise KubeRefused(f"there is no namespace {namespace}: {conflict}") from conflict
    key = _parse_key(found or {})
    if key is None:
        raise UserError(
            f"Secret {namespace}/{name}: {_DATA_KEY} must be {KEY_BYTES} bytes, which seal what "
            "the operator stores; delete the Secret and start the operator again, which makes "
            "another (clusters that run go on, but what is edited in them by hand stays)"
        )
    return Seal(key)


def _build_secret(namespace: str, name: str) -> Document:
    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/name": "lastmile-operator",
                "app.kubernetes.io/managed-by": "lastmile-operator",
            },
        },
        "immutable": True,
        "type": "Opaque",
        "data": {_DATA_KEY: key},
    }


def _parse_key(secret: Mapping[str, Any]) -> bytes | None:
    """Return the key in a Secret; None if it has no key of the right length."""
    text = (secret.get("data") or {}).get(_DATA_KEY)
    try:
        key = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (ValueError, binascii.Error):
        return None
    return key if len(key) == KEY_BYTES else None
