"""What the runtime derives from a graph once: its signature, what it trusts, how it is described."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from perdure.codec import Trust
from perdure.data import frozen
from perdure.graph import graph_document, signature_hash
from perdure.storage import Binding, bind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.clock import Clock
    from perdure.graph import Executor, Graph


@frozen
class Blueprint:
    """A graph, ready to be run."""

    graph: Graph
    clock: Clock

    @cached_property
    def signature(self) -> dict[str, Any]:
        """The documented signature of the graph."""
        return self.document["signature"]

    @cached_property
    def signature_hash(self) -> str:
        """The same as one hash."""
        return signature_hash(self.signature)

    @cached_property
    def document(self) -> dict[str, Any]:
        """What a checkpoint says of the graph."""
        return graph_document(self.graph)

    @cached_property
    def trust(self) -> Trust:
        """The types of the handlers' annotations, and the data types in the modules of the executors."""
        trust = Trust.of(self.graph.types())
        for module in dict.fromkeys(self.graph.modules()):
            trust = trust.with_module(module)
        return trust

    def bound(self, storage: object) -> Binding:
        """A storage as this workflow uses it. Raises TypeError for what is no storage."""
        if not self._bound or self._bound[0].storage is not storage:
            is_lenient = self.graph.rules.on_checkpoint_error == "warn"
            binding = bind(storage, workflow_name=self.graph.name, trust=self.trust, is_lenient=is_lenient)
            self._bound[:] = [binding]
        return self._bound[0].for_run()

    @cached_property
    def _bound(self) -> list[Binding]:
        """The storage that was used last: most workflows have one only, and finding the types in it takes time."""
        return []

    def executors(self) -> Iterator[Executor]:
        """All executors, those of sub-workflows included."""
        yield from _executors(self.graph)


def _executors(graph: Graph) -> Iterator[Executor]:
    yield from graph.executors.values()
    for child in graph.children.values():
        yield from _executors(child)
