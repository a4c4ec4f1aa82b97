"""The models of an inference worker: which rows share a batch, and whose error is whose."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipeline_runtime.errors import StepError
from pipeline_runtime.steps.base import Scorer, ServedModel, Transform
from pipeline_runtime.steps.predict.model import PredictModel
from pipeline_runtime.steps.predict.serving import Answer, ModelHost, from_ipc, to_ipc
from pipeline_runtime.steps.predict.serving_counts import CallMeter, ServingCounts
from pipeline_runtime.steps.predict.transform import BoundModel, Predict

TYPES = {"y": pa.float32(), "z": pa.int64()}
DEADLINE_SECONDS = 60.0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Doubler:
    """A model that waits at its first batch until `is_open`, and records the rows of batches."""

    is_open: threading.Event = field(default_factory=threading.Event)
    is_busy: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        self.is_busy.set()
        assert self.is_open.wait(DEADLINE_SECONDS)
        self.sizes.append(table.num_rows)
        x = table["x"].to_numpy()
        if (x < 0).any():
            raise StepError(f"the model raised ValueError: {np.count_nonzero(x < 0)} negative rows")
        return {"y": (2 * x).astype(np.float32), "z": x.astype(np.int64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """See `steps.base.OpenedModel`."""

    scorer: Scorer
    inputs: tuple[str, ...] = ("x",)
    steps: tuple[Transform, ...] = ()
    calls_user_code: bool = False
    sha256: str = ""
    note: str = "doubler"

    def find_invalid(self, rows: pa.Table) -> Mapping[str, npt.NDArray[np.bool_]]:
        invalid = rows["x"].is_null().to_numpy()
        return {"x": invalid} if invalid.any() else {}

    def load(self) -> Scorer:
        return self.scorer


def make_host(scorer: Scorer, batch_size: int | Literal["Auto"]) -> ModelHost:
    model = ServedModel(
        opened=Opened(scorer=scorer),
        types=TYPES,
        batch_size=batch_size,
        group="large",
        needs_cuda=False,
    )
    return ModelHost({"m": model})


def rows(*values: float | None) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.float64())})


def score_at_once(host: ModelHost, model: Doubler, requests: list[pa.Table]) -> list[Answer]:
    """Send the first request, and the others while the model is busy with it."""
    with ThreadPoolExecutor(len(requests)) as threads:
        answers = []
        for number, request in enumerate(requests):
            answers.append(threads.submit(host.score, "m", request))
            assert model.is_busy.wait(DEADLINE_SECONDS)
            wait_for_waiting(host, number)
        model.is_open.set()
        return [answer.result(DEADLINE_SECONDS) for answer in answers]


def wait_for_waiting(host: ModelHost, number: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while host.counts.num_waiting != number:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_idle_host_has_answered_every_request() -> None:
    model, requests = Doubler(), [rows(number) for number in range(16)]
    host = make_host(model, 4)
    with ThreadPoolExecutor(len(requests) + 1) as threads:
        answers = [threads.submit(host.score, "m", requests[0])]
        assert model.is_busy.wait(DEADLINE_SECONDS)
        idle = threads.submit(host.wait_until_idle)
        time.sleep(0.05)  # it may get the lock before the others
        answers += [threads.submit(host.score, "m", request) for request in requests[1:]]
        wait_for_waiting(host, len(requests) - 1)
        model.is_open.set()
        idle.result(DEADLINE_SECONDS)
        assert len(model.sizes) == len(answers)


REQUESTS = [rows(0), rows(1, 2, 3), rows(4), rows(5, 6, 7, 8)]


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [("Auto", [1, 8]), (2, [1, 2, 1, 1, 2, 2]), (100, [1, 3, 1, 4])]
)
def test_only_automatic_batches_span_requests(
    batch_size: int | Literal["Auto"], sizes: list[int]
) -> None:
    model = Doubler()
    host = make_host(model, batch_size)
    answers = score_at_once(host, model, REQUESTS)
    for request, answer in zip(REQUESTS, answers, strict=True):
        assert isinstance(answer, pa.Table)
        assert answer["z"].to_pylist() == request["x"].to_pylist()
        assert answer["y"].to_pylist() == [2 * x for x in request["x"].to_pylist()]
    assert sorted(model.sizes) == sorted(sizes)
    host.wait_until_idle()
    counts = host.counts
    assert (counts.num_batches, counts.num_rows, counts.num_waiting) == (len(sizes), 9, 0)
    assert 0 < counts.busy_seconds <= counts.ready_seconds


@dataclass(slots=True)
class Clock:
    """A clock that stands until it is set."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def fail_at(clock: Clock, now: float) -> None:
    clock.now = now
    raise StepError("no")


def test_busy_time_has_open_and_failed_calls_but_not_their_rows() -> None:
    clock = Clock()
    meter = CallMeter(clock)
    clock.now = 103.0
    with meter.measure(5):
        clock.now = 105.0
        open_counts = meter.read(2)
    with pytest.raises(StepError), meter.measure(7):
        fail_at(clock, 106.0)
    clock.now = 110.0
    assert open_counts == ServingCounts(busy_seconds=2.0, ready_seconds=5.0, num_waiting=2)
    assert meter.read(0) == ServingCounts(
        num_batches=1, num_rows=5, busy_seconds=3.0, ready_seconds=10.0
    )


def test_an_error_is_the_answer_to_its_own_rows() -> None:
    model = Doubler()
    bad = [rows(0), rows(1), rows(-1, -2), rows(3)]
    host = make_host(model, "Auto")
    answers = score_at_once(host, model, bad)
    assert host.counts.num_rows == 3  # those of the batch that failed were scored again
    assert [isinstance(answer, pa.Table) for answer in answers] == [True, True, False, True]
    assert str(answers[2]) == "the model raised ValueError: 2 negative rows"


def test_an_error_that_no_process_can_read_becomes_text() -> None:
    class Local(Exception):
        pass

    def fail(table: pa.Table) -> Mapping[str, Any]:
        raise Local("out of order")

    [answer] = [make_host(fail, 4).score("m", rows(1))]
    assert isinstance(answer, StepError)
    assert str(answer) == "Local: out of order"


def test_a_function_that_exits_does_not_end_the_process() -> None:
    def leave(table: pa.Table) -> Mapping[str, Any]:
        raise SystemExit(3)

    assert isinstance(make_host(leave, 4).score("m", rows(1)), SystemExit)


@pytest.mark.parametrize(
    "table",
    [
        rows(),
        rows(1, None),
        rows(1, 2, 3).slice(1, 1),
        pa.table({"t": pa.array(["a", None, "a"]).dictionary_encode(), "l": [[1], None, []]}),
    ],
)
def test_tables_survive_the_way_to_another_process(table: pa.Table) -> None:
    assert from_ipc(to_ipc(table)).equals(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalClient:
    """A model in this process, reached as from another one; see `steps.base.ModelClient`."""

    host: ModelHost
    answer: pa.Table | None = None

    def begin(self, table: pa.Table) -> Callable[[], pa.Table]:
        content = to_ipc(table)

        def finish() -> pa.Table:
            found = self.host.score("m", from_ipc(content))
            if isinstance(found, BaseException):
                raise found
            return self.answer or from_ipc(to_ipc(found))

        return finish


def build_step(batch_size: int, *, fills: bool) -> Predict:
    model = Doubler()
    model.is_open.set()
    bound = BoundModel(
        name="m",
        opened=Opened(scorer=model),
        types=TYPES,
        fills=fills,
        path="models[0]",
        group="large",
    )
    schema = pa.schema([("x", pa.float64()), ("kept", pa.int64()), *TYPES.items()])
    return Predict(models=(bound,), batch_size=batch_size, output_schema=schema)


def connect(step: Predict, answer: pa.Table | None = None) -> Predict:
    host = ModelHost({"m": step.served["models[0]"]})
    return step.connect({"models[0]": LocalClient(host=host, answer=answer)})


@pytest.mark.parametrize("values", [(), (1.0, 2.0, 3.0), (None, 1.0, None, 5.0), (None, None)])
def test_a_served_step_returns_what_a_fused_one_does(values: tuple[float | None, ...]) -> None:
    table = rows(*values).append_column("kept", pa.array(np.arange(len(values))))
    step = build_step(2, fills=True)
    assert connect(step)(table).equals(step(table))
    assert connect(step)(table)["kept"].chunk(0).buffers()[1].address == (
        table["kept"].chunk(0).buffers()[1].address
    )


@pytest.mark.parametrize(
    "table", [rows(1, None), rows(1, -1)], ids=["a null input", "the model raises"]
)
def test_a_served_step_fails_as_a_fused_one(table: pa.Table) -> None:
    step = build_step(2, fills=False)
    messages = []
    for each in (step, connect(step)):
        with pytest.raises(StepError) as caught:
            each(table)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith("models[0]: ")


@pytest.mark.parametrize(
    "answer",
    [
        pa.table({"y": pa.array([1.0], pa.float32()), "z": [1]}),
        pa.table({"y": [1.0, 2.0], "z": [1, 2]}),
    ],
    ids=["fewer rows", "another type"],
)
def test_answers_that_do_not_fit_the_rows_are_refused(answer: pa.Table) -> None:
    step = connect(build_step(2, fills=False), answer)
    with pytest.raises(StepError, match="must return 2 rows"):
        step(rows(1, 2))


def test_a_step_knows_its_groups() -> None:
    outputs = [{"name": "y", "type": "float32"}]
    model = {"name": "m", "onnx": {"uri": "m.onnx"}, "outputs": outputs, "workerGroup": "large"}
    assert PredictModel.model_validate(model, strict=False).worker_group == "large"
    assert "on inference workers large" in build_step(2, fills=False).way
