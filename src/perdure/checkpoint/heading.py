"""The headers of checkpoints: what they say beside their contents. `manifest.header_of` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.codec import dumps, quoted, quoted_or_null
from perdure.data import frozen
from perdure.typenames import describe_stored

if TYPE_CHECKING:
    from perdure.kernel import Snapshot
    from perdure.records import NewRun

FORMAT = 2


@frozen
class Author:
    """Whose checkpoints they are, and of which graph: what all of one life say."""

    origin: NewRun
    """How the run began, so that a copy of a checkpoint in another store is a copy of the run."""
    graph_signature_hash: str
    definition_version: int


class Heading:
    """Makes the headers of a run's checkpoints. What all have in common is made once."""

    def __init__(self, author: Author) -> None:
        self.author = author
        origin = author.origin
        run = {
            "created_at": origin.created_at,
            "nonce": origin.nonce,
            "input_digest": origin.input_digest,
            "parent_checkpoint_id": origin.parent_checkpoint_id,
        }
        # Filled in one go: to put it together from a dozen pieces takes twice as long, with every superstep.
        self._form = (
            b'{"format":%d,"workflow_name":%b,"checkpoint_id":%%b,"run_id":%b,"previous_checkpoint_id":%%b'
            b',"timestamp":%%b,"iteration_count":%%d,"graph_signature_hash":%b,"kind":%%b,"turn":%%d,"since_input":%%d'
            b',"definition_version":%d,"pending_request_info_events":%%b,"withheld_kwargs":%%b'
            b',"run":%b,"metadata":{},"version":"1.0"%%b}'
        ) % (
            FORMAT,
            _literal(quoted(origin.workflow_name)),
            _literal(quoted(origin.run_id)),
            _literal(quoted(author.graph_signature_hash)),
            author.definition_version,
            _literal(dumps(run)),
        )

    def text(
        self,
        snapshot: Snapshot,
        *,
        checkpoint_id: str,
        previous_id: str | None,
        timestamp: str,
        kind: str,
        trace: str | None,
    ) -> bytes:
        """The header of one checkpoint."""
        return self._form % (
            quoted(checkpoint_id),
            quoted_or_null(previous_id),
            quoted(timestamp),
            snapshot.iteration,
            quoted(kind),
            snapshot.turn,
            snapshot.since_input,
            dumps(_requests(snapshot)) if snapshot.requests else b"{}",
            dumps(list(snapshot.withheld_kwargs)) if snapshot.withheld_kwargs else b"[]",
            b"" if trace is None else b',"trace":' + dumps(trace),
        )


def _literal(text: bytes) -> bytes:
    """A text that stands in a form as it is."""
    return text.replace(b"%", b"%%")


def _requests(snapshot: Snapshot) -> dict[str, Any]:
    return {
        request.id: {
            "type": "request_info",
            "request_id": request.id,
            "source_executor_id": request.executor_id,
            "request_type": describe_stored(request.request_type),
            "response_type": describe_stored(request.response_type),
        }
        for request in snapshot.requests.values()
    }
