"""Gets Java programs from Maven Central, each once per machine; no other code here runs Maven.

A folder in jars/ pins them: pom.xml names the versions, jars.sha256 has the checksum of every jar,
dependencies included. The jars are stored outside the checkout, in a folder named by a hash of the
pins. Java and Maven come from PATH or, for root, from Debian. Standard library only.

`python -m tools.jar_tools NAME` gets a folder's jars and prints where they are, and
`python -m tools.jar_tools --lock NAME` writes its jars.sha256 after a change of pom.xml.
"""

import argparse
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import debian
from tools.go_tools import KEY_LENGTH, ToolError, cache_root, exclusive, run, say

FOLDER = Path(__file__).resolve().parent / "jars"
DEBIAN = (
    debian.program("javac", "openjdk-17-jdk-headless"),
    debian.program("mvn", "maven"),
)


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

    @property
    def classpath(self) -> str:
        """The value of Java's option `-cp`."""
        return f"{self.path}/*"


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
    debian.install(DEBIAN)
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
            "you changed pom.xml, run `python -m tools.jar_tools --lock NAME`"
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
    program = shutil.which("mvn")
    if program is None:
        raise ToolError("Maven is missing: put mvn on PATH (Debian: apt-get install maven)")
    repository = cache_root() / "maven"  # not the user's: Maven's own plug-ins are put there too
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    run([program, "-q", "-B", "-f", jars.pom, f"-Dmaven.repo.local={repository}", *copy])
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
