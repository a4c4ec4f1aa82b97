"""Whether pieces are compressed on their way to a trainer, by what that costs it.

A codec costs a reader processor time, of which there can be more, and the trainer what it takes to
undo it; it saves time on the network. So with `Auto` nothing is compressed until the trainer waits
for pieces that are made and on their way. Then each codec has its turn, and the one with the fewest
seconds a byte, on the way and undone, stays for a while. One rank decides for its own pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# Pieces by which a codec is judged.
_WINDOW = 8
# Pieces for which a choice stands.
_HOLD = 512
# Share of the trainer's time that pieces' way may take, before something is tried against it.
MAX_TRANSFER_SHARE = 0.05

# By `pipelineOptions.compression`: what may be used, as Arrow names it.
CODECS: Mapping[str, tuple[str | None, ...]] = MappingProxyType(
    {"None": (None,), "lz4": ("lz4",), "zstd": ("zstd",), "Auto": (None, "lz4", "zstd")}
)


@dataclass(slots=True)
class _Cost:
    """Of the pieces of one codec in its turn."""

    pieces: int = 0
    num_bytes: int = 0
    seconds: float = 0.0

    def add(self, num_bytes: int, seconds: float) -> None:
        self.pieces += 1
        self.num_bytes += num_bytes
        self.seconds += seconds

    @property
    def seconds_per_byte(self) -> float:
        return self.seconds / max(1, self.num_bytes)


@dataclass(slots=True)
class CodecChoice:
    """Which codec the next pieces are asked for in.

    Args:
        setting: `pipelineOptions.compression`.
    """

    setting: str
    codec: str | None = field(init=False)  # of pieces that are asked for from now on
    _costs: dict[str | None, _Cost] = field(init=False, default_factory=dict)
    _left: int = field(init=False, default=0)  # pieces for which the choice still stands
    _since: float | None = field(init=False, default=None)
    _waited: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.codec = CODECS[self.setting][0]

    @property
    def is_judging(self) -> bool:
        """Whether what the next piece costs is looked at."""
        return len(CODECS[self.setting]) > 1 and self._left == 0

    def note(
        self, codec: str | None, num_bytes: int, waited: float, undone: float, now: float
    ) -> None:
        """Count a piece that has come.

        Args:
            codec: by which it was compressed.
            num_bytes: of its rows as they are used.
            waited: seconds that the trainer was blocked while it was on its way.
            undone: seconds that it takes the trainer to undo the codec.
            now: by a monotonic clock, in seconds.
        """
        if len(CODECS[self.setting]) == 1:
            return
        if self._left > 0:
            self._left -= 1
            return
        if codec != self.codec:
            return  # asked for before its codec's turn was over
        if self._since is None:
            self._since, self._waited = now, 0.0
        self._waited += waited + undone
        cost = self._costs.setdefault(codec, _Cost())
        cost.add(num_bytes, waited + undone)
        if cost.pieces >= _WINDOW:
            self._decide(now)

    def _decide(self, now: float) -> None:
        elapsed = now - (self._since if self._since is not None else now)
        is_bound = self._waited > MAX_TRANSFER_SHARE * elapsed
        self._since = None
        untried = [codec for codec in CODECS[self.setting] if codec not in self._costs]
        if untried and (is_bound or len(self._costs) > 1):
            self.codec = untried[0]
            return
        if not untried:
            self.codec = min(self._costs, key=lambda codec: self._costs[codec].seconds_per_byte)
            self._left = _HOLD
        self._costs = {}
