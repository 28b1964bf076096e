"""A checkpoint of one graph before another: what is compatible goes on, what is not is refused with a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

import pytest
from shapes import Clerk, Listener, Mark, Question, Split, Tally, asking
from typing_extensions import override

from perdure import (
    CompatibilityReport,
    Executor,
    IncompatibleGraphError,
    Migration,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    executor,
    handler,
    response_handler,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Storage
    from perdure import Workflow


def chain(storage: Storage, nodes: Sequence[Executor], **options: Any) -> Workflow:
    builder = WorkflowBuilder(start_executor=nodes[0], name="chain", checkpoint_storage=storage, **options)
    return (builder.add_chain(nodes) if len(nodes) > 1 else builder).build()


class Keeper(Executor):
    """Keeps the texts it saw in itself and in its private scope, and sends them on."""

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id)
        self.texts: list[str] = []

    @handler
    async def keep(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        self.texts.append(text)
        ctx.scope().set("texts", list(self.texts))
        ctx.set_state("latest", text)
        await ctx.send_message(f"{text}{self.id}")

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"texts": self.texts}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.texts = state["texts"]


async def stopped_after(storage: Storage, workflow: Workflow, message: Any, supersteps: int) -> str:
    """The checkpoint after so many supersteps of a run that ended there."""
    stream = workflow.run(message, stream=True)
    async for event in stream:
        if event.type == "checkpoint" and event.data.iteration_count == supersteps:
            break
    await stream.aclose()
    head = await storage.get_latest(workflow_name=workflow.name)
    assert head is not None
    assert head.iteration_count == supersteps
    return head.checkpoint_id


async def refused(workflow: Workflow, checkpoint_id: str) -> CompatibilityReport:
    """The report with which a checkpoint is refused."""
    with pytest.raises(IncompatibleGraphError, match=checkpoint_id) as caught:
        await workflow.run(checkpoint_id=checkpoint_id)
    assert isinstance(caught.value, WorkflowCheckpointException)
    assert isinstance(caught.value.report, CompatibilityReport)
    assert str(caught.value.report) in str(caught.value)
    assert "migrations" in str(caught.value)
    return caught.value.report


async def test_an_executor_that_was_added_takes_part_in_what_follows(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Mark("a"), Mark("b")]), "x", 1)
    result = await chain(storage, [Mark("a"), Mark("b"), Listener("c")]).run(checkpoint_id=here)
    assert result.get_outputs() == ["heard xab"]


async def test_an_added_executor_with_a_state_of_its_own_is_put_back_if_it_fails(storage: Storage) -> None:
    class Fragile(Keeper):
        broken = True

        @handler
        @override
        async def keep(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            await super().keep(text, ctx)
            if self.broken:
                raise ArithmeticError("broken")

    here = await stopped_after(storage, chain(storage, [Mark("a"), Mark("b")]), "x", 1)
    fragile = Fragile("c")
    fragile.texts = ["before"]
    workflow = chain(storage, [Mark("a"), Mark("b"), fragile])
    with pytest.raises(ArithmeticError):
        await workflow.run(checkpoint_id=here)
    assert fragile.texts == ["before"]


async def test_an_executor_that_is_gone_and_has_nothing_waiting_is_not_missed(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Mark("a"), Mark("b"), Mark("c")]), "x", 1)
    result = await chain(storage, [Mark("a"), Mark("b")]).run(checkpoint_id=here)
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_message_for_an_executor_that_is_gone_is_reported(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Mark("a"), Mark("b"), Mark("c")]), "x", 2)
    workflow = chain(storage, [Mark("a"), Mark("b"), Mark("d")])
    report = await refused(workflow, here)
    assert (report.added, report.removed) == (("d",), ("c",))
    assert (report.edges_added, report.edges_removed) == (("b->d",), ("b->c",))
    (affected,) = report.affected
    assert affected.what == "a message for executor 'c'"
    assert affected.why == "the executor is gone"
    assert not report.is_compatible


async def test_a_refused_checkpoint_is_left_as_it_is(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Mark("a"), Mark("b"), Mark("c")]), "x", 2)
    ids = await storage.list_checkpoint_ids()
    await refused(chain(storage, [Mark("a"), Mark("b")]), here)
    assert await storage.list_checkpoint_ids() == ids
    same = chain(storage, [Mark("a"), Mark("b"), Mark("c")])
    assert (await same.run(checkpoint_id=here)).get_final_state() is WorkflowRunState.IDLE


async def test_the_state_of_an_executor_that_is_gone_is_reported(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Keeper("a"), Mark("b")]), "x", 1)
    report = await refused(chain(storage, [Mark("b")]), here)
    assert "the state of executor 'a'" in {item.what for item in report.affected}
    text = str(report)
    assert "removed executors: a" in text
    assert "affected: the state of executor 'a': the executor is gone" in text


async def test_the_private_state_of_an_executor_that_is_gone_is_reported(storage: Storage) -> None:
    @executor(id="a")
    async def secretive(text: str, ctx: WorkflowContext[str]) -> None:
        ctx.scope().set("secret", text)
        await ctx.send_message(text)

    here = await stopped_after(storage, chain(storage, [secretive, Mark("b")]), "x", 1)
    report = await refused(chain(storage, [Mark("b")]), here)
    (affected,) = report.affected
    assert affected.what == "the private state of executor 'a'"
    dropped = chain(storage, [Mark("b")], migrations=[Migration(to=2, drop={"a"})])
    assert (await dropped.run(checkpoint_id=here)).get_final_state() is WorkflowRunState.IDLE


class Retyped(Executor):
    """Takes numbers where it took texts."""

    @handler
    async def mark(self, number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)


async def test_a_message_that_its_executor_no_longer_takes_is_reported(storage: Storage) -> None:
    @executor(id="a")
    async def loose(text: str | int, ctx: WorkflowContext[str | int]) -> None:
        await ctx.send_message(text)

    here = await stopped_after(storage, chain(storage, [loose, Mark("b")]), "x", 1)
    report = await refused(chain(storage, [loose, Retyped("b")]), here)
    assert "b takes [int], before [str]" in report.retyped
    (affected,) = report.affected
    assert affected.what == "a message for executor 'b'"
    assert affected.why == "it has no handler for a str"


async def test_a_request_whose_answer_nobody_takes_any_more_is_reported(storage: Storage) -> None:
    class Changed(Executor):
        @handler
        async def ask(self, words: list[str], ctx: WorkflowContext) -> None:
            del words, ctx

        @response_handler
        async def told(self, question: Question, answer: int, ctx: WorkflowContext) -> None:
            del question, answer, ctx

    class Mute(Executor):
        @handler
        async def ask(self, words: list[str], ctx: WorkflowContext) -> None:
            del words, ctx

    await asking(storage).run(["hue"])
    head = await storage.get_latest(workflow_name="asking")
    assert head is not None
    for node in (Changed("clerk"), Mute("clerk")):
        workflow = WorkflowBuilder(
            start_executor=node, name="asking", checkpoint_storage=storage, migrations=[Migration(to=2, drop={"clerk"})]
        ).build()
        report = await refused(workflow, head.checkpoint_id)
        (affected,) = report.affected
        assert affected.what == "request 'about-hue' of executor 'clerk'"


async def test_an_answered_request_that_waits_for_its_handler_is_looked_at_too(storage: Storage) -> None:
    workflow = asking(storage)
    await workflow.run(["hue"])
    stream = workflow.run(responses={"about-hue": "red"}, stream=True)
    async for event in stream:
        if event.type == "checkpoint":
            break
    await stream.aclose()
    head = await storage.get_latest(workflow_name="asking")
    assert head is not None
    other = WorkflowBuilder(start_executor=Listener("clerk"), name="asking", checkpoint_storage=storage).build()
    report = await refused(other, head.checkpoint_id)
    assert "a message for executor 'clerk'" in {item.what for item in report.affected}


async def test_changed_edges_are_followed_from_here_on(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Mark("a"), Mark("b"), Mark("c")]), "x", 1)
    a, b, c, d = Mark("a"), Mark("b"), Mark("c"), Listener("d")
    builder = WorkflowBuilder(start_executor=a, name="chain", checkpoint_storage=storage)
    workflow = builder.add_edge(a, c).add_edge(a, b).add_edge(b, d).build()
    assert (await workflow.run(checkpoint_id=here)).get_outputs() == ["heard xab"]


async def test_a_condition_under_another_name_is_no_change_that_matters(storage: Storage) -> None:
    def first(text: Any) -> bool:
        return bool(text)

    def second(text: Any) -> bool:
        return bool(text)

    def build(condition: Any) -> Workflow:
        a, b = Mark("a"), Listener("b")
        builder = WorkflowBuilder(start_executor=a, name="chain", checkpoint_storage=storage)
        return builder.add_edge(a, b, condition).build()

    here = await stopped_after(storage, build(first), "x", 1)
    assert (await build(second).run(checkpoint_id=here)).get_outputs() == ["heard xa"]


def joined(storage: Storage, *, short: str = "s", join: str = "join", extra: bool = False, **options: Any) -> Workflow:
    """Two branches of unequal length that meet, with names to be chosen."""

    @executor(id=join)
    async def meet(texts: list[str], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("+".join(texts))

    split, quick, long, longer, third = Split("split"), Mark(short), Mark("l"), Mark("m"), Mark("t")
    builder = WorkflowBuilder(start_executor=split, name="joined", checkpoint_storage=storage, **options)
    builder.add_fan_out_edges(split, [quick, long, *([third] if extra else [])]).add_edge(long, longer)
    return builder.add_fan_in_edges([quick, longer, *([third] if extra else [])], meet).build()


async def test_what_a_fan_in_has_gathered_is_reported_if_the_fan_in_changed(storage: Storage) -> None:
    here = await stopped_after(storage, joined(storage), "x", 2)
    report = await refused(joined(storage, extra=True), here)
    (affected,) = report.affected
    assert affected.what == "messages of s that a fan-in has gathered"


async def test_what_a_fan_in_has_gathered_moves_with_renamed_executors(storage: Storage) -> None:
    here = await stopped_after(storage, joined(storage), "x", 2)
    renamed = Migration(to=2, rename={"s": "short", "join": "meet"})
    workflow = joined(storage, short="short", join="meet", migrations=[renamed])
    assert (await workflow.run(checkpoint_id=here)).get_outputs() == ["xs+xlm"]


async def test_a_renamed_executor_keeps_its_state_its_messages_and_its_private_scope(storage: Storage) -> None:
    class Telling(Keeper):
        @handler
        @override
        async def keep(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            before = ctx.scope().get("texts")
            await super().keep(text, ctx)
            await ctx.yield_output(f"{self.texts} after {before}")

    def build(name: str, **options: Any) -> Workflow:
        node = Telling(name)
        builder = WorkflowBuilder(start_executor=node, name="loop", checkpoint_storage=storage, **options)
        return builder.add_edge(node, node, lambda text: len(text) < 6).build()

    here = await stopped_after(storage, build("old"), "x", 1)
    assert "'old'" in str(await refused(build("new"), here))
    workflow = build("new", migrations=[Migration(to=2, rename={"old": "new"})])
    result = await workflow.run(checkpoint_id=here)
    assert result.get_outputs() == ["['x', 'xold'] after ['x']"]
    assert [event.executor_id for event in result if event.type == "executor_invoked"] == ["new"]


async def test_a_renamed_executor_keeps_its_requests(storage: Storage) -> None:
    await asking(storage).run(["hue"])
    head = await storage.get_latest(workflow_name="asking")
    assert head is not None
    clerk = Clerk("secretary")
    workflow = WorkflowBuilder(
        start_executor=clerk,
        name="asking",
        checkpoint_storage=storage,
        migrations=[Migration(to=2, rename={"clerk": "secretary"})],
    ).build()
    result = await workflow.run(checkpoint_id=head.checkpoint_id, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]


async def test_a_renamed_sub_workflow_keeps_what_is_inside(storage: Storage) -> None:
    def build(name: str, clerk: Clerk, **options: Any) -> Workflow:
        desk = WorkflowExecutor(asking(None, clerk=clerk), id=name, propagate_request=True)
        listener = Listener("listener")
        builder = WorkflowBuilder(start_executor=desk, name="office", checkpoint_storage=storage, **options)
        return builder.add_edge(desk, listener).build()

    before = build("desk", Clerk())
    await before.run(["hue", "mood"])
    await before.run(responses={"about-hue": "red"})
    head = await storage.get_latest(workflow_name="office")
    assert head is not None
    report = await refused(build("table", Clerk()), head.checkpoint_id)
    assert "the sub-workflow 'desk'" in {item.what for item in report.affected}
    clerk = Clerk()
    workflow = build("table", clerk, migrations=[Migration(to=2, rename={"desk": "table"})])
    result = await workflow.run(checkpoint_id=head.checkpoint_id, responses={"about-mood": "calm"})
    assert result.get_outputs() == ["heard mood: calm"]
    assert clerk.log == ["red", "calm"]


async def test_what_is_affected_inside_a_sub_workflow_is_named_with_its_path(storage: Storage) -> None:
    def build(clerk: Executor) -> Workflow:
        inner = WorkflowBuilder(start_executor=clerk, name="inner").build()
        desk = WorkflowExecutor(inner, id="desk", propagate_request=True)
        return WorkflowBuilder(start_executor=desk, name="office", checkpoint_storage=storage).build()

    await build(Clerk()).run(["hue"])
    head = await storage.get_latest(workflow_name="office")
    assert head is not None
    report = await refused(build(Clerk("secretary")), head.checkpoint_id)
    assert "the state of executor 'desk/clerk'" in {item.what for item in report.affected}
    assert "request 'about-hue' of executor 'desk/clerk'" in {item.what for item in report.affected}


async def test_a_sub_workflow_has_migrations_of_its_own(storage: Storage) -> None:
    def build(clerk: Executor, *migrations: Migration) -> Workflow:
        inner = WorkflowBuilder(start_executor=clerk, name="inner", migrations=migrations).build()
        desk = WorkflowExecutor(inner, id="desk", propagate_request=True, allow_direct_output=True)
        return WorkflowBuilder(start_executor=desk, name="office", checkpoint_storage=storage).build()

    await build(Clerk()).run(["hue"])
    head = await storage.get_latest(workflow_name="office")
    assert head is not None
    workflow = build(Clerk("secretary"), Migration(to=2, rename={"clerk": "secretary"}))
    result = await workflow.run(checkpoint_id=head.checkpoint_id, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]


async def test_stored_state_is_upgraded_version_by_version(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Keeper("a"), Keeper("b"), Mark("c")]), "x", 1)

    async def second(state: dict[str, Any]) -> dict[str, Any]:
        return {"texts": [f"{text}!" for text in state["texts"]]}

    def third(state: dict[str, Any]) -> dict[str, Any]:
        return {"texts": [f"{text}?" for text in state["texts"]]}

    def shared(state: dict[str, Any]) -> dict[str, Any]:
        return {"newest": state["latest"].upper()}

    migrations = [
        Migration(to=3, executor_states={"a": third}),
        Migration(to=2, executor_states={"a": second}, shared_state=shared),
    ]
    a = Keeper("a")
    workflow = chain(storage, [a, Keeper("b"), Mark("c")], migrations=migrations)
    await workflow.run(checkpoint_id=here)
    assert a.texts == ["x!?"]
    last = await storage.get_latest(workflow_name="chain")
    assert last is not None
    assert last.state["newest"] == "X"
    assert last.state["latest"] == "xa"


async def test_a_checkpoint_of_the_present_version_is_not_upgraded_again(storage: Storage) -> None:
    def twice(state: dict[str, Any]) -> dict[str, Any]:
        return {"texts": state["texts"] * 2}

    here = await stopped_after(storage, chain(storage, [Keeper("a"), Mark("b"), Mark("c")]), "x", 1)
    migrations = [Migration(to=2, executor_states={"a": twice})]
    workflow = chain(storage, [Keeper("a"), Mark("b"), Mark("c")], migrations=migrations)
    here = await _resumed_to(storage, workflow, here)
    a = Keeper("a")
    await chain(storage, [a, Mark("b"), Mark("c")], migrations=migrations).run(checkpoint_id=here)
    assert a.texts == ["x", "x"]
    later = Keeper("a")
    await chain(storage, [later, Mark("b"), Mark("c")], migrations=[*migrations, Migration(to=3)]).run(
        checkpoint_id=here
    )
    assert later.texts == ["x", "x"]


async def _resumed_to(storage: Storage, workflow: Workflow, checkpoint_id: str) -> str:
    stream = workflow.run(checkpoint_id=checkpoint_id, stream=True)
    async for event in stream:
        if event.type == "checkpoint":
            break
    await stream.aclose()
    head = await storage.get_latest(workflow_name=workflow.name)
    assert head is not None
    return head.checkpoint_id


async def test_a_checkpoint_of_a_newer_version_is_refused(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Mark("a"), Mark("b")], version=3), "x", 1)
    with pytest.raises(
        WorkflowCheckpointException, match="written by version 3 of workflow 'chain', this is version 2"
    ):
        await chain(storage, [Mark("a"), Mark("b")], version=2).run(checkpoint_id=here)


async def test_an_upgrade_that_raises_changes_nothing(storage: Storage) -> None:
    def broken(state: dict[str, Any]) -> dict[str, Any]:
        raise KeyError(state["no such key"])

    here = await stopped_after(storage, chain(storage, [Keeper("a"), Mark("b")]), "x", 1)
    ids = await storage.list_checkpoint_ids()
    workflow = chain(storage, [Keeper("a"), Mark("b")], migrations=[Migration(to=2, executor_states={"a": broken})])
    with pytest.raises(WorkflowCheckpointException, match=r"state of executor 'a': KeyError"):
        await workflow.run(checkpoint_id=here)
    assert await storage.list_checkpoint_ids() == ids


async def test_executors_can_swap_their_names(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Keeper("a"), Keeper("b"), Mark("c")]), "x", 2)
    a, b = Keeper("a"), Keeper("b")
    swapped = chain(storage, [b, a, Mark("c")], migrations=[Migration(to=2, rename={"a": "b", "b": "a"})])
    await swapped.run(checkpoint_id=here)
    assert (a.texts, b.texts) == (["xa"], ["x"])


async def test_names_are_followed_through_several_migrations(storage: Storage) -> None:
    here = await stopped_after(storage, chain(storage, [Keeper("a"), Mark("x")]), "t", 1)
    node = Keeper("c")
    migrations = [Migration(to=2, rename={"a": "b"}), Migration(to=3, rename={"b": "c"})]
    await chain(storage, [node, Mark("x")], migrations=migrations).run(checkpoint_id=here)
    assert node.texts == ["t"]


async def test_a_run_whose_graph_changed_goes_on_under_its_id_and_the_next_checkpoints_are_of_the_new_graph(
    storage: Storage,
) -> None:
    first = chain(storage, [Mark("a"), Mark("b")])
    here = await stopped_after(storage, first, "x", 1)
    second = chain(storage, [Mark("a"), Mark("b"), Listener("c")])
    await second.run(checkpoint_id=here)
    assert second.run_id == first.run_id
    last = await storage.get_latest(workflow_name="chain")
    assert last is not None
    assert last.graph_signature_hash == second.graph_signature_hash != first.graph_signature_hash


async def test_the_head_of_a_run_is_refused_by_its_id_too(storage: Storage) -> None:
    workflow = chain(storage, [Mark("a"), Mark("b"), Mark("c")])
    await stopped_after(storage, workflow, "x", 2)
    assert workflow.run_id is not None
    with pytest.raises(IncompatibleGraphError):
        await chain(storage, [Mark("a"), Mark("b")]).run(run_id=workflow.run_id)
    assert (await chain(storage, [Mark("a"), Mark("b"), Mark("c")]).run(run_id=workflow.run_id)).get_final_state()


@dataclass
class Parcel:
    """A message."""

    weight: int


async def test_an_executor_of_another_class_with_the_same_types_takes_over(storage: Storage) -> None:
    class First(Executor):
        @handler
        async def take(self, parcel: Parcel, ctx: WorkflowContext[Parcel, int]) -> None:
            await ctx.send_message(Parcel(parcel.weight + 1))

    class Second(Executor):
        @handler
        async def get(self, parcel: Parcel, ctx: WorkflowContext[Parcel, int]) -> None:
            await ctx.yield_output(parcel.weight)

    here = await stopped_after(storage, chain(storage, [First("a"), First("b")]), Parcel(1), 1)
    result = await chain(storage, [First("a"), Second("b")]).run(checkpoint_id=here)
    assert result.get_outputs() == [2]


async def test_a_finished_run_of_a_graph_that_lost_its_tally_is_refused(storage: Storage) -> None:
    tally = Tally()
    builder = WorkflowBuilder(start_executor=tally, name="chain", checkpoint_storage=storage)
    workflow = builder.add_edge(tally, tally).build()
    await workflow.run(1)
    assert workflow.run_id is not None
    with pytest.raises(IncompatibleGraphError, match="the state of executor 'tally'"):
        await chain(storage, [Mark("a"), Mark("b")]).run(run_id=workflow.run_id)
