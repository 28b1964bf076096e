"""Encode and decode the commands of a run's inbox: answers, messages and cancellation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.codec import DamagedPartError, Kept, document, loads, read_document
from perdure.errors import CheckpointDamagedError
from perdure.records import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.codec import Codec, Encoded

_SHOWN_LENGTH_MAX = 80


@dataclass(frozen=True, slots=True)
class AnswerCommand:
    """An answer to a request."""

    command_id: str
    request_id: str
    value: Kept
    at: str
    by: str
    shown: str


@dataclass(frozen=True, slots=True)
class MessageCommand:
    """A message for an executor, or for the start of the next turn."""

    command_id: str
    target_id: str | None
    value: Kept
    at: str
    by: str


@dataclass(frozen=True, slots=True)
class CancelCommand:
    """A request to stop the run."""

    command_id: str
    reason: str | None
    at: str
    by: str


AnyCommand: TypeAlias = AnswerCommand | MessageCommand | CancelCommand


def answer_id(request_id: str) -> str:
    """Return the command id of an answer. A request has at most one answer."""
    return f"answer/{request_id}"


CANCEL_ID = "cancel"


def answer_command(
    codec: Codec, request_id: str, answer: object, *, at: str, by: str, expects: tuple[str, str]
) -> Command:
    """Encode an answer, valid as long as the run's head has the request. Raises EncodeError."""
    value = codec.encode(answer, path=f"answer to request {request_id!r}").inline()
    tree = {"request": request_id, "value": value, "shown": shown(answer), "at": at, "by": by}
    return _command(answer_id(request_id), "answer", document(tree), expects)


def message_command(
    codec: Codec, command_id: str, message: object, *, target_id: str | None, at: str, by: str
) -> Command:
    """Encode a message. Raises EncodeError."""
    tree = {"target": target_id, "value": codec.encode(message, path="the message").inline(), "at": at, "by": by}
    return _command(f"message/{command_id}", "message", document(tree), None)


def cancel_command(*, reason: str | None, at: str, by: str) -> Command:
    """Encode a cancellation."""
    return _command(CANCEL_ID, "cancel", document({"reason": reason, "at": at, "by": by}), None)


def _command(command_id: str, kind: str, encoded: Encoded, expects: tuple[str, str] | None) -> Command:
    return Command(command_id, kind, encoded.text, encoded.refs, encoded.blobs, expects)


def is_same_answer(one: Command, other: Command) -> bool:
    """Return True if two answers to a request are equal, whoever gave them, and whatever the order of their keys."""
    return _canonical(one) == _canonical(other)


def _canonical(command: Command) -> str:
    # Compared as text, because True equals 1 in Python.
    return json.dumps(loads(command.data)["value"], sort_keys=True)


def shown(value: object) -> str:
    """Format a value briefly for messages to people."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[: _SHOWN_LENGTH_MAX - 1]}…"


def read_command(command: Command, blobs: Mapping[str, bytes], *, checkpoint_id: str) -> AnyCommand:
    """Decode a command. Raises CheckpointDamagedError."""
    try:
        tree = loads(command.data)
        return _read(command, tree, blobs, checkpoint_id)
    except (DamagedPartError, KeyError, TypeError) as error:
        reason = f"the command {command.id!r} in its inbox can't be read: {error or repr(error)}"
        raise CheckpointDamagedError(checkpoint_id, reason) from error


def _read(command: Command, tree: dict[str, Any], blobs: Mapping[str, bytes], checkpoint_id: str) -> AnyCommand:
    at, by = tree["at"], tree["by"]
    match command.kind:
        case "answer":
            value = _value(tree["value"], blobs, f"answer to request {tree['request']!r}", checkpoint_id)
            return AnswerCommand(command.id, tree["request"], value, at, by, tree["shown"])
        case "message":
            value = _value(tree["value"], blobs, "a message from outside", checkpoint_id)
            return MessageCommand(command.id, tree["target"], value, at, by)
        case "cancel":
            return CancelCommand(command.id, tree["reason"], at, by)
        case kind:
            raise DamagedPartError(f"unknown kind of command: {kind!r}")


def _value(tree: object, blobs: Mapping[str, bytes], path: str, checkpoint_id: str) -> Kept:
    """Return a value with its blobs, which the checkpoint that applies the command must keep."""
    encoded = read_document(tree).with_stored(blobs)
    return Kept(path=path, encoded=encoded, stored=blobs, checkpoint_id=checkpoint_id)
