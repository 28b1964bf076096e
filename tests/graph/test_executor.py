"""The `Executor` class: how instances are made, and what they say of themselves."""

from typing import Any, Union

import pytest

from perdure import Executor, WorkflowContext, WorkflowEvent, WorkflowMessage, executor, handler, response_handler


class Worker(Executor):
    """Two handlers and a response handler, with all kinds of declared types."""

    @handler
    async def count(self, message: int, ctx: WorkflowContext[int | str, float]) -> None: ...

    @handler
    async def spell(self, message: str | bytes, ctx: WorkflowContext[str]) -> None: ...

    @response_handler
    async def answered(self, request: str, response: bool, ctx: WorkflowContext[list[str], bool]) -> None: ...  # noqa: FBT001 - an answer


class Counter(Executor):
    def __init__(self, id: str = "counter", start: int = 0) -> None:  # noqa: A002 - as the base class has it
        super().__init__(id=id)
        self.n = start

    @handler
    async def count(self, message: int, ctx: WorkflowContext) -> None: ...


@pytest.mark.parametrize("nothing", ["", None])
def test_an_executor_without_an_id_is_refused(nothing: Any) -> None:
    with pytest.raises(ValueError, match="id that is not empty"):
        Worker(nothing)


def test_an_executor_is_typed_by_its_class_unless_told_otherwise() -> None:
    assert (Worker("w").type, Worker("w").type_) == ("Worker", "Worker")
    assert Worker("w", type="Special").type == "Special"
    assert Worker("w", type_="Special").type == "Special"


def test_unknown_keywords_of_the_constructor_are_ignored() -> None:
    assert Worker("w", colour="red").id == "w"


def test_an_executor_without_handlers_is_refused() -> None:
    class Idle(Executor):
        pass

    with pytest.raises(ValueError, match="Idle has no handler"):
        Idle("idle")
    assert Idle("idle", defer_discovery=True).input_types == []


def test_two_handlers_for_one_type_are_refused() -> None:
    class Double(Executor):
        @handler
        async def one(self, message: int, ctx: WorkflowContext) -> None: ...

        @handler
        async def two(self, message: int, ctx: WorkflowContext) -> None: ...

    with pytest.raises(ValueError, match="both 'one' and 'two' handle int"):
        Double("d")


def test_two_response_handlers_for_one_pair_are_refused() -> None:
    class Double(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext) -> None: ...

        @response_handler
        async def one(self, request: str, response: bool, ctx: WorkflowContext) -> None: ...  # noqa: FBT001 - an answer

        @response_handler
        async def two(self, request: str, response: bool, ctx: WorkflowContext) -> None: ...  # noqa: FBT001 - an answer

    with pytest.raises(ValueError, match="both 'one' and 'two' handle str and bool"):
        Double("d")


def test_input_types_keep_unions_whole() -> None:
    assert Worker("w").input_types == [int, Union[str, bytes]]  # noqa: UP007


def test_output_types_are_split_and_those_of_all_handlers_together() -> None:
    assert set(map(str, Worker("w").output_types)) == set(map(str, [int, str, list[str]]))
    assert set(Worker("w").workflow_output_types) == {float, bool}


def test_an_executor_with_response_handlers_is_capable_of_requests() -> None:
    assert Worker("w").is_request_response_capable
    assert not Counter().is_request_response_capable
    assert Worker("w").is_request_supported(str, bool)
    assert not Worker("w").is_request_supported(str, str)
    assert not Worker("w").is_request_supported(int, bool)


def test_an_executor_tells_what_it_can_handle() -> None:
    worker = Worker("w")
    assert worker.can_handle(WorkflowMessage(1, "x"))
    assert worker.can_handle(WorkflowMessage(b"", "x"))
    assert not worker.can_handle(WorkflowMessage(1.5, "x"))
    asked = WorkflowEvent.request_info("r", "w", "sure?", bool)
    answer = WorkflowMessage(data=True, source_id="x", original_request_info_event=asked)
    assert worker.can_handle(answer)
    assert not worker.can_handle(WorkflowMessage("yes", "x", original_request_info_event=asked))


def test_an_executor_as_a_dict_has_id_and_type() -> None:
    assert Worker("w").to_dict() == {"id": "w", "type": "Worker"}
    again = Worker.from_json(Worker("w").to_json())
    assert (type(again), again.id, again.type) == (Worker, "w", "Worker")


def test_a_deep_clone_shares_nothing_with_its_original() -> None:
    class Collector(Counter):
        items: list[int]

    original = Collector()
    original.items = [1]
    deep, shallow = original.clone(), original.clone(deep=False)
    assert isinstance(deep, Collector)
    assert isinstance(shallow, Collector)
    original.items.append(2)
    assert (deep.items, shallow.items) == ([1], [1, 2])


async def test_an_executor_without_hooks_has_no_state() -> None:
    counter = Counter()
    saved = counter.on_checkpoint_save()
    assert saved == {}
    assert await counter.on_checkpoint_save() == {}
    assert await counter.on_checkpoint_restore({}) is None


def test_an_executor_whose_constructor_was_not_called_says_so() -> None:
    class Unready(Executor):
        def __init__(self) -> None:
            self.id = "unready"

        @handler
        async def go(self, message: int, ctx: WorkflowContext) -> None: ...

    with pytest.raises(TypeError, match=r"call super\(\).__init__\(id=...\) in Unready"):
        _ = Unready().input_types


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="max_concurrency must be 1 or more"):
        Worker("w", max_concurrency=limit)
    with pytest.raises(ValueError, match="executor 'double': max_concurrency must be 1 or more"):

        @executor(max_concurrency=limit)
        def double(number: int) -> None:
            del number
