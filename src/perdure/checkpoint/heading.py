"""The headers of checkpoints: what they say beside their contents. `manifest.header_of` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint.documents import dumps, quoted, quoted_or_null
from perdure.data import frozen
from perdure.typenames import describe

if TYPE_CHECKING:
    from perdure.kernel.snapshot import Snapshot
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
        self._begins = b'{"format":%d,"workflow_name":%b' % (FORMAT, quoted(origin.workflow_name))
        self._run_id = quoted(origin.run_id)
        self._signature = quoted(author.graph_signature_hash)
        run = {
            "created_at": origin.created_at,
            "nonce": origin.nonce,
            "input_digest": origin.input_digest,
            "parent_checkpoint_id": origin.parent_checkpoint_id,
        }
        self._ends = b',"run":%b,"metadata":{},"version":"1.0"' % dumps(run)

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
        requests = dumps(_requests(snapshot)) if snapshot.requests else b"{}"
        withheld = dumps(list(snapshot.withheld_kwargs)) if snapshot.withheld_kwargs else b"[]"
        return b"".join(
            (
                self._begins,
                b',"checkpoint_id":%b,"run_id":%b' % (quoted(checkpoint_id), self._run_id),
                b',"previous_checkpoint_id":%b,"timestamp":%b' % (quoted_or_null(previous_id), quoted(timestamp)),
                b',"iteration_count":%d,"graph_signature_hash":%b' % (snapshot.iteration, self._signature),
                b',"kind":%b,"turn":%d,"since_input":%d' % (quoted(kind), snapshot.turn, snapshot.since_input),
                b',"definition_version":%d' % self.author.definition_version,
                b',"pending_request_info_events":%b,"withheld_kwargs":%b' % (requests, withheld),
                self._ends,
                b"" if trace is None else b',"trace":%b' % dumps(trace),
                b"}",
            )
        )


def _requests(snapshot: Snapshot) -> dict[str, Any]:
    return {
        request.id: {
            "type": "request_info",
            "request_id": request.id,
            "source_executor_id": request.executor_id,
            "request_type": describe(request.request_type),
            "response_type": describe(request.response_type),
        }
        for request in snapshot.requests.values()
    }
