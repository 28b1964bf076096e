"""The values of the kernel as pieces of documents: deliveries, requests, outputs and the like. Reading: `pieces_read`.

These texts are written with every superstep. They are put together from texts that are quoted once: that takes a tenth
of the time that a JSON encoder takes for the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.codec import (
    Needs,
    as_kept,
    document,
    dumps,
    part_reference,
    plain,
    quoted,
    quoted_all,
    quoted_or_null,
    to_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    from perdure.codec import Codec, Encoded
    from perdure.kernel import Answered, Cancelled, Delayed, Delivery, Limits, Output, Request, Suspended

    ItemT = TypeVar("ItemT")

INLINE_LENGTH_MAX = 2048
"""A longer text of a value in a document stands in a part of its own."""

OUTPUT_LENGTH_MAX = 256
"""The same for outputs: a chunk of them is written again with each that is added to it."""

_SOMETIMES = ("opened_at", "deadline", "approves", "resumes", "refusals")
"""What a request has only in some cases."""


class PieceWriter:
    """Encodes what a run is made of."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def array(self, items: Iterable[ItemT], write: Callable[[ItemT, Needs], bytes]) -> Encoded:
        """A JSON array of pieces."""
        needs = Needs()
        return needs.whole(b"[" + b",".join([write(item, needs) for item in items]) + b"]")

    def value(self, value: object, needs: Needs, *, length_max: int = INLINE_LENGTH_MAX) -> bytes:
        """A kept value: in place if it is short, else as a reference. Raises EncodeError."""
        encoded = as_kept(value).require_encoded()
        if len(encoded.text) <= length_max:
            return needs.take(encoded)
        return to_bytes(part_reference(needs.refer(encoded)))

    def type(self, type_: object, path: str) -> Encoded:
        """A type expression."""
        return self._codec.encode(type_, path=path)

    def delivery(self, delivery: Delivery, needs: Needs) -> bytes:
        """A delivery."""
        text = b'{"target":%b,"sources":%b,"values":[%b],"send":%b' % (
            quoted(delivery.target_id),
            quoted_all(delivery.sources),
            b",".join([self.value(value, needs) for value in delivery.values]),
            quoted(delivery.send),
        )
        if delivery.is_gathered:
            text += b',"gathered":true'
        if delivery.asked_for is not None:
            text += b',"asked_for":' + quoted(delivery.asked_for)
        if delivery.answers is not None:
            text += b',"answers":' + needs.take(self.request(delivery.answers))
        if delivery.activation_id is not None:
            text += b',"home":' + quoted(delivery.activation_id)
        if delivery.woken_at is not None:
            text += b',"woken_at":' + dumps(delivery.woken_at)
        return text + b"}"

    def output(self, output: Output, needs: Needs) -> bytes:
        """An output."""
        data = self.value(output.data, needs, length_max=OUTPUT_LENGTH_MAX)
        told = b',"whole":true' if output.is_whole else b""
        return b'{"executor":%b,"kind":%b,"data":%b%b}' % (quoted(output.executor_id), quoted(output.kind), data, told)

    def request(self, request: Request) -> Encoded:
        """A request."""
        from perdure.checkpoint.schema import schema_of  # noqa: PLC0415 - loaded where there are requests

        path = f"request {request.id!r}"
        members = {
            "id": plain(request.id),
            "executor": plain(request.executor_id),
            "data": self._piece(request.data),
            "request_type": self.type(request.request_type, path),
            "response_type": self.type(request.response_type, path),
        }
        for name in _SOMETIMES:
            if getattr(request, name):
                members[name] = plain(getattr(request, name))
        if request.default is not None:
            members["default"] = self._piece(request.default)
        schema = schema_of(request.response_type)
        if schema is not None:
            # For those who answer without the program.
            members["schema"] = plain(schema)
        return document(members)

    def _piece(self, value: object) -> Encoded:
        needs = Needs()
        return needs.whole(self.value(value, needs))

    def suspended(self, suspended: Suspended, needs: Needs) -> bytes:
        """An activation that waits."""
        return b'{"delivery":%b,"wake_at":%b,"awaits":%b}' % (
            self.delivery(suspended.delivery, needs),
            dumps(suspended.wake_at),
            dumps(suspended.awaits),
        )

    def delayed(self, delayed: Delayed, needs: Needs) -> bytes:
        """A message that waits for its time."""
        return b'{"due":%b,"source":%b,"send":%b,"value":%b,"asked_for":%b,"targets":%b,"fan_ins":%b}' % (
            dumps(delayed.due),
            quoted(delayed.source_id),
            quoted(delayed.send),
            self.value(delayed.data, needs),
            quoted_or_null(delayed.asked_for),
            quoted_all(delayed.targets),
            quoted_all(delayed.fan_ins),
        )

    def fan_in(self, buffers: Mapping[str, Mapping[str, tuple[object, ...]]]) -> Encoded:
        """What fan-in groups have gathered so far."""
        needs = Needs()
        groups = [quoted(group) + b":" + self._gathered(buffer, needs) for group, buffer in buffers.items()]
        return needs.whole(b"{" + b",".join(groups) + b"}")

    def _gathered(self, buffer: Mapping[str, tuple[object, ...]], needs: Needs) -> bytes:
        sources = [
            quoted(source) + b":[" + b",".join([self.value(value, needs) for value in values]) + b"]"
            for source, values in buffer.items()
        ]
        return b"{" + b",".join(sources) + b"}"


def answered(answer: Answered, needs: Needs) -> bytes:
    """A request that was answered."""
    del needs
    return dumps([answer.request_id, answer.at, answer.by, answer.what])


def received(message_id: str, needs: Needs) -> bytes:
    """The id of a message that was sent to the run."""
    del needs
    return dumps(message_id)


def cancelled(wish: Cancelled) -> Encoded:
    """The wish to stop."""
    return plain([wish.at, wish.by, wish.reason])


def limits(bounds: Limits) -> Encoded:
    """What the run may take."""
    return plain([bounds.deadline, dict(bounds.budget), dict(bounds.spent)])
