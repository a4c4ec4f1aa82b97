"""Programs that others have built: Debian packages, and jars from Maven Central.

root's Debian installs a package; anyone else can unpack one into the cache. apt checks packages
against Debian's signed lists. `build_tools.py` gets the tests' browser and Prometheus this way,
`cluster/binaries.py` the packages of a full node, `buildah.py` those that build images.

A folder in tools/jars pins the jars of a Java program: pom.xml names the versions, jars.sha256 has
the checksum of every jar, dependencies included. The jars are stored outside the checkout, in a
folder named by a hash of the pins. Standard library only.

`python -m tools.packages NAME` fetches a folder's jars and prints where they are;
`python -m tools.packages --lock NAME` writes its jars.sha256 after a change of pom.xml.
"""

import argparse
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.go_tools import KEY_LENGTH, ToolError, cache_root, exclusive, run, say

FOLDER = Path(__file__).resolve().parent / "jars"
NOT_INTERACTIVE = {"DEBIAN_FRONTEND": "noninteractive"}
# A package that is installed already is fetched too.
FETCH_WITH_MISSING = ("install", "--download-only", "--reinstall", "--no-install-recommends", "-y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Debian package.

    Attributes:
        name: in Debian.
        is_there: returns whether its content is available, from any source.
    """

    name: str
    is_there: Callable[[], bool]


def program(name: str, package: str) -> Package:
    """Return the package that brings a program."""
    return Package(name=package, is_there=lambda: shutil.which(name) is not None)


def find_missing(wanted: Sequence[Package]) -> list[str]:
    """Return the names of the missing packages."""
    return [package.name for package in wanted if not package.is_there()]


def install(wanted: Sequence[Package]) -> None:
    """Install the missing packages.

    Raises:
        ToolError: this is not root, or not Debian, or apt-get failed.
    """
    missing = find_missing(wanted)
    if not missing:
        return
    command = ["apt-get", "install", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ToolError(
            f"{', '.join(missing)} missing: install them, such as by `{' '.join(command)}`"
        )
    say(f"installing {', '.join(missing)}")
    with exclusive(cache_root().with_name("apt")):
        for step in (["apt-get", "update", "-qq"], [*command, "-y", "-qq"]):
            run(step, env=NOT_INTERACTIVE)
    missing = find_missing(wanted)
    if missing:
        raise ToolError(f"apt-get brought {', '.join(missing)}, but they do not work; see PATH")


def unpacked(package: str) -> Path:
    """Return the folder that `unpack` fills."""
    return cache_root() / f"debian-{package}-{platform.machine()}"


def unpack(package: str, *, with_missing: bool = False) -> None:
    """Fetch a package and unpack it into the cache, unless it is there.

    It installs nothing, starts no service and needs no root: apt uses lists of its own.

    Args:
        package: its name.
        with_missing: also unpack the dependencies that this machine lacks.

    Raises:
        ToolError: this is not Debian, or apt-get failed.
    """
    folder = unpacked(package)
    if folder.exists():
        return
    if shutil.which("apt-get") is None:
        raise ToolError(
            f"{package} comes from apt-get, which is missing: install it by other means"
        )
    with exclusive(cache_root()), tempfile.TemporaryDirectory(dir=cache_root()) as name:
        if folder.exists():
            return
        say(f"fetching {package} from Debian")
        partial = Path(name)
        for part in ("state/lists/partial", "cache/archives/partial"):
            (partial / part).mkdir(parents=True)
        own = [f"Dir::State={partial}/state", f"Dir::Cache={partial}/cache"]
        # Root's apt would fetch as a user who may not write here.
        apt = ["apt-get", *(word for option in own for word in ("-o", option))]
        apt += ["-o", "APT::Sandbox::User=root", "-qq"]
        run([*apt, "update"], folder=partial)
        fetch = FETCH_WITH_MISSING if with_missing else ("download",)
        run([*apt, *fetch, package], folder=partial)
        for archive in sorted(partial.rglob("*.deb")):
            run(["dpkg-deb", "--extract", archive, partial / "root"])
        (partial / "root").rename(folder)


JAVA = (program("javac", "openjdk-17-jdk-headless"), program("mvn", "maven"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """The jars of one Java program.

    Attributes:
        name: of the folder in jars/.
    """

    name: str

    @property
    def pom(self) -> Path:
        return FOLDER / self.name / "pom.xml"

    @property
    def checksums(self) -> Path:
        """The file of checksums, in the format of sha256sum."""
        return FOLDER / self.name / "jars.sha256"

    @property
    def path(self) -> Path:
        """The folder with the jars of this checkout's pins, once they are fetched."""
        pins = self.pom.read_bytes() + self.checksums.read_bytes()
        return cache_root() / f"jars-{hashlib.sha256(pins).hexdigest()[:KEY_LENGTH]}"


# Upstream's REST catalog for tests; tests/support/servers/java starts it.
ICEBERG_REST = Jars(name="iceberg-rest")
# Iceberg in Spark, and SQLite for its catalog; for tests/corpus/iceberg/write_tables.py.
ICEBERG_SPARK = Jars(name="iceberg-spark")
ALL = {jars.name: jars for jars in (ICEBERG_REST, ICEBERG_SPARK)}


def fetch(jars: Jars) -> None:
    """Fetch the jars unless the cache holds them.

    Raises:
        ToolError: Java, Maven or the network failed, or a jar is not the pinned one.
    """
    install(JAVA)
    if jars.path.exists():
        return
    with exclusive(cache_root()), tempfile.TemporaryDirectory(dir=cache_root()) as name:
        if jars.path.exists():
            return
        say(f"fetching the jars of {jars.name}")
        partial = Path(name, "jars")
        check(read_checksums(jars), _download(jars, partial))
        partial.rename(jars.path)


def find_jars(jars: Jars) -> Path:
    """Return the folder of the fetched jars."""
    if not jars.path.exists():
        raise ToolError(f"the jars of {jars.name} are not fetched: run `make test-tools`")
    return jars.path


def check(pinned: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Compare checksums by the name of their file. Raises ToolError if they differ."""
    if different := sorted(name for name, _ in pinned.items() ^ found.items()):
        raise ToolError(
            f"these jars are not those of jars.sha256: {', '.join(dict.fromkeys(different))}. If "
            "you changed pom.xml, run `python -m tools.packages --lock NAME`"
        )


def read_checksums(jars: Jars) -> dict[str, str]:
    """Return the pinned checksums by the name of their file."""
    lines = (line.split() for line in jars.checksums.read_text().splitlines())
    return {name: checksum for checksum, name in lines}


def lock(jars: Jars) -> None:
    """Write the checksums of the jars that pom.xml names."""
    with tempfile.TemporaryDirectory() as name:
        found = _download(jars, Path(name))
    lines = (f"{found[name]}  {name}\n" for name in sorted(found))
    jars.checksums.write_text("".join(lines))


def _download(jars: Jars, folder: Path) -> dict[str, str]:
    """Download the jars and return their checksums by the name of their file."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolError("Maven is missing: put mvn on PATH (Debian: apt-get install maven)")
    repository = cache_root() / "maven"  # not the user's: Maven's own plug-ins are put there too
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    run([maven, "-q", "-B", "-f", jars.pom, f"-Dmaven.repo.local={repository}", *copy])
    files = sorted(folder.glob("*.jar"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> None:
    parser = argparse.ArgumentParser(description="Get the jars of a folder in tools/jars.")
    parser.add_argument("name", choices=sorted(ALL))
    parser.add_argument("--lock", action="store_true", help="write jars.sha256 instead")
    options = parser.parse_args()
    jars = ALL[options.name]
    try:
        if options.lock:
            lock(jars)
        else:
            fetch(jars)
            print(jars.path)
    except ToolError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
