"""The one public event class."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, Literal, Optional, TypeVar

import pytest

from perdure import Message, WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource, WorkflowRunState

T = TypeVar("T")


class Question:
    def __init__(self, text: str) -> None:
        self.text = text


def test_every_common_field_can_be_read_on_an_event_of_a_kind_of_the_users_own() -> None:
    event = WorkflowEvent("database_event", {"rows": 3})
    assert event.type == "database_event"
    assert event.data == {"rows": 3}
    assert event.origin is WorkflowEventSource.EXECUTOR
    assert (event.state, event.details, event.executor_id, event.iteration, event.path) == (None, None, None, None, ())


@pytest.mark.parametrize("name", ["request_id", "source_executor_id", "request_type", "response_type"])
def test_a_field_of_requests_is_refused_on_another_event(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"{name} can be read on 'request_info' events only"):
        getattr(WorkflowEvent.started(), name)


def test_a_request_knows_who_asks_what_for_what() -> None:
    question = Question("?")
    event = WorkflowEvent.request_info("r1", "asker", question, bool)
    assert (event.type, event.request_id, event.source_executor_id) == ("request_info", "r1", "asker")
    assert (event.request_type, event.response_type) == (Question, bool)
    assert event.data is question


def test_the_repr_shows_only_what_is_set() -> None:
    assert repr(WorkflowEvent("started")) == "WorkflowEvent(type='started')"
    status = WorkflowEvent.status(WorkflowRunState.IDLE)
    assert repr(status) == "WorkflowEvent(type='status', state=IDLE)"
    assert repr(WorkflowEvent.executor_invoked("a", 1)) == (
        "WorkflowEvent(type='executor_invoked', executor_id='a', data=1)"
    )
    assert repr(WorkflowEvent.superstep_started(2)) == "WorkflowEvent(type='superstep_started', iteration=2)"
    assert "request_id='r1'" in repr(WorkflowEvent.request_info("r1", "a", "?", str))


def test_the_factories_make_events_of_the_documented_types() -> None:
    details = WorkflowErrorDetails("ValueError", "no")
    made = {
        "started": WorkflowEvent.started(),
        "status": WorkflowEvent.status(WorkflowRunState.IDLE),
        "failed": WorkflowEvent.failed(details),
        "superstep_started": WorkflowEvent.superstep_started(1),
        "superstep_completed": WorkflowEvent.superstep_completed(1),
        "executor_invoked": WorkflowEvent.executor_invoked("a"),
        "executor_completed": WorkflowEvent.executor_completed("a"),
        "executor_failed": WorkflowEvent.executor_failed("a", details),
        "executor_bypassed": WorkflowEvent.executor_bypassed("a"),
        "warning": WorkflowEvent.warning("careful"),
        "error": WorkflowEvent.error(ValueError("no")),
    }
    assert {name: event.type for name, event in made.items()} == {name: name for name in made}
    assert made["failed"].details is details
    assert (made["executor_failed"].details, made["executor_failed"].data) == (details, details)
    assert made["status"].state is WorkflowRunState.IDLE


def test_emit_is_deprecated_but_works() -> None:
    with pytest.warns(DeprecationWarning, match="emit is deprecated"):
        event = WorkflowEvent.emit("a", 1)
    assert (event.type, event.executor_id, event.data) == ("data", "a", 1)


def test_only_a_request_has_a_dict_form() -> None:
    with pytest.raises(ValueError, match="only 'request_info' events"):
        WorkflowEvent.started().to_dict()


def test_a_request_comes_back_from_its_dict_form() -> None:
    question = Question("?")
    told = WorkflowEvent.request_info("r1", "asker", question, bool).to_dict()
    assert told == {
        "type": "request_info",
        "data": question,
        "request_id": "r1",
        "source_executor_id": "asker",
        "request_type": f"{__name__}.Question",
        "response_type": "builtins.bool",
    }
    again = WorkflowEvent.from_dict(told)
    assert (again.request_id, again.data, again.response_type) == ("r1", question, bool)


@pytest.mark.parametrize("missing", ["data", "request_id", "source_executor_id", "request_type", "response_type"])
def test_a_dict_form_without_one_of_its_fields_is_a_key_error(missing: str) -> None:
    told = WorkflowEvent.request_info("r1", "asker", "?", bool).to_dict()
    del told[missing]
    with pytest.raises(KeyError, match=missing):
        WorkflowEvent.from_dict(told)


def test_a_dict_form_whose_data_is_of_another_type_than_it_says_is_a_type_error() -> None:
    told = WorkflowEvent.request_info("r1", "asker", "?", bool).to_dict()
    with pytest.raises(TypeError, match=r"builtins\.str, not the builtins\.int"):
        WorkflowEvent.from_dict({**told, "request_type": "builtins.int"})


def test_reading_a_dict_form_imports_nothing() -> None:
    told = WorkflowEvent.request_info("r1", "asker", "?", bool).to_dict()
    with pytest.raises(TypeError, match="not known to this program"):
        WorkflowEvent.from_dict({**told, "response_type": "antigravity.fly"})


@dataclass
class Box(Generic[T]):
    """Something with something in it."""

    inside: T


@pytest.mark.parametrize(
    ("response_type", "name"),
    [
        (list[Message], "list[perdure.agents.messages.Message]"),
        (Message | None, "perdure.agents.messages.Message | None"),
        (Optional[int], "int | None"),  # noqa: UP045  what is meant is the alias
        (dict[str, list[int | str]], "dict[str, list[int | str]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[()], "tuple[()]"),
        (Sequence[Any], "collections.abc.Sequence[Any]"),
        (Literal["yes", -1, True], "Literal['yes', -1, True]"),
        (Box[int], f"{__name__}.Box[int]"),
        (Box, f"{__name__}.Box"),
        (str, "builtins.str"),
        (Any, "typing.Any"),
        (None, "None"),
    ],
)
def test_a_request_comes_back_with_the_type_of_its_answer(response_type: Any, name: str) -> None:
    told = WorkflowEvent.request_info("r1", "asker", "?", response_type).to_dict()
    assert told["response_type"] == name
    assert WorkflowEvent.from_dict(told).response_type == response_type


@pytest.mark.parametrize(
    "name",
    [
        "list[antigravity.fly]",
        "list[__import__('antigravity')]",
        "list[(lambda: int)()]",
        "int or str",
        "print[int]",
        "int[",
        "list[" * 5000,
        "sys",
        "",
    ],
)
def test_a_name_is_read_and_never_run(name: str) -> None:
    told = WorkflowEvent.request_info("r1", "asker", "?", bool).to_dict()
    with pytest.raises(TypeError, match="not known to this program"):
        WorkflowEvent.from_dict({**told, "response_type": name})
    assert "antigravity" not in sys.modules


def test_an_attribute_that_a_module_makes_when_it_is_asked_for_is_no_type(monkeypatch: pytest.MonkeyPatch) -> None:
    class Eager(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, "eager", Eager("eager"))
    told = WorkflowEvent.request_info("r1", "asker", "?", bool).to_dict()
    with pytest.raises(TypeError, match="not known to this program"):
        WorkflowEvent.from_dict({**told, "response_type": "list[eager.Thing]"})


def test_error_details_describe_an_exception() -> None:
    try:
        raise ValueError("no such thing")  # noqa: TRY301 - a traceback is wanted
    except ValueError as error:
        details = WorkflowErrorDetails.from_exception(error, executor_id="a", extra={"try": 2})
    assert (details.error_type, details.message, details.executor_id, details.extra) == (
        *("ValueError", "no such thing", "a"),
        {"try": 2},
    )
    assert details.traceback is not None
    assert "test_events.py" in details.traceback


def test_error_details_can_leave_out_what_may_be_sensitive(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("no such thing")
    hidden = WorkflowErrorDetails("ValueError", "ValueError", executor_id="a")
    found = WorkflowErrorDetails.from_exception(error, include_sensitive_data=False, executor_id="a")
    assert found == hidden
    monkeypatch.setenv("ENABLE_SENSITIVE_DATA", "False")
    assert WorkflowErrorDetails.from_exception(error, executor_id="a") == hidden
    assert WorkflowErrorDetails.from_exception(error, include_sensitive_data=True).message == "no such thing"


def test_run_states_are_strings_named_as_they_are_valued() -> None:
    assert {state.name for state in WorkflowRunState} == {
        *("STARTED", "IN_PROGRESS", "IN_PROGRESS_PENDING_REQUESTS", "IDLE"),
        *("IDLE_WITH_PENDING_REQUESTS", "SLEEPING", "FAILED", "CANCELLED"),
    }
    assert all(isinstance(state, str) and state.name == state.value for state in WorkflowRunState)
