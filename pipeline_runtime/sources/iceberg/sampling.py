"""Chooses the buckets that a sample of a table reads.

A bucket is refined step by step: first modulo the smallest prime factor of the number of buckets,
then modulo the product of the two smallest, and so on. Each step shifts the parts by a hash of the
seed and of the part above. So a table with 64 buckets and one with 16 divide the values alike, down
to sixteenths: of two tables whose numbers of buckets are powers of two, the one with more buckets
keeps values that the other keeps too; the same values, if the share is a whole number of the
coarser buckets.
"""

from __future__ import annotations

import hashlib
import math

from pipeline_runtime.config.dataset import SampleBuckets
from pipeline_runtime.config.decimals import parse_percent
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.base import Bucketing


def choose_sample(
    table: str, bucketing: Bucketing | None, sample: SampleBuckets | None
) -> frozenset[int] | None:
    """Return the buckets of a table to read; None: all rows are read.

    Raises SourceError if a sample is wanted, but the table has no buckets.
    """
    if sample is None:
        return None
    if bucketing is None:
        raise SourceError(
            f"must be absent, since {table} is not partitioned by buckets of a column. Use a "
            "sample step, or bucket the table (ALTER TABLE … ADD PARTITION FIELD bucket(64, "
            "COLUMN))",
            field="iceberg.sampleBuckets",
        )
    return choose_buckets(bucketing.num_buckets, sample.percent, sample.seed)


def choose_buckets(num_buckets: int, percent: int | str, seed: int) -> frozenset[int]:
    """Return the numbers of the buckets to read, at least one.

    Args:
        num_buckets: number of buckets of the table.
        percent: share of them, more than 0 and less than 100.
    """
    wanted = math.ceil(num_buckets * parse_percent(percent) / 100)
    factors = _factorize(num_buckets)
    return frozenset(b for b in range(num_buckets) if _rank(b, factors, seed) < wanted)


def _rank(bucket: int, factors: list[int], seed: int) -> int:
    """Return the place of a bucket in the order in which larger shares take more of them."""
    rank, above, rest = 0, 1, bucket
    for factor in factors:
        part = bucket % above
        text = f"{seed}:{above}:{part}"
        shift = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        rank = rank * factor + (rest + shift) % factor
        rest //= factor
        above *= factor
    return rank


def _factorize(number: int) -> list[int]:
    """Return the prime factors of a number, the smallest first."""
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return [*found, number] if number > 1 else found
