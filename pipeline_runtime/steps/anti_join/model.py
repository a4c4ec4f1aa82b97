"""The fields of the step `antiJoin`: those of a join without columns."""

from pipeline_runtime.steps.join.model import SideTableStep


class AntiJoinStep(SideTableStep):
    """Drop the rows whose key is in the side table (SQL's NOT EXISTS: a null key is kept)."""
