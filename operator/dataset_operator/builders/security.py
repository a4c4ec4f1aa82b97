"""Builds the security contexts of pods and containers, at the level `restricted`."""

from __future__ import annotations

from dataset_operator.builders.shared_parts import Document
from dataset_operator.settings import OperatorSettings


def build_pod_context(settings: OperatorSettings) -> Document:
    """Build the security context of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": settings.run_as_user,
        "runAsGroup": settings.run_as_user,
        "fsGroup": settings.run_as_user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def build_container_context() -> Document:
    """Build the security context of a container."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
