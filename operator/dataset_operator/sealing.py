"""Seals for data that the operator stores in objects that users can write, and reads back later.

A seal is an annotation: an HMAC-SHA256 over the object's kind and name, the uid of the experiment
that owns it, and the stored content. `Decision.seal` adds it before the executor writes; `observe`
checks it before the plan reads. `kube.seal_key` fetches the key.

An object without a valid seal is not an error: it may be older than the seals, or the key may have
been replaced. Its run goes on, but the operator does not trust the content of the object.

A seal does not show that an object is the latest one: a user may put an older sealed copy back. So
the status, which the users who edit ConfigMaps cannot write, holds digests of the accepted spec.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from dataset_operator.api import (
    CLUSTER_HASH_ANNOTATION,
    RENDERED_ANNOTATION,
    SEAL_ANNOTATION,
    TRAINERS_ANNOTATION,
)
from dataset_operator.documents import Document

KEY_BYTES = 32  # the length of the digest (RFC 2104, section 3)
_SCHEME = "v1:"
_CLUSTER_ANNOTATIONS = (CLUSTER_HASH_ANNOTATION, RENDERED_ANNOTATION, TRAINERS_ANNOTATION)

# Broken: the seal was made with another key or over other content.
SealState = Literal["Valid", "Absent", "Broken"]
VALID: SealState = "Valid"
ABSENT: SealState = "Absent"
BROKEN: SealState = "Broken"


def compute_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of parsed JSON; "" if it is nested too deep to be serialised."""
    try:
        text = json.dumps(content, sort_keys=True)
    except RecursionError:
        return ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Seal:
    """Adds seals to objects, and checks them, with a key that users cannot read."""

    key: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """Return a seal with a new random key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def stamp(self, document: Document) -> Document:
        """Return an object for a write, with its seal if objects of its kind have one."""
        if document["kind"] not in ("RayCluster", "ConfigMap"):
            return document
        metadata = document["metadata"]
        [owner] = metadata["ownerReferences"]
        sealed = {SEAL_ANNOTATION: self._sign(document, owner["uid"])}
        annotations = {**metadata.get("annotations", {}), **sealed}
        return {**document, "metadata": {**metadata, "annotations": annotations}}

    def judge(self, document: Mapping[str, Any], uid: str) -> SealState:
        """Return whether the operator wrote the stored content of an experiment's object.

        Args:
            uid: the uid of the experiment.
        """
        found = _annotations(document).get(SEAL_ANNOTATION)
        if found is None:
            return ABSENT
        wanted = self._sign(document, uid)
        is_same = hmac.compare_digest(str(found).encode(errors="replace"), wanted.encode())
        return VALID if is_same else BROKEN

    def _sign(self, document: Mapping[str, Any], uid: str) -> str:
        kind, name = document["kind"], document["metadata"]["name"]
        text = json.dumps([_SCHEME, kind, name, uid, _read_content(document)], sort_keys=True)
        return _SCHEME + hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def _read_content(document: Mapping[str, Any]) -> Any:
    """Return the part of an object that its seal covers."""
    if document["kind"] == "ConfigMap":
        return document.get("data")
    annotations = _annotations(document)
    return {name: annotations.get(name) for name in _CLUSTER_ANNOTATIONS}


def _annotations(document: Mapping[str, Any]) -> Mapping[str, Any]:
    annotations: Mapping[str, Any] = document["metadata"].get("annotations") or {}
    return annotations
