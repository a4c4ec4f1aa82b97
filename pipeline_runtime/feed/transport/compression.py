"""Chooses the codec of chunks on their way to a trainer, by the trainer's time.

A codec costs processor time of readers, which can be added, and time of the trainer to decompress;
it saves time on the network. So with `Auto` nothing is compressed until the trainer waits for
chunks that are already made. Then each codec is tried in turn, and the one with the fewest seconds
per byte, for transfer and decompression, is kept for a while. Each rank decides for its own chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# Chunks over which a codec is measured.
_WINDOW = 8
# Chunks for which a choice is kept.
_HOLD = 512
# Codecs are tried once transfers take more than this share of the trainer's time.
MAX_TRANSFER_SHARE = 0.05

# The codecs that each value of `pipelineOptions.compression` allows, by Arrow's names.
CODECS: Mapping[str, tuple[str | None, ...]] = MappingProxyType(
    {"None": (None,), "lz4": ("lz4",), "zstd": ("zstd",), "Auto": (None, "lz4", "zstd")}
)


@dataclass(slots=True)
class _Cost:
    """The cost of one codec for the chunks of its turn."""

    chunks: int = 0
    num_bytes: int = 0
    seconds: float = 0.0

    def add(self, num_bytes: int, seconds: float) -> None:
        self.chunks += 1
        self.num_bytes += num_bytes
        self.seconds += seconds

    @property
    def seconds_per_byte(self) -> float:
        return self.seconds / max(1, self.num_bytes)


@dataclass(slots=True)
class CodecChoice:
    """The choice of the codec for the next chunks.

    Args:
        setting: `pipelineOptions.compression`.
    """

    setting: str
    codec: str | None = field(init=False)  # of the chunks to be asked for
    _costs: dict[str | None, _Cost] = field(init=False, default_factory=dict)
    _left: int = field(init=False, default=0)  # chunks for which the choice is still kept
    _since: float | None = field(init=False, default=None)
    _waited: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.codec = CODECS[self.setting][0]

    @property
    def is_judging(self) -> bool:
        """Return whether the cost of the next chunk is measured."""
        return len(CODECS[self.setting]) > 1 and self._left == 0

    def note(
        self, codec: str | None, num_bytes: int, waited: float, undone: float, now: float
    ) -> None:
        """Count a chunk that has arrived.

        Args:
            codec: the codec of the chunk.
            num_bytes: uncompressed size of its rows.
            waited: seconds that the trainer was blocked on its transfer.
            undone: seconds that the trainer needs to decompress it.
            now: by a monotonic clock, in seconds.
        """
        if len(CODECS[self.setting]) == 1:
            return
        if self._left > 0:
            self._left -= 1
            return
        if codec != self.codec:
            return  # it was asked for in the turn of another codec
        if self._since is None:
            self._since, self._waited = now, 0.0
        self._waited += waited + undone
        cost = self._costs.setdefault(codec, _Cost())
        cost.add(num_bytes, waited + undone)
        if cost.chunks >= _WINDOW:
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
