"""Old runs under new code: migrate their snapshots, and report what the present graph can't use."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.data_classes import new_dict, value_class
from perdure.errors import IncompatibleTypeError, UntrustedTypeError, WorkflowCheckpointException
from perdure.graph import (
    INTERNAL_SOURCE_ID,
    SHARED_SCOPE,
    Executor,
    FanInEdgeGroup,
    Graph,
    Migration,
    Upgrade,
    private_owner,
    private_scope,
    wiring,
)
from perdure.kernel import Delayed, Delivery, Request, Snapshot
from perdure.typenames import describe, type_of
from perdure.types import is_instance_of, is_type_compatible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.codec import Values

_NUMBERED = re.compile(r"(.*?)(#\d+(?:/.*)?)\Z", re.DOTALL)
"""An executor's id, and its number with everything after it."""


@value_class
class Migrated:
    """A snapshot in terms of the present version, and the renamed executors."""

    snapshot: Snapshot
    renamed: Mapping[str, str] = field(default_factory=new_dict)


async def migrate(snapshot: Snapshot, stored: Mapping[str, Any], graph: Graph, values: Values) -> Migrated:
    """Apply the migrations from the stored version to the present one, including sub-workflows."""
    version = stored.get("version", graph.rules.version)
    if version > graph.rules.version:
        raise WorkflowCheckpointException(
            f"the checkpoint was written by version {version} of workflow {graph.name!r}, this is version "
            f"{graph.rules.version}: run the newer program, or resume from an older checkpoint"
        )
    renamed: dict[str, str] = {}
    for migration in graph.rules.migrations:
        if version < migration.to <= graph.rules.version:
            snapshot = await _step(snapshot, migration, graph, values)
            renamed = {old: migration.rename.get(new, new) for old, new in renamed.items()}
            renamed.update({old: new for old, new in migration.rename.items() if old not in renamed.values()})
    children = dict(snapshot.children)
    for executor_id, inner in graph.children.items():
        old_id = next((old for old, new in renamed.items() if new == executor_id), executor_id)
        document = stored.get("children", {}).get(old_id)
        if executor_id in children and document is not None:
            children[executor_id] = (await migrate(children[executor_id], document, inner, values)).snapshot
    return Migrated(replace(snapshot, children=children), renamed)


async def _step(snapshot: Snapshot, migration: Migration, graph: Graph, values: Values) -> Snapshot:
    snapshot = _without(_renamed(snapshot, migration.rename, graph), set(migration.drop))
    executors = dict(snapshot.executors)
    for executor_id, upgrade in migration.executor_states.items():
        if executor_id in executors:
            what = f"state of executor {executor_id!r}"
            state = await _upgraded(upgrade, values.give(executors[executor_id]), what, migration)
            executors[executor_id] = values.fix(state, what)
    state = dict(snapshot.state)
    if migration.shared_state is not None:
        before = {key: values.give(value) for (scope, key), value in state.items() if scope == SHARED_SCOPE}
        shared = await _upgraded(migration.shared_state, before, "shared state", migration)
        state = {place: value for place, value in state.items() if place[0] != SHARED_SCOPE}
        state |= {(SHARED_SCOPE, key): values.fix(value, f"state[{key!r}]") for key, value in shared.items()}
    return replace(snapshot, executors=executors, state=state)


def _without(snapshot: Snapshot, gone: set[str]) -> Snapshot:
    """Remove everything that is stored for some executors."""
    return replace(
        snapshot,
        executors={key: value for key, value in snapshot.executors.items() if key not in gone},
        children={key: child for key, child in snapshot.children.items() if key not in gone},
        state={place: value for place, value in snapshot.state.items() if private_owner(place[0]) not in gone},
    )


async def _upgraded(upgrade: Upgrade, state: dict[str, Any], what: str, migration: Migration) -> dict[str, Any]:
    try:
        outcome = upgrade(state)
        return await outcome if inspect.isawaitable(outcome) else outcome
    except Exception as error:
        raise WorkflowCheckpointException(
            f"the migration to version {migration.to} could not upgrade the {what}: {type(error).__name__}: {error}; "
            "nothing was changed, fix the migration and resume again",
            error,
        ) from error


def _renamed(snapshot: Snapshot, names: Mapping[str, str], graph: Graph) -> Snapshot:
    if not names:
        return snapshot

    def now(executor_id: str) -> str:
        return names.get(executor_id, executor_id)

    sources = {INTERNAL_SOURCE_ID(old): INTERNAL_SOURCE_ID(new) for old, new in names.items()} | dict(names)
    private = {private_scope(old): private_scope(new) for old, new in names.items()}
    groups = _group_names(graph, names)

    def home(old: str) -> str:
        """Rename the executor in a record key or its start: `<turn>.<superstep>/<executor>#<n>...`."""
        superstep, _, rest = old.partition("/")
        found = _NUMBERED.match(rest)
        return old if found is None else f"{superstep}/{now(found[1])}{found[2]}"

    def request(old: Request) -> Request:
        resumes = None if old.resumes is None else home(old.resumes)
        return replace(old, executor_id=now(old.executor_id), resumes=resumes)

    def delivery(old: Delivery) -> Delivery:
        return replace(
            old,
            target_id=now(old.target_id),
            sources=tuple(sources.get(source, source) for source in old.sources),
            asked_for=None if old.asked_for is None else now(old.asked_for),
            answers=None if old.answers is None else request(old.answers),
            activation_id=None if old.activation_id is None else home(old.activation_id),
        )

    def delayed(old: Delayed) -> Delayed:
        return replace(
            old,
            source_id=sources.get(old.source_id, old.source_id),
            asked_for=None if old.asked_for is None else now(old.asked_for),
            targets=tuple(map(now, old.targets)),
            fan_ins=tuple(groups.get(group_id, group_id) for group_id in old.fan_ins),
        )

    return replace(
        snapshot,
        executors={now(key): value for key, value in snapshot.executors.items()},
        children={now(key): child for key, child in snapshot.children.items()},
        deliveries=tuple(map(delivery, snapshot.deliveries)),
        requests={key: request(value) for key, value in snapshot.requests.items()},
        suspended=tuple(replace(each, delivery=delivery(each.delivery)) for each in snapshot.suspended),
        delayed=tuple(map(delayed, snapshot.delayed)),
        carried={home(key): value for key, value in snapshot.carried.items()},
        state={(private.get(scope, scope), key): value for (scope, key), value in snapshot.state.items()},
        fan_in={
            groups.get(group_id, group_id): {now(source): kept for source, kept in buffer.items()}
            for group_id, buffer in snapshot.fan_in.items()
        },
    )


def _group_names(graph: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """Map the former ids of fan-in groups to the present ones. An id depends on the names of the executors."""
    before = {new: old for old, new in names.items()}
    return {
        FanInEdgeGroup(
            [before.get(source, source) for source in group.source_executor_ids],
            before.get(group.target_id, group.target_id),
        ).id: group_id
        for group_id, group in graph.fan_ins.items()
    }


@dataclass(frozen=True, slots=True)
class Affected:
    """Something stored that the present graph can't use."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """The differences between a graph and the one that wrote a checkpoint, and what they break."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=new_dict)
    retyped: tuple[str, ...] = ()
    edges_added: tuple[str, ...] = ()
    edges_removed: tuple[str, ...] = ()
    affected: tuple[Affected, ...] = ()

    @property
    def is_compatible(self) -> bool:
        """True if the present graph can use everything stored."""
        return not self.affected

    def __str__(self) -> str:
        lines = [
            f"  {label}: {', '.join(names)}"
            for label, names in (
                ("added executors", self.added),
                ("removed executors", self.removed),
                ("renamed executors", tuple(f"{old} to {new}" for old, new in self.renamed.items())),
                ("changed types", self.retyped),
                ("added edges", self.edges_added),
                ("removed edges", self.edges_removed),
            )
            if names
        ]
        lines.extend(f"  affected: {item.what}: {item.why}" for item in self.affected)
        return "\n".join(lines) or "  no difference"


def compare(
    stored: Mapping[str, Any],
    graph: Graph,
    snapshot: Snapshot,
    values: Values,
    *,
    accepts: Callable[[Executor, Any], bool],
    renamed: Mapping[str, str] | None = None,
) -> CompatibilityReport:
    """Compare the graph that wrote a checkpoint with the present one. `snapshot` is migrated already."""
    names = dict(renamed or {})
    then: dict[str, Any] = stored.get("signature", {})
    then_executors: dict[str, Any] = then.get("executors", {})
    now = graph.signature
    old_ids: set[str] = {names.get(executor_id, executor_id) for executor_id in then_executors}
    new_ids: set[str] = set(now["executors"])
    old_edges, new_edges = _edges(then, names), _edges(now, {})
    return CompatibilityReport(
        added=tuple(sorted(new_ids - old_ids)) if then else (),
        removed=tuple(sorted(old_ids - new_ids)),
        renamed=names,
        retyped=tuple(_retyped(stored.get("interfaces", {}), graph.document["interfaces"], names)),
        edges_added=tuple(sorted(new_edges - old_edges)) if then else (),
        edges_removed=tuple(sorted(old_edges - new_edges)),
        affected=tuple(_Check(graph, values, accepts).affected(snapshot)),
    )


def _edges(signature: Mapping[str, Any], names: Mapping[str, str]) -> set[str]:
    return {
        f"{names.get(edge['source'], edge['source'])}->{names.get(edge['target'], edge['target'])}"
        for group in signature.get("edge_groups", ())
        if group["group_type"] != "InternalEdgeGroup"
        for edge in group["edges"]
    }


def _retyped(then: Mapping[str, Any], now: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    for old_id, old in then.items():
        executor_id = names.get(old_id, old_id)
        new = now.get(executor_id)
        if new is None:
            continue
        for aspect in ("takes", "sends", "answers"):
            if old.get(aspect) != new[aspect]:
                yield f"{executor_id} {aspect} {_listed(new[aspect])}, before {_listed(old.get(aspect))}"


def _listed(types: Any) -> str:
    return "[" + ", ".join(map(str, types or ())) + "]"


@value_class
class _Check:
    """Looks for stored things of one workflow that its present graph can't use."""

    graph: Graph
    values: Values
    accepts: Callable[[Executor, Any], bool]
    path: str = ""

    def affected(self, snapshot: Snapshot) -> Iterator[Affected]:
        """Yield what the graph, or one of its sub-workflows, can't use."""
        for what, why in self._faults(snapshot):
            if why is not None:
                yield Affected(what, why)
        for executor_id, child in snapshot.children.items():
            inner = self.graph.children.get(executor_id)
            if inner is not None:
                yield from replace(self, graph=inner, path=f"{self.path}{executor_id}/").affected(child)
            elif child.executors or child.requests or child.state or child.suspended or child.delayed or child.fan_in:
                yield Affected(f"the sub-workflow '{self.path}{executor_id}'", "it is gone")

    def _faults(self, snapshot: Snapshot) -> Iterator[tuple[str, str | None]]:
        """Yield everything that is stored, with the reason why the graph can't use it, if there is one."""
        path, graph = self.path, self.graph
        owners = dict.fromkeys(private_owner(scope) for scope, _ in snapshot.state)
        owned = [("state", each) for each in snapshot.executors]
        owned += [("private state", each) for each in owners if each is not None]
        for what, executor_id in owned:
            is_gone = executor_id not in graph.executors
            yield f"the {what} of executor '{path}{executor_id}'", "the executor is gone" if is_gone else None
        for each in snapshot.deliveries:
            yield f"a message for executor '{path}{each.target_id}'", self._delivery_fault(each)
        for each in snapshot.suspended:
            name = f"a suspended activation of executor '{path}{each.delivery.target_id}'"
            yield name, self._delivery_fault(each.delivery)
        for each in snapshot.requests.values():
            yield f"request {each.id!r} of executor '{path}{each.executor_id}'", self._request_fault(each)
        for each in snapshot.delayed:
            yield f"a delayed message of executor '{path}{each.source_id}'", self._delayed_fault(each)
        for group_id, buffer in snapshot.fan_in.items():
            yield f"messages of {', '.join(buffer)} that a fan-in has gathered", self._fan_in_fault(group_id, buffer)

    def _fan_in_fault(self, group_id: str, sources: Iterable[str]) -> str | None:
        group = self.graph.fan_ins.get(group_id)
        is_usable = group is not None and set(sources) <= set(group.source_executor_ids)
        return None if is_usable else "the fan-in is gone or has other sources"

    def _delivery_fault(self, delivery: Delivery) -> str | None:
        executor = self.graph.executors.get(delivery.target_id)
        if executor is None:
            return "the executor is gone"
        if delivery.woken_at is not None:
            return None if executor.child_graph() is not None else "it is no sub-workflow any more"
        if delivery.answers is not None:
            return self._request_fault(delivery.answers)
        try:
            given = [self.values.give(value) for value in delivery.values]
        except (UntrustedTypeError, IncompatibleTypeError) as error:
            return str(error)
        message = given if delivery.is_gathered else given[0]
        return None if self.accepts(executor, message) else f"it has no handler for a {type_of(message)}"

    def _delayed_fault(self, delayed: Delayed) -> str | None:
        for target_id in delayed.targets:
            fault = self._delivery_fault(Delivery(target_id, (), (delayed.data,), delayed.send))
            if fault is not None:
                return f"executor {target_id!r}: {fault}"
        faults = (self._fan_in_fault(group_id, [delayed.source_id]) for group_id in delayed.fan_ins)
        return next((fault for fault in faults if fault is not None), None)

    def _request_fault(self, request: Request) -> str | None:
        executor = self.graph.executors.get(request.executor_id)
        if executor is None:
            return "the executor is gone"
        try:
            data = self.values.give(request.data)
        except (UntrustedTypeError, IncompatibleTypeError) as error:
            return str(error)
        # A handler that asked continues with the answer.
        if request.resumes is not None or executor.child_graph() is not None:
            return None
        response = request.response_type
        for asked, answered in (route.types.takes for route in wiring(executor).dispatch.answers):
            # The handler's type may be wider or narrower.
            fits = is_type_compatible(response, answered) or is_type_compatible(answered, response)
            if fits and is_instance_of(data, asked):
                return None
        return f"it has no response handler for a {describe(response)} to a {type_of(data)}"
