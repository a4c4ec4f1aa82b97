"""What a pod template may not ask of the host: the level `baseline` of Kubernetes.

Rules and lists are those of the Pod Security Standards (kubernetes.io, «Pod Security Standards»,
1.34), with one capability more: a pod that locks memory takes nothing from anybody beyond its
limit, and RDMA needs it. Ours are of the level `restricted`; a template that asks for more than
that and less than this is the namespace's to judge, by its label `enforce`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

Broken = Iterator[tuple[str, str]]

CAPABILITIES = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
})  # fmt: skip
SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
})  # fmt: skip
_SELINUX_TYPES = frozenset(
    {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
)
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_UNCONFINED = "Unconfined"


def check_annotations(path: str, annotations: dict[str, JsonValue]) -> Broken:
    """Yield (path, message) for every annotation that takes AppArmor's profile away."""
    for name, value in annotations.items():
        if name.startswith(_APPARMOR) and value == "unconfined":
            yield f"{path}.{name}", "must not be unconfined; remove it"


def check_pod_security(path: str, pod: dict[str, JsonValue]) -> Broken:
    """Yield (path, message) for everything that a pod as a whole may not ask for."""
    context = _mapping(pod.get("securityContext"))
    yield from _check_both(f"{path}.securityContext", context)
    for index, sysctl in enumerate(_mappings(context.get("sysctls"))):
        if not _is_one(name := sysctl.get("name"), SYSCTLS):
            yield (
                f"{path}.securityContext.sysctls[{index}].name",
                f"must be one that is the pod's own, got {name!r}; remove it",
            )
    for index, volume in enumerate(_mappings(pod.get("volumes"))):
        at = f"{path}.volumes[{index}]"
        if "hostPath" in volume:
            yield f"{at}.hostPath", "must not be used; use a claim or emptyDir"
        sources = _mappings(_mapping(volume.get("projected")).get("sources"))
        for number, source in enumerate(sources):
            if "serviceAccountToken" in source:
                yield (
                    f"{at}.projected.sources[{number}].serviceAccountToken",
                    "must not be used, since pods have no business with the Kubernetes API; "
                    "remove it",
                )


def check_container_security(path: str, container: dict[str, JsonValue]) -> Broken:
    """Yield (path, message) for everything that a container may not ask for."""
    context = _mapping(container.get("securityContext"))
    path = f"{path}.securityContext"
    yield from _check_both(path, context)
    if context.get("privileged"):
        yield f"{path}.privileged", "must not be true; remove it"
    if (proc := context.get("procMount")) not in (None, "Default"):
        yield f"{path}.procMount", f"must be Default, got {proc!r}; remove it"
    added = _mapping(context.get("capabilities")).get("add")
    for index, name in enumerate(added if isinstance(added, list) else []):
        if not _is_one(name, CAPABILITIES):
            yield (
                f"{path}.capabilities.add[{index}]",
                f"must not be {name!r}, which reaches beyond the pod; remove it",
            )


def _check_both(path: str, context: dict[str, JsonValue]) -> Broken:
    """What pods and containers have alike."""
    if _mapping(context.get("windowsOptions")).get("hostProcess"):
        yield f"{path}.windowsOptions.hostProcess", "must not be true; remove it"
    for field in ("seccompProfile", "appArmorProfile"):
        if _mapping(context.get(field)).get("type") == _UNCONFINED:
            yield (
                f"{path}.{field}.type",
                f"must not be {_UNCONFINED}; use RuntimeDefault or Localhost",
            )
    options = _mapping(context.get("seLinuxOptions"))
    if not _is_one(kind := options.get("type", ""), _SELINUX_TYPES):
        yield f"{path}.seLinuxOptions.type", f"must be a container's type, got {kind!r}; remove it"
    for field in ("user", "role"):
        if options.get(field):
            yield f"{path}.seLinuxOptions.{field}", "must not be set; remove it"


def _is_one(value: JsonValue, words: frozenset[str]) -> bool:
    return isinstance(value, str) and value in words


def _mapping(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _mappings(value: JsonValue) -> list[dict[str, JsonValue]]:
    return [_mapping(item) for item in value] if isinstance(value, list) else []
