"""Gets the programs that the integration tests need; called by `make test-tools`.

`go_tools.py` compiles versitygw (an S3 server over a folder), helm, Argo CD and the cluster in a
box from pinned Go modules, and fetches the Prometheus operator's CRDs; `packages.py` fetches the
jars of an Iceberg REST catalog. The programs that run real pods and the images in them are built
for root only, since only root can use them. Chromium, Prometheus, Redis, PostgreSQL, Java and Maven
come from PATH or from Debian: Chromium, Java and Maven are installed, for root only; the others are
unpacked into the cache. Standard library only.

The tests run `build_tools.py --print-path NAME` to find each. `make test` calls
`build_tools.py --during COMMAND`, which runs the tests during the builds.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tools import packages
from tools.buildah import missing_for_images
from tools.cluster import binaries
from tools.go_tools import Files, Module, Program, ToolError, build, path_of, say
from tools.images import NAMES, build_image
from tools.packages import ICEBERG_REST, fetch, find_jars

VERSITYGW = Program(
    name="versitygw",
    module=Module(name="versitygw", upstream="github.com/versity/versitygw"),
    package="github.com/versity/versitygw/cmd/versitygw",
)
HELM = Program(
    name="helm",
    module=Module(
        name="helm",
        upstream="helm.sh/helm/v4",
        # Without this, helm reports v4.3 for every release.
        version_variables=("helm.sh/helm/v4/internal/version.version",),
    ),
    package="helm.sh/helm/v4/cmd/helm",
)
ARGOCD_MODULE = Module(
    name="argocd",
    upstream="github.com/argoproj/argo-cd/v3",
    version_variables=("github.com/argoproj/argo-cd/v3/common.version",),
)
# All of Argo CD's programs in one file, which runs the one that its own name selects.
ARGOCD = Program(name="argocd", module=ARGOCD_MODULE, package=".")
ARGOCD_CRDS = Files(name="crds", module=ARGOCD_MODULE, source="manifests/crds")
# The chart contains objects of some of these kinds.
MONITORING_CRDS = Files(
    name="crds",
    module=Module(
        name="prometheus-operator",
        upstream="github.com/prometheus-operator/prometheus-operator",
    ),
    source="example/prometheus-operator-crd",
)
# Upstream's examples of pods that the level `baseline` allows and refuses, from the version of
# Kubernetes whose rules `pipeline_runtime.config.pods.pod_security` follows.
POD_SECURITY = Files(
    name="pod-security-baseline",
    module=Module(name="kubernetes", upstream="k8s.io/pod-security-admission"),
    source="test/testdata/baseline/v1.34",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def find_built(item: Program | Files) -> Path:
    """Return the path of a program or of files in the cache.

    Raises:
        ToolError: they are not built.
    """
    path = path_of(item)
    if not path.exists():
        what = f"{item.module.name}'s {item.name}" if isinstance(item, Files) else item.name
        raise ToolError(f"{what}, which tests need, is not built: run `make test-tools`")
    return path


def find_browser() -> Path:
    """Return a Chromium on PATH."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path:
            return Path(path)
    raise ToolError(
        f"the report's tests need a browser, found none of {', '.join(BROWSERS)} on PATH: install "
        "Chromium (Debian: apt-get install chromium), or set LASTMILE_SKIP_BROWSER=1 to skip them"
    )


def install_browser() -> None:
    """Install Chromium unless PATH has one or LASTMILE_SKIP_BROWSER=1 skips its tests."""
    if os.environ.get("LASTMILE_SKIP_BROWSER") == "1":
        return
    try:
        find_browser()
    except ToolError:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
        packages.install([packages.program("chromium", "chromium")])


def get_prometheus() -> None:
    """Unpack Debian's Prometheus into the cache unless PATH has one."""
    if shutil.which("prometheus") is None:
        packages.unpack("prometheus")


def find_prometheus() -> Path:
    """Return the Prometheus on PATH, or the one in the cache."""
    on_path = shutil.which("prometheus")
    path = Path(on_path) if on_path else packages.unpacked("prometheus") / "usr/bin/prometheus"
    if not path.exists():
        raise ToolError(
            "the tests of the metrics source need a Prometheus, found none: run `make test-tools`, "
            "which fetches Debian's, or put one on PATH"
        )
    return path


def get_redis() -> None:
    """Unpack Debian's Redis into the cache unless PATH has one."""
    if shutil.which("redis-server") is None:
        packages.unpack("redis-tools", with_missing=True)


def find_redis() -> Path:
    """Return the redis-server on PATH, or the one in the cache.

    Debian's redis-tools contains the server under another name. The program's behaviour depends on
    its name: link to it as `redis-server`, and make the libraries in `../lib` available.
    """
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    path = packages.unpacked("redis-tools") / "usr/bin/redis-check-rdb"
    if not path.exists():
        raise ToolError(
            "the tests of Argo CD need a Redis, found none: run `make test-tools`, which fetches "
            "Debian's, or put redis-server on PATH"
        )
    return path


def get_postgres() -> None:
    """Unpack Debian's PostgreSQL into the cache unless this machine has one."""
    try:
        find_postgres()
    except ToolError:
        packages.unpack("postgresql", with_missing=True)


def find_postgres() -> Path:
    """Return the PostgreSQL server on PATH, or Debian's, installed or in the cache."""
    if on_path := shutil.which("postgres"):
        return Path(on_path).resolve()  # initdb is beside it
    for root in (Path("/"), packages.unpacked("postgresql")):
        if found := sorted(root.glob("usr/lib/postgresql/*/bin/postgres")):
            return found[-1]
    raise ToolError(
        "the tests of SQL catalogs need PostgreSQL, found none: run `make test-tools`, which "
        "fetches Debian's, or put postgres on PATH"
    )


def build_node() -> None:
    """Compile the programs of a node that runs real pods, if this is root."""
    if os.geteuid() == 0:
        binaries.build_full_node()
    else:
        say("skipping the full node, which runs real pods: it needs root")


def compile_kernels() -> None:
    """Compile the runtime's kernels into numba's cache, which each checkout has for itself.

    This takes a minute. Otherwise each process that needs the kernels would compile them.
    """
    subprocess.run([sys.executable, "-m", "pipeline_runtime.kernels"], check=True)


def build_images() -> None:
    """Build the container images that the tests run, if this is root."""
    if reason := missing_for_images():
        say(f"skipping the container images: {reason}")
        return
    for name in NAMES:
        build_image(name)


# Tests wait for the stages that they need (tests/conftest.py). Programs that many tests need come
# first, the one that takes the longest for the fewest tests comes last.
Stage = tuple[Callable[[], object], ...]
STAGES: dict[str, Stage] = {
    "kernels": (compile_kernels,),
    "images": (build_images,),
    "programs": (
        install_browser,
        get_prometheus,
        get_redis,
        *(partial(build, [item]) for item in (VERSITYGW, HELM, MONITORING_CRDS, POD_SECURITY)),
    ),
    "iceberg": (get_postgres, partial(fetch, ICEBERG_REST)),
    "control-plane": (binaries.build_control_plane,),
    "node": (build_node,),
    "argocd": (partial(build, [ARGOCD, ARGOCD_CRDS]),),
}
CONCURRENT = ("kernels", "images")
READY_VARIABLE = "LASTMILE_TOOLS_READY"
BUILD_NICENESS = 10  # tests have deadlines, builds have none

FINDERS: dict[str, Callable[[], Path]] = {
    "versitygw": partial(find_built, VERSITYGW),
    "chromium": find_browser,
    "kubectl": binaries.find_kubectl,
    "helm": partial(find_built, HELM),
    "prometheus": find_prometheus,
    "argocd": partial(find_built, ARGOCD),
    "redis": find_redis,
    "postgres": find_postgres,
    "iceberg-rest": partial(find_jars, ICEBERG_REST),
}


def get_tools(
    stages: Mapping[str, Stage] = STAGES, on_done: Callable[[str], None] = lambda _: None
) -> None:
    """Get every tool. Report a tool that cannot be obtained; the tests that need it will fail.

    Args:
        stages: parts by the name of their stage. Those of CONCURRENT get a thread each, since they
            wait for networks and disks or use one core; the others run one after another.
        on_done: is called with the name of each stage that has ended, well or not.
    """

    def get(*names: str) -> None:
        for name in names:
            for part in stages[name]:
                _get(part)
            on_done(name)

    # Linux keeps the niceness of each thread, and the programs that it starts inherit it.
    with ThreadPoolExecutor(initializer=os.nice, initargs=(BUILD_NICENESS,)) as threads:
        running = [threads.submit(get, name) for name in CONCURRENT if name in stages]
        running.append(threads.submit(get, *(name for name in stages if name not in CONCURRENT)))
        for each in running:
            each.result()


def _get(get: Callable[[], object]) -> None:
    try:
        get()
    except (ToolError, subprocess.CalledProcessError, OSError) as error:
        print(f"test-tools: {error}", file=sys.stderr)


def run_during_builds(command: Sequence[str], stages: Mapping[str, Stage] = STAGES) -> int:
    """Run a command while the tools are built at a low priority, and return its exit status.

    The command finds a file for each stage in the folder that READY_VARIABLE names. A stage is
    ready when its file can be locked: this process holds the locks of the other stages, and the
    kernel releases them if it dies.
    """
    with tempfile.TemporaryDirectory(prefix="lastmile-tools-") as folder, ExitStack() as stack:
        locks = {stage: stack.enter_context(Path(folder, stage).open("w")) for stage in stages}
        for lock in locks.values():
            fcntl.flock(lock, fcntl.LOCK_EX)
        running = subprocess.Popen(command, env={**os.environ, READY_VARIABLE: folder})
        get_tools(stages, on_done=lambda stage: locks[stage].close())
        return running.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Get the programs that the tests talk to.")
    parser.add_argument("--print-path", metavar="NAME", choices=sorted(FINDERS))
    parser.add_argument(
        "--during", nargs=argparse.REMAINDER, metavar="COMMAND", help="run it during the builds"
    )
    options = parser.parse_args()
    if options.during:
        raise SystemExit(run_during_builds(options.during))
    if options.print_path is None:
        get_tools()
        return
    try:
        print(FINDERS[options.print_path]())
    except ToolError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
