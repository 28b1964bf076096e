"""What a call of an agent workflow may be given, and errors of the engine in the words of agent workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from perdure import (
    AgentExecutorResponse,
    AlreadyAnsweredError,
    Message,
    RunExistsError,
    UnknownRequestError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

AboutRuns: TypeAlias = RunExistsError | AlreadyAnsweredError | UnknownRequestError


def require_request(request: object) -> None:
    """Raise TypeError or ValueError for what no execution can begin with."""
    match request:
        case str():
            if not request.strip():
                raise ValueError("an agent workflow begins with a request, and there is no word in this text")
        case Message() | AgentExecutorResponse():
            pass
        case list():
            _require_messages(cast("list[object]", request))
        case Mapping():
            _require_values(cast("Mapping[object, object]", request))
        case _:
            given = "None" if request is None else f"a {type(request).__name__}"
            raise TypeError(
                "an agent workflow begins with a text, a Message, a list of them, or a dict of values, not with "
                f"{given}; to go on with an execution call resume(execution_id)"
            )


def _require_messages(request: Sequence[object]) -> None:
    if not request:
        raise ValueError("an agent workflow begins with a request, and this list of messages is empty")
    for place, each in enumerate(request):
        if not isinstance(each, str | Message):
            raise TypeError(f"a request that is a list is one of texts and Messages; its item {place} is {each!r}")


def _require_values(request: Mapping[object, object]) -> None:
    if not isinstance(request, dict):
        raise TypeError(f"a request of values is a dict, not a {type(request).__name__}; give dict(...)")
    wrong = [key for key in request if not isinstance(key, str)]
    if wrong:
        raise TypeError(f"a request of values has texts as keys, which nodes read as input.<key>; {wrong[0]!r} is none")


def require_id(execution_id: object) -> None:
    """Raise TypeError or ValueError for what can't name an execution."""
    if execution_id is None:
        return
    if not isinstance(execution_id, str):
        raise TypeError(f"an execution_id is a text, not {execution_id!r}")
    if not execution_id:
        raise ValueError("an execution_id is a text that is not empty; leave it out to have one made")


def require_responses(responses: object) -> None:
    """Raise TypeError for what can't be answers."""
    if responses is not None and not isinstance(responses, Mapping):
        raise TypeError(f"responses are answers by the id of the request, as {{id: answer}}, not {responses!r}")


ABOUT_RUNS: Final = (RunExistsError, AlreadyAnsweredError, UnknownRequestError)
"""Errors of the engine that say what to do with a run."""


def in_own_words(error: AboutRuns) -> AboutRuns:
    """The same error, saying what to do with an execution."""
    error.message = _words(error)
    error.args = (error.message,)
    return error


def _words(error: AboutRuns) -> str:
    match error:
        case RunExistsError():
            return _exists(error)
        case AlreadyAnsweredError():
            return _answered(error)
        case UnknownRequestError():
            return _unknown(error)


def _exists(error: RunExistsError) -> str:
    began, remedy = "began with another input", f"go on with it with resume({error.run_id!r}), or "
    if "is a run of workflow" in str(error):
        began, remedy = "is one of another workflow", ""
    return f"execution {error.run_id!r} exists and {began}; {remedy}choose another execution_id"


def _answered(error: AlreadyAnsweredError) -> str:
    who = f" by {error.by}" if error.by else ""
    how = f" with {error.what}" if error.what else ""
    return (
        f"request {error.request_id!r} of execution {error.run_id!r} was answered{who} at {error.answered_at}{how}; "
        f"go on with resume({error.run_id!r}), without an answer to it"
    )


def _unknown(error: UnknownRequestError) -> str:
    if error.pending:
        asked = ", ".join(map(repr, error.pending))
        return f"there is no request {error.request_id!r} to answer; open are {asked}: answer these, by their ids"
    return f"there is no request {error.request_id!r} to answer: the execution asks nothing any more"
