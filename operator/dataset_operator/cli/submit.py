"""`lastmile submit`: check manifests here, then apply them to the cluster, and follow if wanted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dataset_operator.api import COMPLETE
from dataset_operator.cli.connection import FIELD_MANAGER, Cluster, on_cluster
from dataset_operator.cli.failures import EXIT_FAILED
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    SetOption,
    Target,
)
from dataset_operator.cli.suspend import is_over
from dataset_operator.documents import Document
from dataset_operator.errors import KubeConflict, UserError
from dataset_operator.headline import find_headline
from dataset_operator.shapes import read_status
from pipeline_runtime.config import (
    KIND,
    LoadedManifest,
    ManifestError,
    Problem,
    clean,
    load_manifests,
)
from pipeline_runtime.grammar import check_grammar

# The API server's message about other owners of a field, one or several.
_CONFLICT = re.compile(r'conflicts? with "([^"]+)"')


# Uploads a folder below a storage root; returns its URI.
Upload = Callable[[Path, str], str]


def submit(
    program: typer.Context,
    files: Annotated[
        list[str],
        typer.Option(
            "--filename", "-f", metavar="FILE", help="Manifest or directory, or - (repeatable)."
        ),
    ],
    overrides: SetOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow it to its end; 1 if that is a failure.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force-conflicts", help="Take over fields that others set.")
    ] = False,
    storage_root: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="Root to upload a folder of code to, if the spec has none."
        ),
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Check manifests and apply them to the cluster; a local folder of code is uploaded."""
    manifests = load_manifests(files, overrides=overrides or [])
    _check_expressions(manifests)
    _check_code(manifests, storage_root)
    for manifest in manifests:
        for warning in manifest.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    if watch and len(manifests) != 1:
        raise typer.BadParameter(f"--watch follows one experiment, got {len(manifests)}")
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    upload: Upload = program.obj.upload_code
    manifests = [_upload(manifest, storage_root, upload) for manifest in manifests]
    succeeded = on_cluster(target, lambda cluster: _submit(cluster, manifests, force, watch))
    if not succeeded:
        raise typer.Exit(EXIT_FAILED)


def _check_expressions(manifests: list[LoadedManifest]) -> None:
    """Check the syntax of all expressions, without a table. Raises ManifestError."""
    problems = [m.place(problem) for m in manifests for problem in check_grammar(m.experiment.spec)]
    if problems:
        raise ManifestError(problems)


def _local_code(manifest: LoadedManifest) -> Path | None:
    """Return the folder of the code, if it is on this machine; from '/' on, it is the image's."""
    folder = manifest.experiment.spec.code.working_dir
    if folder is None or "://" in folder or folder.startswith("/"):
        return None
    return (manifest.folder / os.path.expanduser(folder)).resolve()


def _check_code(manifests: list[LoadedManifest], storage_root: str | None) -> None:
    """Check that local folders of code exist and can be uploaded. Raises ManifestError."""
    problems = [m.place(problem) for m in manifests for problem in check_script(m)]
    for manifest in manifests:
        folder = _local_code(manifest)
        if folder is None:
            continue
        message = ""
        if not folder.is_dir():
            message = f"must be a folder, a URI or a folder of the image, got {str(folder)!r}"
        elif not (storage_root or manifest.experiment.spec.storage.root):
            message = "must go to a store that the cluster reads; give --storage-root for it"
        if message:
            problems.append(manifest.place(Problem(path="spec.code.workingDir", message=message)))
    if problems:
        raise ManifestError(problems)


def check_script(manifest: LoadedManifest) -> Iterator[Problem]:
    """Yield the problem of a script that the pods would not have; the operator cannot know that."""
    spec = manifest.experiment.spec
    script, code = spec.training.script, spec.code.working_dir
    if script is None or script.startswith("/"):
        return
    folder = _local_code(manifest)
    if code is None:
        message = (
            f"must be a file that the pods have, but nothing takes {script!r} to them. Set "
            "code.workingDir to its folder, which submit uploads, or give its path in the image"
        )
    elif folder is not None and folder.is_dir() and not (folder / script).is_file():
        message = f"must be a file of code.workingDir, but {folder} has no {script!r}"
    else:
        return
    yield Problem(path="spec.training.script", message=message)


def _upload(manifest: LoadedManifest, storage_root: str | None, upload: Upload) -> LoadedManifest:
    """Upload the code, and return the manifest with its URI. Raises the errors of `upload`."""
    folder = _local_code(manifest)
    if folder is None:
        return manifest
    root = storage_root or manifest.experiment.spec.storage.root
    assert root is not None  # _check_code
    uri = upload(folder, root)
    print(f"code: {folder} is {uri}", file=sys.stderr)
    spec: Any = manifest.document["spec"]
    code = {**spec["code"], "workingDir": uri}
    return replace(manifest, document={**manifest.document, "spec": {**spec, "code": code}})


async def _submit(
    cluster: Cluster, manifests: list[LoadedManifest], force: bool, watch: bool
) -> bool:
    """Submit the manifests, and return whether all steps succeeded."""
    # Place all of them first, so that an invalid one stops all.
    placed = [_place(cluster, manifest) for manifest in manifests]
    for document in placed:
        await _apply(cluster, document, force=force)
    if not watch:
        return True
    [metadata] = [document["metadata"] for document in placed]
    return await _follow(replace(cluster, namespace=metadata["namespace"]), metadata["name"])


def _place(cluster: Cluster, manifest: LoadedManifest) -> Document:
    """Return the document with its namespace. Raises UserError if it has another one."""
    document: dict[str, Any] = {**manifest.document}
    document.pop("status", None)
    metadata = dict(manifest.experiment.metadata.to_document())
    given = metadata.setdefault("namespace", cluster.namespace)
    if given != cluster.namespace and cluster.is_named:
        raise UserError(
            f"{manifest.file}: metadata.namespace must be --namespace {cluster.namespace}, got "
            f"{given}; leave one out"
        )
    kept = ("name", "namespace", "labels", "annotations")
    return document | {"metadata": {name: metadata[name] for name in kept if name in metadata}}


async def _apply(cluster: Cluster, document: Document, *, force: bool) -> None:
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    before = await cluster.kube.get(KIND, namespace, name)
    if before is None:
        await cluster.list_experiments(namespace)  # raises an error if the CRD is not installed
    try:
        await cluster.kube.apply(document, force=force)
    except KubeConflict as error:
        owners = set(_CONFLICT.findall(str(error)))
        if not owners:  # no such namespace
            raise UserError(f"{namespace}/{name}: {error}; create it, or name another -n") from None
        if owners != {FIELD_MANAGER}:
            raise UserError(
                f"{namespace}/{name}: {error}; to take these fields over give --force-conflicts"
            ) from error
        await cluster.kube.apply(document)  # replaces fields that `stop` or `resume` set
    after = await cluster.kube.get(KIND, namespace, name)
    print(f"{namespace}/{name} {_compare(before, after)}")


def _compare(before: Document | None, after: Document | None) -> str:
    if before is None or after is None:
        return "created"
    same = before["metadata"]["generation"] == after["metadata"]["generation"]
    return "unchanged" if same else "configured"


async def _follow(cluster: Cluster, name: str) -> bool:
    """Print changes until the end; return whether it is complete. Ctrl-C does not stop it."""
    printed = ""
    while True:
        document = await cluster.poll(name)
        status = read_status(document.get("status"))
        headline = find_headline(status)
        if status.observed_generation != document["metadata"]["generation"]:
            continue  # the operator has not reconciled it yet
        line = f"{status.phase or 'Pending'}: {headline.message}" if headline else ""
        if line and line != printed:
            printed = line
            print(clean(line), flush=True)
        if is_over(status):
            return status.is_true(COMPLETE)
