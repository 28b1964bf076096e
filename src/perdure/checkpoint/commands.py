"""Commands for a run's inbox as bytes: answers, messages, the wish to cancel; and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.codec import (
    DamagedPartError,
    Kept,
    document,
    loads,
    piece,
    plain,
    with_parts,
)
from perdure.data import frozen
from perdure.errors import CheckpointDamagedError
from perdure.records import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.codec import Codec, Encoded

_SHOWN_LENGTH_MAX = 80


@frozen
class AnswerCommand:
    """An answer to a request: who gave it, when, and what it is."""

    command_id: str
    request_id: str
    value: Kept
    at: str
    by: str
    shown: str


@frozen
class MessageCommand:
    """A message: for an executor, or for the start of the next turn."""

    command_id: str
    target_id: str | None
    value: Kept
    at: str
    by: str


@frozen
class CancelCommand:
    """The wish that the run stops."""

    command_id: str
    reason: str | None
    at: str
    by: str


AnyCommand: TypeAlias = AnswerCommand | MessageCommand | CancelCommand


def answer_id(request_id: str) -> str:
    """The id under which an answer waits: one request, one answer."""
    return f"answer/{request_id}"


CANCEL_ID = "cancel"


def answer_command(
    codec: Codec, request_id: str, answer: object, *, at: str, by: str, expects: tuple[str, str]
) -> Command:
    """An answer, for as long as the run's head has the request. Raises EncodeError."""
    encoded = codec.inline(codec.encode(answer, path=f"answer to request {request_id!r}"))
    members = {
        "request": plain(request_id),
        "value": encoded,
        "shown": plain(shown(answer)),
        "at": plain(at),
        "by": plain(by),
    }
    return _command(answer_id(request_id), "answer", document(members), expects)


def message_command(
    codec: Codec, command_id: str, message: object, *, target_id: str | None, at: str, by: str
) -> Command:
    """A message. Raises EncodeError."""
    encoded = codec.inline(codec.encode(message, path="the message"))
    members = {"target": plain(target_id), "value": encoded, "at": plain(at), "by": plain(by)}
    return _command(f"message/{command_id}", "message", document(members), None)


def cancel_command(*, reason: str | None, at: str, by: str) -> Command:
    """The wish to cancel."""
    return _command(CANCEL_ID, "cancel", plain({"reason": reason, "at": at, "by": by}), None)


def _command(command_id: str, kind: str, encoded: Encoded, expects: tuple[str, str] | None) -> Command:
    return Command(command_id, kind, encoded.text, encoded.refs, encoded.parts, expects)


def is_same_answer(one: Command, other: Command) -> bool:
    """Whether two answers to a request are the same, whoever gave them, and whatever the order of their keys."""
    return _canonical(one) == _canonical(other)


def _canonical(command: Command) -> str:
    # As text, since to Python True is 1.
    return json.dumps(loads(command.data)["value"], sort_keys=True)


def shown(value: object) -> str:
    """A value in short, for messages to people."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[: _SHOWN_LENGTH_MAX - 1]}…"


def read_command(command: Command, parts: Mapping[str, bytes], *, checkpoint_id: str) -> AnyCommand:
    """A command from its bytes. Raises CheckpointDamagedError."""
    try:
        tree = loads(command.data)
        return _read(command, tree, parts, checkpoint_id)
    except (DamagedPartError, KeyError, TypeError) as error:
        reason = f"the command {command.id!r} in its inbox can't be read: {error or repr(error)}"
        raise CheckpointDamagedError(checkpoint_id, reason) from error


def _read(command: Command, tree: dict[str, Any], parts: Mapping[str, bytes], checkpoint_id: str) -> AnyCommand:
    at, by = tree["at"], tree["by"]
    match command.kind:
        case "answer":
            value = _value(tree["value"], parts, f"answer to request {tree['request']!r}", checkpoint_id)
            return AnswerCommand(command.id, tree["request"], value, at, by, tree["shown"])
        case "message":
            value = _value(tree["value"], parts, "a message from outside", checkpoint_id)
            return MessageCommand(command.id, tree["target"], value, at, by)
        case "cancel":
            return CancelCommand(command.id, tree["reason"], at, by)
        case kind:
            raise DamagedPartError(f"there is no command of kind {kind!r}")


def _value(tree: object, parts: Mapping[str, bytes], path: str, checkpoint_id: str) -> Kept:
    """A value with its parts: the checkpoint that takes it in has to keep them."""
    encoded = piece(tree)
    if encoded.refs:
        encoded = encoded.with_parts(with_parts(encoded.refs, parts))
    return Kept(path=path, encoded=encoded, stored=parts, checkpoint_id=checkpoint_id)
