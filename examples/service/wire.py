"""The HTTP side: strict request bodies, values as JSON, and errors that say what to do."""

import dataclasses
import json
import re
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from perdure import (
    AlreadyAnsweredError,
    AnswerTypeError,
    ApprovalMismatchError,
    EventsForgottenError,
    RunBusyError,
    RunError,
    RunExistsError,
    RunNotFoundError,
    UnknownRequestError,
)

BODY_BYTES_MAX = 64 * 1024
TEXT_LENGTH_MAX = 500
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RUN_ID_RULE = (
    "a run_id has at most 100 letters, digits, dots, dashes and underscores, and begins with a letter or a digit"
)

# Errors of a run, with the status and the advice. The first that fits is used.
_REFUSALS: dict[type[RunError], tuple[HTTPStatus, str]] = {
    RunNotFoundError: (HTTPStatus.NOT_FOUND, "GET /runs lists all runs"),
    UnknownRequestError: (HTTPStatus.NOT_FOUND, "GET /requests lists what is open"),
    RunExistsError: (HTTPStatus.CONFLICT, "choose another run_id, or leave it out"),
    RunBusyError: (HTTPStatus.CONFLICT, "try again when nobody advances it"),
    AlreadyAnsweredError: (HTTPStatus.CONFLICT, "nothing is left to do: that answer stands"),
    ApprovalMismatchError: (HTTPStatus.CONFLICT, "look at GET /requests again, and approve what it asks now"),
    AnswerTypeError: (HTTPStatus.UNPROCESSABLE_ENTITY, "GET /requests has the schema of an answer"),
    EventsForgottenError: (HTTPStatus.GONE, "begin with a later number"),
    RunError: (HTTPStatus.CONFLICT, "look at the run: GET /runs/{run_id}"),
}


def unfit(why: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, why)


async def body_of(request: Request) -> object:
    """Return the JSON body. Other content and bodies that are too large are refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Any web page can make a browser send a request, but not with this header.
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with the header Content-Type: application/json"
        )
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_BYTES_MAX:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {BODY_BYTES_MAX} bytes")
    return _parsed(bytes(raw))


def _parsed(raw: bytes) -> object:
    try:
        value: object = json.loads(raw)
        # NaN or a lone surrogate can't be written as JSON.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from error
    return value


def fields_of(value: object, what: str, *names: str) -> dict[str, Any]:
    """Return a JSON object. It may have only these fields."""
    if not isinstance(value, dict) or not value.keys() <= set(names):
        raise unfit(f"{what} has to be an object that has {', '.join(map(repr, names)) or 'no fields'}, nothing else")
    return cast("dict[str, Any]", value)


def text_of(body: dict[str, Any], name: str) -> str:
    value: object = body.get(name)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.strip()) <= TEXT_LENGTH_MAX:
        raise unfit(f"{name!r} has to be one line of text, of at most {TEXT_LENGTH_MAX} characters")
    return value


def optional_text(body: dict[str, Any], name: str) -> str | None:
    return None if body.get(name) is None else text_of(body, name)


def new_run_id(body: dict[str, Any]) -> str | None:
    run_id = optional_text(body, "run_id")
    if run_id is not None and not _RUN_ID.fullmatch(run_id):
        raise unfit(_RUN_ID_RULE)
    return run_id


def run_id_of(request: Request) -> str:
    run_id: str = request.path_params["run_id"]
    if not _RUN_ID.fullmatch(run_id):
        raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no run {run_id!r}: {_RUN_ID_RULE}")
    return run_id


def first_seq_of(request: Request) -> int:
    """The number of the first event that a follower wants: it says so, or which one it has seen last."""
    last = request.headers.get("last-event-id")
    first = request.query_params.get("from_seq", "1")
    if not re.fullmatch(r"[0-9]{1,9}", last or first):
        raise unfit(f"the number of an event can't be {last or first!r}; the first one is 1")
    return int(last) + 1 if last else max(int(first), 1)


def in_order(answer: object) -> object:
    """An answer with its fields in one order, so that what is decided comes before what is remarked."""
    return dict(sorted(cast("dict[str, object]", answer).items())) if isinstance(answer, dict) else answer


def is_short_for(what: str | None, answer: object) -> bool:
    """Whether this is how a run remembers the answer: of a long one only the beginning."""
    text = repr(answer)
    return what is not None and (what == text or (what.endswith("…") and text.startswith(what[:-1])))


def as_json(value: object) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def reply(value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(as_json(value) + "\n", status, media_type="application/json")


def what_happened(error: Exception) -> str:
    """What an error of the library says, without its advice, which is for Python programs."""
    return str(error).partition("; ")[0]


def _http_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for nothing else"
    status = HTTPStatus(error.status_code)
    # Starlette itself says no more than the name of the status.
    why = (
        f"{request.method} {request.url.path} is not served; begin with GET /runs"
        if error.detail == status.phrase
        else error.detail
    )
    return reply({"error": why}, status)


def _run_refused(_: Request, error: Exception) -> Response:
    status, advice = next(refusal for kind, refusal in _REFUSALS.items() if isinstance(error, kind))
    said: dict[str, Any] = {"error": f"{what_happened(error)}; {advice}"}
    if isinstance(error, AlreadyAnsweredError):
        said["answered"] = {"by": error.by, "what": error.what, "at": error.answered_at}
    return reply(said, status)


ERROR_REPLIES: dict[Any, Callable[[Request, Exception], Response]] = {
    HTTPException: _http_refused,
    RunError: _run_refused,
}
