"""The newest checkpoint of a run as far as a result needs it. What this program does not know by type is plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint import Reader, is_settled, known_paths, naming, only, request_event
from perdure.codec import CodedValues, DamagedPartError, as_kept, loads
from perdure.data import frozen
from perdure.engine import FRAMEWORK
from perdure.errors import CheckpointDamagedError, IncompatibleTypeError, UntrustedTypeError
from perdure.events import Undecoded, WorkflowEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.codec import Codec
    from perdure.kernel import Output, Snapshot
    from perdure.records import HeadStatus, Manifest
    from perdure.storage import PendingRequest, StoreStorage

_OUTPUTS = "outputs"
_REQUEST = "request/"


@frozen
class Head:
    """A checkpoint, and the parts of it that are about outputs and requests."""

    manifest: Manifest
    codec: Codec
    parts: Mapping[str, bytes]

    @classmethod
    async def read(cls, storage: StoreStorage, checkpoint_id: str) -> Head:
        """Raises CheckpointNotFoundError, CheckpointDamagedError."""
        manifest = await storage.store.manifest(checkpoint_id)
        with naming(checkpoint_id):
            parts = await storage.store.parts(_only(manifest, (_OUTPUTS, _REQUEST)).roots)
        return cls(manifest, storage.codec(), parts)

    @property
    def status(self) -> HeadStatus:
        """What the checkpoint leaves to do."""
        paths = known_paths(self.manifest)
        if "cancelled" in paths:
            return "cancelled"
        if "deliveries" in paths:
            return "running"
        if any(path.startswith(_REQUEST) for path in paths):
            return "waiting"
        return "idle" if is_settled(self.manifest) else "sleeping"

    def outputs(self) -> list[WorkflowEvent[Any]]:
        """The outputs of the present turn, in order."""
        values = CodedValues(self.codec)
        return [_output_event(output, values) for output in self._snapshot(_OUTPUTS).outputs]

    def requests(self, pending: Iterable[PendingRequest]) -> list[WorkflowEvent[Any]]:
        """The requests that wait; as the desk has them, if this program does not know their types."""
        try:
            values = CodedValues(self.codec)
            return [request_event(request, values) for request in self._snapshot(_REQUEST).requests.values()]
        except (UntrustedTypeError, IncompatibleTypeError):
            return [
                WorkflowEvent.request_info(request.request_id, request.executor_id, request.data, None)
                for request in pending
            ]

    def _snapshot(self, path: str) -> Snapshot:
        return Reader(_only(self.manifest, (path,)), self.parts, self.codec).snapshot()


def _only(manifest: Manifest, beginnings: tuple[str, ...]) -> Manifest:
    try:
        return only(manifest, beginnings)
    except DamagedPartError as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, str(error)) from error


def _output_event(output: Output, values: CodedValues) -> WorkflowEvent[Any]:
    """A committed output. What this program can't decode is `Undecoded`."""
    try:
        data = values.give(output.data)
    except (UntrustedTypeError, IncompatibleTypeError) as error:
        data = Undecoded(str(error), loads(as_kept(output.data).require_encoded().text))
    return WorkflowEvent(output.kind, data, executor_id=output.executor_id, origin=FRAMEWORK)
