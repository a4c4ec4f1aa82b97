"""The Ray Data feed: however large the table, setting up takes a bounded number of tasks."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.feed.over_ray.ray_data import MAX_TASKS, cut_into_tasks


@given(st.integers(1, 10_000_000))
def test_tasks_cover_every_group_once_and_are_bounded(num_groups: int) -> None:
    num_tasks, share = cut_into_tasks(num_groups)
    assert 1 <= num_tasks <= MAX_TASKS
    assert (num_tasks - 1) * share < num_groups <= num_tasks * share


def test_a_group_is_a_task_of_its_own_while_there_are_few() -> None:
    assert cut_into_tasks(MAX_TASKS) == (MAX_TASKS, 1)
    assert cut_into_tasks(MAX_TASKS + 1) == (513, 2)  # one group more doubles every task's share
