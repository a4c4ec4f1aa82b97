"""One family of a page of Prometheus' text format, read as it comes: few names, bounded bytes.

A node's page has 100 KB of which a few lines are wanted, so it is never held as a whole: lines of
other names are passed over, and reading ends where the family does, which is in one piece (format
0.0.4: «all lines for a given metric must be provided as one single group»).
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# A line of Ray's has 400; what is longer is none.
MAX_LINE_BYTES = 1 << 12
# More than the GPUs of any node, and than the names that are read have lines.
MAX_LINES = 128


class FamilyReader:
    """Keeps the samples' lines of one family of a page that is fed to it in parts."""

    def __init__(self, name: str) -> None:
        self._starts = tuple(name.encode() + mark for mark in (b"{", b" ", b"\t"))
        self._rest = b""
        self._is_too_long = False  # the line that the rest is of
        self._kept: list[bytes] = []
        self.is_done = False  # nothing after it belongs to the family

    def feed(self, part: bytes) -> None:
        """Take the next bytes."""
        *lines, rest = part.split(b"\n")
        for line in lines:
            if not self.is_done:
                self._take(self._rest + line)
            self._rest, self._is_too_long = b"", False
        self._rest += rest[: MAX_LINE_BYTES + 1]
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._is_too_long = b"", True

    def end(self) -> bytes:
        """Return the kept bytes; an unfinished last line may be cut."""
        return b"".join(line + b"\n" for line in self._kept)

    def _take(self, line: bytes) -> None:
        if self._is_too_long or len(line) > MAX_LINE_BYTES:
            return
        if line.startswith(self._starts):
            self._kept.append(line)
            self.is_done = len(self._kept) == MAX_LINES
        elif self._kept and line.strip() and not line.startswith(b"#"):
            self.is_done = True


def parse_line(line: str) -> list[Sample]:
    """The samples of a line; none if it is garbage."""
    try:
        return [s for family in text_string_to_metric_families(line) for s in family.samples]
    except (ValueError, KeyError, IndexError):  # what the parser raises is not documented
        return []
