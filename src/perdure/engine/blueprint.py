"""A graph prepared for running: trusted types and storage binding, derived once per workflow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from perdure.codec import Trust
from perdure.storage import Binding, bind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.clock import Clock
    from perdure.graph import Executor, Graph


@dataclass(frozen=True)
class Blueprint:
    """A graph, ready to be run."""

    graph: Graph
    clock: Clock
    _bound: list[Binding] = field(default_factory=list[Binding], init=False, compare=False, repr=False)
    """The last storage: most workflows use one, and finding its types takes time."""

    @cached_property
    def trust(self) -> Trust:
        """Return the trusted types: those in handler annotations, and data types of the executors' modules."""
        trust = Trust.of(self.graph.types())
        for module in dict.fromkeys(self.graph.modules()):
            trust = trust.with_module(module)
        return trust

    def bound(self, storage: object) -> Binding:
        """Return a storage bound to this workflow, with values of its own. Raises TypeError for no storage."""
        if not self._bound or self._bound[0].storage is not storage:
            is_lenient = self.graph.rules.on_checkpoint_error == "warn"
            binding = bind(storage, workflow_name=self.graph.name, trust=self.trust, is_lenient=is_lenient)
            self._bound[:] = [binding]
        binding = self._bound[0]
        # Each run is warned about its own large values.
        return replace(binding, values=binding.values.of_run())

    def executors(self, graph: Graph | None = None) -> Iterator[Executor]:
        """Return all executors, sub-workflows included."""
        graph = self.graph if graph is None else graph
        yield from graph.executors.values()
        for child in graph.children.values():
            yield from self.executors(child)
