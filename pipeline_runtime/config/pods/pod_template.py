"""Checks a user's pod template, and reports each refusal with its field's path.

The template is the `metadata` and `spec` of a Kubernetes pod. The operator merges it by name into
its own, and the API server judges the whole in a dry run. This module refuses only fields that
would break the cluster or its isolation: those that Lastmile and Ray own, host namespaces and
paths, privileges, and the API token.
"""

from __future__ import annotations

from pydantic import JsonValue

from pipeline_runtime.config.pods.pod_security import (
    CONTAINER_LISTS,
    Broken,
    JsonObject,
    as_mapping,
    as_mappings,
    check_pod_security,
    walk_containers,
)
from pipeline_runtime.config.texts.credentials import holds_secret
from pipeline_runtime.config.texts.yaml_documents import show_key

# Name of container 0, which runs Ray in every pod; templates address it by this name.
RAY_CONTAINER = "ray"
RESERVED_PORTS = {
    6379: "Ray's GCS",
    8080: "Ray's metrics",
    8265: "Ray's dashboard and Jobs API",
    9464: "Lastmile's metrics",
    10001: "Ray's client server",
}
_OWN_LABELS = ("ray.io/", "experiments.lastmile.dev/", "lastmile.dev/")
_OWN_LABEL_NAMES = frozenset({"ray-subcluster"})
OWN_ENV_PREFIXES = ("LASTMILE_", "RAY_", "KUBERAY_", "FQ_RAY_")
TUNING_ENV_PREFIXES = ("RAY_DATA_", "RAY_TRAIN_")
GPU_VENDORS = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "habana.ai/")


def is_gpu_resource(name: str) -> bool:
    """Return whether a resource name counts accelerators (`nvidia.com/gpu`, a MIG profile, …)."""
    return name.startswith(GPU_VENDORS)


def check_env_name(name: str) -> str | None:
    """Return the broken rule if a variable is Ray's or Lastmile's; None if a user may set it."""
    if not name.startswith(OWN_ENV_PREFIXES) or name.startswith(TUNING_ENV_PREFIXES):
        return None
    return f"must not be one of Ray's or Lastmile's own variables, got {name!r}; remove it"


def check_template(path: str, template: JsonObject) -> Broken:
    """Yield the path and message of everything in a pod template that is refused."""
    for key in sorted(template.keys() - {"metadata", "spec"}):
        yield (
            f"{path}.{key}",
            f"must be below metadata or spec of the template; did you mean spec.{show_key(key)}?",
        )
    yield from _check_directives(path, template)
    yield from _check_shape(path, template)
    yield from check_template_security(path, template)
    yield from _check_metadata(f"{path}.metadata", as_mapping(template.get("metadata")))
    pod = as_mapping(template.get("spec"))
    if "serviceAccount" in pod:
        yield f"{path}.spec.serviceAccount", "must not be used; use serviceAccountName"
    for at, container in walk_containers(f"{path}.spec", pod):
        yield from _check_container(at, container)


def check_template_security(path: str, template: JsonObject) -> Broken:
    """Yield the path and message of everything that no pod of an experiment may have.

    These are violations of the level `baseline`, and a token of the Kubernetes API. The operator
    checks both the template and the pod that it makes from it.
    """
    yield from check_pod_security(path, template)
    path, pod = f"{path}.spec", as_mapping(template.get("spec"))
    no_token = "must not be {}, since pods do not use the Kubernetes API; remove it"
    if pod.get("automountServiceAccountToken"):
        yield f"{path}.automountServiceAccountToken", no_token.format("true")
    for index, volume in enumerate(as_mappings(pod.get("volumes"))):
        sources = as_mappings(as_mapping(volume.get("projected")).get("sources"))
        for number, source in enumerate(sources):
            if "serviceAccountToken" in source:
                at = f"{path}.volumes[{index}].projected.sources[{number}].serviceAccountToken"
                yield at, no_token.format("used")


def is_template(template: JsonObject) -> bool:
    """Return whether a template's parts that are merged into Lastmile's have the right types."""
    return not any(_check_shape("", template))


def _check_directives(path: str, template: JsonObject) -> Broken:
    """Refuse directives of a strategic merge, which could remove fields that Lastmile sets."""
    level: list[tuple[str, JsonValue]] = [(path, template)]
    while level:
        at, value = level.pop()
        if isinstance(value, list):
            level += [(f"{at}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            level += [(f"{at}.{key}", item) for key, item in value.items() if key[:1] != "$"]
            for key in value:
                if key.startswith("$"):
                    yield (
                        f"{at}.{key}",
                        "must not be used: a template adds and changes fields by their names; "
                        "remove it",
                    )


def _check_shape(path: str, template: JsonObject) -> Broken:
    """Refuse null and wrong types in merged parts, where they would replace Lastmile's fields."""
    for field in ("metadata", "spec"):
        if not isinstance(template.get(field, {}), dict):
            yield f"{path}.{field}", "must be a mapping; write its fields, or leave it out"
    pod = as_mapping(template.get("spec"))
    for field in CONTAINER_LISTS:
        containers = pod.get(field, [])
        if not isinstance(containers, list):
            yield f"{path}.spec.{field}", "must be a list of containers; or leave it out"
            continue
        for index, container in enumerate(containers):
            if not isinstance(container, dict):
                yield f"{path}.spec.{field}[{index}]", "must be a container, with its name"


def _check_metadata(path: str, metadata: JsonObject) -> Broken:
    for field in ("labels", "annotations"):
        for name in as_mapping(metadata.get(field)):
            if name.startswith(_OWN_LABELS) or name in _OWN_LABEL_NAMES:
                yield (
                    f"{path}.{field}.{name}",
                    ("must not be set, since it is Ray's or Lastmile's own; remove it"),
                )


def _check_container(path: str, container: JsonObject) -> Broken:
    name = container.get("name")
    if not name or not isinstance(name, str):
        yield (
            f"{path}.name",
            f"missing; containers are merged by name, {RAY_CONTAINER!r} is the one that runs Ray",
        )
    if name == RAY_CONTAINER or not name:
        yield from _check_command(path, container)
    yield from _check_ports(path, container)
    yield from _check_env(path, container)
    yield from _check_gpus(path, container)


def _check_command(path: str, container: JsonObject) -> Broken:
    for field in ("command", "args"):
        if container.get(field):
            yield (
                f"{path}.{field}",
                "must not be set, since the operator starts Ray; use a sidecar",
            )


def _check_ports(path: str, container: JsonObject) -> Broken:
    for index, port in enumerate(as_mappings(container.get("ports"))):
        number = port.get("containerPort")
        owner = RESERVED_PORTS.get(number) if isinstance(number, int) else None
        if owner:
            yield (
                f"{path}.ports[{index}].containerPort",
                f"must not be {number}, which is {owner}; use another port",
            )


def _check_env(path: str, container: JsonObject) -> Broken:
    for index, variable in enumerate(as_mappings(container.get("env"))):
        name, value = variable.get("name"), variable.get("value")
        if not isinstance(name, str):
            continue  # the dry run reports it
        if message := check_env_name(name):
            yield f"{path}.env[{index}].name", message
        if isinstance(value, str) and holds_secret(name, value):
            yield (
                f"{path}.env[{index}].value",
                f"must not hold a secret, got a value for {name}; use valueFrom.secretKeyRef",
            )


def _check_gpus(path: str, container: JsonObject) -> Broken:
    resources = as_mapping(container.get("resources"))
    for field in ("requests", "limits"):
        for name in filter(is_gpu_resource, as_mapping(resources.get(field))):
            yield (
                f"{path}.resources.{field}.{name}",
                "must not count GPUs; remove it and set trainers.gpusPerReplica",
            )
