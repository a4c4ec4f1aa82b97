"""The work of a table that is written by partitions of the source: which rows each commit has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline_runtime.materialization.states import PartitionState
from pipeline_runtime.plan import Group
from pipeline_runtime.plan.model import StreamPlan

# Stored bytes of the source that one commit is made of; a killed run computes them again.
_BYTES_PER_COMMIT = 4 << 30
# Of the names of the folders in which commits are staged.
MOMENT = "%Y%m%dT%H%M%SZ"


def cut_commits(
    keys: Collection[str], partitions: Mapping[str, PartitionState]
) -> Iterator[frozenset[str]]:
    """Yield the partitions of each commit; at least one commit.

    Args:
        keys: the partitions to compute, in order.
    """
    found: set[str] = set()
    num_bytes = 0
    for key in keys:
        size = partitions[key].num_bytes
        if found and num_bytes + size > _BYTES_PER_COMMIT:
            yield frozenset(found)
            found, num_bytes = set(), 0
        found.add(key)
        num_bytes += size
    if found or not keys:  # a table without rows is complete too
        yield frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRows:
    """The rows of one commit.

    Attributes:
        stream: reads the row groups of the commit's partitions alone.
        groups: its groups; each is of one partition.
        owners: the partition of each group.
    """

    stream: StreamPlan
    groups: tuple[Group, ...]
    owners: tuple[str, ...]

    @classmethod
    def plan(
        cls, stream: StreamPlan, keys: Collection[str], partitions: Mapping[str, PartitionState]
    ) -> CommitRows:
        """Choose the row groups of partitions among those of a stream."""
        units = []
        groups: list[Group] = []
        owners: list[str] = []
        for key in sorted(keys):
            places = partitions[key].places
            mine = [unit for unit in stream.scan.units if unit.place in places]
            part = replace(stream, scan=replace(stream.scan, units=tuple(mine)))
            for group in part.groups(0, stream.chunk_rows) if mine else ():
                groups.append(replace(group, index=len(groups)))
                owners.append(key)
            units += mine
        pruning = replace(
            stream.scan.pruning,
            files_read=len({unit.place for unit in units}),
            row_groups_read=len(units),
            rows_read=sum(unit.num_rows for unit in units),
        )
        scan = replace(stream.scan, units=tuple(units), pruning=pruning)
        return cls(stream=replace(stream, scan=scan), groups=tuple(groups), owners=tuple(owners))
