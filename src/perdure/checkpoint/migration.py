"""Migrate snapshots of older workflow versions: rename executors and upgrade state."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.errors import WorkflowCheckpointException
from perdure.graph import INTERNAL_SOURCE_ID, SHARED_SCOPE, FanInEdgeGroup, private_owner, private_scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.codec import Values
    from perdure.graph import Graph, Migration, Upgrade
    from perdure.kernel import Delayed, Delivery, Request, Snapshot, StateKey

_NUMBERED = re.compile(r"(.*?)(#\d+(?:/.*)?)\Z", re.DOTALL)
"""An executor's id, and its number with everything after it."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """A snapshot in terms of the present version, and the renamed executors."""

    snapshot: Snapshot
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])


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
        state = await _shared(migration.shared_state, state, values, migration)
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


async def _shared(
    upgrade: Upgrade, state: dict[StateKey, object], values: Values, migration: Migration
) -> dict[StateKey, object]:
    before = {key: values.give(value) for (scope, key), value in state.items() if scope == SHARED_SCOPE}
    after = await _upgraded(upgrade, before, "shared state", migration)
    others = {place: value for place, value in state.items() if place[0] != SHARED_SCOPE}
    return others | {(SHARED_SCOPE, key): values.fix(value, f"state[{key!r}]") for key, value in after.items()}


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
