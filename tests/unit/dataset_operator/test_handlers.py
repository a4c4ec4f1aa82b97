"""Events of owned objects trigger a pass of their experiment."""

import asyncio
from typing import Any, cast

import pytest

from dataset_operator.api import EXPERIMENT_LABEL
from dataset_operator.handlers import build_registry
from dataset_operator.scheduling.passes import Passes
from dataset_operator.telemetry.watched import Watched


class Woken:
    """Records the experiments that were triggered."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    def wake(self, namespace: str, name: str, _: object) -> None:
        self.names.append((namespace, name))


@pytest.mark.parametrize(("label", "woken"), [("clicks", [("team", "clicks")]), ("", [])])
def test_owned_objects_trigger_the_experiment_in_their_label(
    label: str, woken: list[tuple[str, str]]
) -> None:
    passes, labels = Woken(), {EXPERIMENT_LABEL: label}
    session: Any = None
    registry = build_registry(cast(Passes, passes), Watched(), lambda *_: True, session)
    pod = {"metadata": {"namespace": "team", "name": "head", "labels": labels}}
    handlers = [each for each in registry._watching.get_all_handlers() if each.param == "Pod"]
    event = {"type": "MODIFIED", "object": pod}
    asyncio.run(cast(Any, handlers[0].fn)(event=event, labels=labels, param="Pod"))
    assert passes.names == woken
