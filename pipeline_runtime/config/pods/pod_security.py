"""Checks pod templates and whole pods against the level `baseline` of Kubernetes.

Rules and lists are those of the Pod Security Standards (kubernetes.io, «Pod Security Standards»,
1.34), and upstream's own examples are tests of them. One more capability is allowed, `IPC_LOCK`:
RDMA needs it, and a pod locks no memory beyond its own limit. The operator's pods are of the level
`restricted`. If a template goes beyond that level but not beyond `baseline`, the namespace's label
`enforce` decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

JsonObject = dict[str, JsonValue]
Broken = Iterator[tuple[str, str]]

HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")

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
_PROFILES = frozenset({"RuntimeDefault", "Localhost"})
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
_ACTIONS = ("httpGet", "tcpSocket")  # the handlers that can name a host


def check_pod_security(path: str, template: JsonObject) -> Broken:
    """Yield the path and message of everything in a pod that the level `baseline` refuses.

    Args:
        template: the pod's `metadata` and `spec`.
    """
    annotations = as_mapping(as_mapping(template.get("metadata")).get("annotations"))
    yield from _check_annotations(f"{path}.metadata.annotations", annotations)
    path, pod = f"{path}.spec", as_mapping(template.get("spec"))
    for field in HOST_NAMESPACES:
        if pod.get(field):
            yield f"{path}.{field}", "must not be true, since pods do not share the host; remove it"
    yield from _check_pod_context(f"{path}.securityContext", as_mapping(pod.get("securityContext")))
    for index, volume in enumerate(as_mappings(pod.get("volumes"))):
        if "hostPath" in volume:
            at = f"{path}.volumes[{index}].hostPath"
            yield at, "must not be used; use a claim or emptyDir"
    for at, container in walk_containers(path, pod):
        context = as_mapping(container.get("securityContext"))
        yield from _check_context(f"{at}.securityContext", context)
        yield from _check_ports(f"{at}.ports", container)
        yield from _check_hosts(at, container)


def walk_containers(path: str, pod: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield the path and fields of each container of a pod's spec, of all three kinds."""
    for field in CONTAINER_LISTS:
        for index, container in enumerate(as_mappings(pod.get(field))):
            yield f"{path}.{field}[{index}]", container


def _check_annotations(path: str, annotations: JsonObject) -> Broken:
    for name, value in annotations.items():
        is_known = isinstance(value, str) and value.startswith("localhost/")
        if name.startswith(_APPARMOR) and not is_known and value not in ("", "runtime/default"):
            yield f"{path}.{name}", "must be runtime/default or localhost/…; remove it"


def _check_pod_context(path: str, context: JsonObject) -> Broken:
    yield from _check_both(path, context)
    for index, sysctl in enumerate(as_mappings(context.get("sysctls"))):
        if not _is_one(name := sysctl.get("name"), SYSCTLS):
            yield (
                f"{path}.sysctls[{index}].name",
                f"must be a sysctl of the pod alone, got {name!r}; remove it",
            )


def _check_context(path: str, context: JsonObject) -> Broken:
    yield from _check_both(path, context)
    if context.get("privileged"):
        yield f"{path}.privileged", "must not be true; remove it"
    if (proc := context.get("procMount")) not in (None, "Default"):
        yield f"{path}.procMount", f"must be Default, got {proc!r}; remove it"
    added = as_mapping(context.get("capabilities")).get("add")
    for index, name in enumerate(added if isinstance(added, list) else []):
        if not _is_one(name, CAPABILITIES):
            yield (
                f"{path}.capabilities.add[{index}]",
                f"must not be {name!r}, which reaches beyond the pod; remove it",
            )


def _check_ports(path: str, container: JsonObject) -> Broken:
    for index, port in enumerate(as_mappings(container.get("ports"))):
        if port.get("hostPort"):
            yield (
                f"{path}[{index}].hostPort",
                "must not be set, since it opens the host; remove it",
            )


def _check_hosts(path: str, container: JsonObject) -> Broken:
    """Check that no probe or hook names a host, which the node's kubelet would then reach."""
    lifecycle = as_mapping(container.get("lifecycle"))
    handlers = {f"{path}.{name}": container.get(name) for name in _PROBES}
    handlers |= {f"{path}.lifecycle.{name}": lifecycle.get(name) for name in _HOOKS}
    for at, handler in handlers.items():
        for kind in _ACTIONS:
            if as_mapping(as_mapping(handler).get(kind)).get("host"):
                yield (
                    f"{at}.{kind}.host",
                    "must not be set, since the node would reach that host; remove it",
                )


def _check_both(path: str, context: JsonObject) -> Broken:
    """Check the fields that pods and containers have in common."""
    if as_mapping(context.get("windowsOptions")).get("hostProcess"):
        yield f"{path}.windowsOptions.hostProcess", "must not be true; remove it"
    for field in ("seccompProfile", "appArmorProfile"):
        kind = as_mapping(context.get(field)).get("type")
        if kind is not None and not _is_one(kind, _PROFILES):
            yield f"{path}.{field}.type", f"must be RuntimeDefault or Localhost, got {kind!r}"
    options = as_mapping(context.get("seLinuxOptions"))
    if not _is_one(kind := options.get("type", ""), _SELINUX_TYPES):
        yield f"{path}.seLinuxOptions.type", f"must be a container's type, got {kind!r}; remove it"
    for field in ("user", "role"):
        if options.get(field):
            yield f"{path}.seLinuxOptions.{field}", "must not be set; remove it"


def _is_one(value: JsonValue, words: frozenset[str]) -> bool:
    return isinstance(value, str) and value in words


def as_mapping(value: JsonValue) -> JsonObject:
    """Return a mapping as it is, and anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: JsonValue) -> list[JsonObject]:
    """Return the items of a list as mappings, and anything else as an empty list."""
    return [as_mapping(item) for item in value] if isinstance(value, list) else []
