"""Everything that a run is made of stands in its checkpoints, and comes back out of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

import pytest
from shapes import Clerk, Mark, Question, Split, Tally, asking, counting, nested, requests, uneven

from perdure import (
    Executor,
    MissingRunKwargsError,
    Secret,
    SubWorkflowRequestMessage,
    SubWorkflowResponseMessage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    executor,
    handler,
)

if TYPE_CHECKING:
    from conftest import Storage
    from perdure import Workflow


async def checkpoint_ids(storage: Storage, name: str) -> list[str]:
    return await storage.list_checkpoint_ids(workflow_name=name)


async def test_what_a_fan_in_has_gathered_survives_a_resume(storage: Storage) -> None:
    undisturbed = await uneven(storage).run("x")
    assert undisturbed.get_outputs() == ["xs+xlm"]
    for checkpoint_id in (await checkpoint_ids(storage, "uneven"))[:-1]:
        resumed = await uneven(storage).run(checkpoint_id=checkpoint_id)
        assert resumed.get_outputs() == ["xs+xlm"], checkpoint_id


async def test_a_fan_in_that_is_half_full_at_the_end_of_a_turn_is_filled_by_the_next(storage: Storage) -> None:
    class Gate(Executor):
        @handler
        async def choose(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(text, target_id="left" if text == "first" else "right")

    @executor(id="join")
    async def join(texts: list[str], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("+".join(texts))

    def build() -> Workflow:
        gate, left, right = Gate("gate"), Mark("left"), Mark("right")
        return (
            WorkflowBuilder(start_executor=gate, name="half", checkpoint_storage=storage)
            .add_edge(gate, left)
            .add_edge(gate, right)
            .add_fan_in_edges([left, right], join)
            .build()
        )

    first = build()
    assert (await first.run("first")).get_outputs() == []
    assert first.run_id is not None
    second = build()
    await second.run(run_id=first.run_id)
    assert (await second.run("second")).get_outputs() == ["firstleft+secondright"]


async def test_shared_private_and_named_state_survive_a_resume(storage: Storage) -> None:
    class Diary(Executor):
        @handler
        async def note(self, text: str, ctx: WorkflowContext[str]) -> None:
            ctx.set_state("shared", {"text": text, 7: ("a", b"b")})
            ctx.scope().set("mine", [text])
            ctx.scope("team/a").set("ours", {text})
            ctx.scope("b%2F").set("", 1)
            await ctx.send_message(text)

    class Reader(Executor):
        @handler
        async def read(self, text: str, ctx: WorkflowContext[Never, list[Any]]) -> None:
            del text
            mine = ctx.scope().get("mine", "not mine")
            scopes = (ctx.scope("team/a").get("ours"), ctx.scope("b%2F").get(""))
            await ctx.yield_output([ctx.get_state("shared"), mine, *scopes])

    def build() -> Workflow:
        diary, reader = Diary("diary"), Reader("reader")
        builder = WorkflowBuilder(start_executor=diary, name="states", checkpoint_storage=storage)
        return builder.add_edge(diary, reader).build()

    await build().run("x")
    (_, noted, _) = await checkpoint_ids(storage, "states")
    expected = [{"text": "x", 7: ("a", b"b")}, "not mine", {"x"}, 1]
    assert (await build().run(checkpoint_id=noted)).get_outputs() == [expected]
    again = build()
    await again.run(checkpoint_id=noted)
    (head, *_) = await storage.list_checkpoints(run_id=again.run_id)
    assert head.state["shared"] == expected[0]


async def test_a_private_scope_comes_back_to_the_executor_that_wrote_it(storage: Storage) -> None:
    class Memo(Executor):
        @handler
        async def note(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
            numbers = [*ctx.scope().get("numbers", []), number]
            ctx.scope().set("numbers", numbers)
            if number:
                await ctx.send_message(number - 1)
            else:
                await ctx.yield_output(numbers)

    def build() -> Workflow:
        memo = Memo("memo")
        builder = WorkflowBuilder(start_executor=memo, name="memo", checkpoint_storage=storage)
        return builder.add_edge(memo, memo).build()

    await build().run(3)
    for checkpoint_id in await checkpoint_ids(storage, "memo"):
        assert (await build().run(checkpoint_id=checkpoint_id)).get_outputs() == [[3, 2, 1, 0]]


async def test_a_state_key_that_was_deleted_stays_deleted(storage: Storage) -> None:
    @executor(id="keep")
    async def keep(text: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("kept", text)
        ctx.set_state("dropped", text)
        await ctx.send_message(text)

    @executor(id="drop")
    async def drop(text: str, ctx: WorkflowContext[str]) -> None:
        ctx.state.delete("dropped")
        await ctx.send_message(text)

    @executor(id="look")
    async def look(text: str, ctx: WorkflowContext[Never, list[str]]) -> None:
        del text
        await ctx.yield_output(ctx.state.keys())

    builder = WorkflowBuilder(start_executor=keep, name="deleting", checkpoint_storage=storage)
    workflow = builder.add_chain([keep, drop, look]).build()
    await workflow.run("x")
    (_, kept, dropped, _) = await storage.list_checkpoints(workflow_name="deleting")
    assert "dropped" in kept.state
    assert "dropped" not in dropped.state
    assert (await workflow.run(checkpoint_id=dropped.checkpoint_id)).get_outputs() == [["kept"]]


async def test_requests_come_back_with_their_data_and_types_in_their_order(storage: Storage) -> None:
    await asking(storage).run(["b", "a", "c"])
    waiting = await storage.get_latest(workflow_name="asking")
    assert waiting is not None
    assert list(waiting.pending_request_info_events) == ["about-b", "about-a", "about-c"]
    event = waiting.pending_request_info_events["about-b"]
    assert event.data == Question("b")
    assert (event.request_type, event.response_type) == (Question, str)
    assert event.source_executor_id == "clerk"
    told = await asking(storage).run(checkpoint_id=waiting.checkpoint_id)
    assert requests(told) == {"about-b": Question("b"), "about-a": Question("a"), "about-c": Question("c")}


@dataclass
class Parcel:
    """A message that several executors get."""

    content: list[int]


async def test_each_target_gets_its_own_copy_of_a_message_before_and_after_a_resume(storage: Storage) -> None:
    class Send(Executor):
        @handler
        async def send(self, number: int, ctx: WorkflowContext[Parcel]) -> None:
            await ctx.send_message(Parcel([number]))

    class Spoil(Executor):
        @handler
        async def spoil(self, parcel: Parcel, ctx: WorkflowContext[Never, list[int]]) -> None:
            parcel.content.append(99)
            await ctx.yield_output(parcel.content)

    def build() -> Workflow:
        send, one, two = Send("send"), Spoil("one"), Spoil("two")
        builder = WorkflowBuilder(start_executor=send, name="copies", checkpoint_storage=storage)
        return builder.add_fan_out_edges(send, [one, two]).build()

    assert (await build().run(1)).get_outputs() == [[1, 99], [1, 99]]
    (_, sent, _) = await storage.list_checkpoints(workflow_name="copies")
    assert [message.data for message in sent.messages["send"]] == [Parcel([1])]
    assert (await build().run(checkpoint_id=sent.checkpoint_id)).get_outputs() == [[1, 99], [1, 99]]


async def test_a_sub_workflow_is_in_the_checkpoint_of_its_parent(storage: Storage) -> None:
    await nested(storage).run(["hue", "mood"])
    waiting = await storage.get_latest(workflow_name="nested")
    assert waiting is not None
    first = await nested(storage).run(checkpoint_id=waiting.checkpoint_id, responses={"about-mood": "calm"})
    assert first.get_outputs() == ["heard mood: calm"]
    half = await storage.get_latest(workflow_name="nested")
    assert half is not None
    clerk = Clerk()
    second = await nested(storage, clerk=clerk).run(checkpoint_id=half.checkpoint_id, responses={"about-hue": "red"})
    assert second.get_outputs() == ["heard hue: red"]
    assert second.get_final_state() is WorkflowRunState.IDLE
    assert clerk.log == ["calm", "red"]


async def test_a_sub_workflow_inside_a_sub_workflow_survives_too(storage: Storage) -> None:
    def build(clerk: Clerk) -> Workflow:
        outer = WorkflowExecutor(nested(None, clerk=clerk), id="office/1", propagate_request=True)
        return WorkflowBuilder(start_executor=outer, name="deep", checkpoint_storage=storage).build()

    await build(Clerk()).run(["hue", "mood"])
    waiting = await storage.get_latest(workflow_name="deep")
    assert waiting is not None
    clerk = Clerk()
    workflow = build(clerk)
    await workflow.run(checkpoint_id=waiting.checkpoint_id, responses={"about-hue": "red"})
    await workflow.run(responses={"about-mood": "calm"})
    assert clerk.log == ["red", "calm"]


async def test_a_request_of_a_sub_workflow_that_its_parent_holds_survives(storage: Storage) -> None:
    class Parent(Executor):
        @handler
        async def begin(self, words: list[str], ctx: WorkflowContext[list[str]]) -> None:
            await ctx.send_message(words)

        @handler
        async def asked(
            self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage]
        ) -> None:
            question: Question = request.source_event.data
            await ctx.send_message(request.create_response(question.text.upper()), target_id=request.executor_id)

        @handler
        async def done(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(text)

    def build() -> Workflow:
        parent, desk = Parent("parent"), WorkflowExecutor(asking(None), id="desk")
        builder = WorkflowBuilder(start_executor=parent, name="holding", checkpoint_storage=storage)
        return builder.add_edge(parent, desk).add_edge(desk, parent).build()

    undisturbed = await build().run(["hue", "mood"])
    assert undisturbed.get_outputs() == ["hue: HUE", "mood: MOOD"]
    for checkpoint_id in await checkpoint_ids(storage, "holding"):
        assert (await build().run(checkpoint_id=checkpoint_id)).get_outputs() == ["hue: HUE", "mood: MOOD"]


class Kwargs(Executor):
    """Remembers the kwargs of its run, a superstep after it got its message."""

    def __init__(self) -> None:
        super().__init__("kwargs")
        self.heard: Any = None

    @handler
    async def wait(self, number: int, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(str(number))

    @handler
    async def hear(self, text: str, ctx: WorkflowContext) -> None:
        del text
        self.heard = ctx.get_state("_workflow_run_kwargs")


def telling_kwargs(storage: Storage, node: Kwargs) -> Workflow:
    builder = WorkflowBuilder(start_executor=node, name="kwargs", checkpoint_storage=storage)
    return builder.add_edge(node, node).build()


async def test_run_kwargs_survive_a_resume(storage: Storage) -> None:
    await telling_kwargs(storage, Kwargs()).run(
        1, function_invocation_kwargs={"user": "ada", "tags": ("a",)}, client_kwargs={"temperature": 0}
    )
    (entry, waiting, _) = await storage.list_checkpoints(workflow_name="kwargs")
    kept = {
        "function_invocation_kwargs": {"__global__": {"user": "ada", "tags": ("a",)}},
        "client_kwargs": {"__global__": {"temperature": 0}},
    }
    assert entry.state["_workflow_run_kwargs"] == kept
    node = Kwargs()
    await telling_kwargs(storage, node).run(checkpoint_id=waiting.checkpoint_id)
    assert node.heard == kept


async def test_run_kwargs_for_one_executor_survive_a_resume(storage: Storage) -> None:
    given = {"kwargs": {"user": "ada"}, "other": {"user": "eve"}, "plain": 5}
    await telling_kwargs(storage, Kwargs()).run(1, function_invocation_kwargs=given)
    (_, waiting, _) = await storage.list_checkpoint_ids(workflow_name="kwargs")
    node = Kwargs()
    await telling_kwargs(storage, node).run(checkpoint_id=waiting)
    assert node.heard == {"function_invocation_kwargs": given}


async def test_run_kwargs_given_with_a_checkpoint_replace_the_stored_ones(storage: Storage) -> None:
    first = telling_kwargs(storage, Kwargs())
    await first.run(1, function_invocation_kwargs={"user": "ada"}, client_kwargs={"seed": 1})
    (_, waiting, _) = await storage.list_checkpoint_ids(workflow_name="kwargs")
    node = Kwargs()
    fork = telling_kwargs(storage, node)
    await fork.run(checkpoint_id=waiting, function_invocation_kwargs={"user": "eve"})
    replaced = {
        "function_invocation_kwargs": {"__global__": {"user": "eve"}},
        "client_kwargs": {"__global__": {"seed": 1}},
    }
    assert node.heard == replaced
    (written,) = await storage.list_checkpoints(run_id=fork.run_id)
    assert written.state["_workflow_run_kwargs"] == replaced


@pytest.mark.parametrize("token", [Secret("s3cret"), object()], ids=["secret", "unencodable"])
async def test_run_kwargs_that_are_not_stored_have_to_be_given_again(storage: Storage, token: object) -> None:
    node = Kwargs()
    await telling_kwargs(storage, node).run(1, function_invocation_kwargs={"token": token, "user": "ada"})
    assert node.heard["function_invocation_kwargs"]["__global__"]["token"] is token
    (_, waiting, _) = await storage.list_checkpoints(workflow_name="kwargs")
    assert waiting.state["_workflow_run_kwargs"] == {"function_invocation_kwargs": {"__global__": {"user": "ada"}}}
    other = Kwargs()
    workflow = telling_kwargs(storage, other)
    with pytest.raises(MissingRunKwargsError, match=r"function_invocation_kwargs\.token"):
        await workflow.run(checkpoint_id=waiting.checkpoint_id)
    with pytest.raises(MissingRunKwargsError, match=r"function_invocation_kwargs\.token"):
        await workflow.run(checkpoint_id=waiting.checkpoint_id, function_invocation_kwargs={"user": "ada"})
    assert other.heard is None
    await workflow.run(
        checkpoint_id=waiting.checkpoint_id, function_invocation_kwargs={"token": "other", "user": "ada"}
    )
    assert other.heard == {"function_invocation_kwargs": {"__global__": {"token": "other", "user": "ada"}}}


async def test_an_instance_that_was_given_a_secret_goes_on_with_it(storage: Storage) -> None:
    class Moody(Kwargs):
        calm = False

        @handler
        async def hear(self, text: str, ctx: WorkflowContext) -> None:
            if not self.calm:
                raise ArithmeticError("moody")
            await super().hear(text, ctx)

    secret = Secret("s3cret")
    node = Moody()
    workflow = telling_kwargs(storage, node)
    with pytest.raises(ArithmeticError):
        await workflow.run(1, client_kwargs={"key": secret, "seed": 1})
    node.calm = True
    assert workflow.run_id is not None
    await workflow.run(run_id=workflow.run_id)
    assert node.heard == {"client_kwargs": {"__global__": {"seed": 1, "key": secret}}}


async def test_a_secret_stands_nowhere_in_the_stored_bytes(storage: Storage) -> None:
    await telling_kwargs(storage, Kwargs()).run(1, client_kwargs={"key": Secret("s3cret-value")})
    for manifest in await storage.store.manifests():
        blobs = await storage.store.blobs(manifest.toc.values())
        for data in (manifest.header, *blobs.values()):
            assert b"s3cret-value" not in data


async def test_a_refused_resume_without_its_kwargs_leaves_nothing_behind(storage: Storage) -> None:
    await telling_kwargs(storage, Kwargs()).run(1, client_kwargs={"key": Secret("k")})
    ids = await storage.list_checkpoint_ids()
    workflow = telling_kwargs(storage, Kwargs())
    with pytest.raises(MissingRunKwargsError):
        await workflow.run(checkpoint_id=ids[1])
    assert await storage.list_checkpoint_ids() == ids
    assert workflow.status is WorkflowRunState.IDLE
    assert workflow.run_id is None


async def test_a_finished_run_tells_its_outputs_again_without_its_secrets(storage: Storage) -> None:
    workflow = telling_kwargs(storage, Kwargs())
    await workflow.run(1, client_kwargs={"key": Secret("k")})
    assert workflow.run_id is not None
    again = await telling_kwargs(storage, Kwargs()).run(run_id=workflow.run_id)
    assert again.get_final_state() is WorkflowRunState.IDLE


async def test_a_fresh_message_without_kwargs_has_none(storage: Storage) -> None:
    node = Kwargs()
    workflow = telling_kwargs(storage, node)
    await workflow.run(1, client_kwargs={"seed": 1, "key": Secret("k")})
    await workflow.run(1)
    assert node.heard == {}


async def test_outputs_of_a_turn_stand_in_its_checkpoints_however_many(storage: Storage) -> None:
    class Chatty(Executor):
        @handler
        async def chat(self, number: int, ctx: WorkflowContext[int, str]) -> None:
            for index in range(150):
                await ctx.yield_output(f"{number}/{index}")
            if number:
                await ctx.send_message(number - 1)

    def build() -> Workflow:
        chatty = Chatty("chatty")
        builder = WorkflowBuilder(start_executor=chatty, name="chatty", checkpoint_storage=storage)
        return builder.add_edge(chatty, chatty).build()

    first = build()
    told = (await first.run(2)).get_outputs()
    assert len(told) == 450
    assert first.run_id is not None
    assert (await build().run(run_id=first.run_id)).get_outputs() == told


async def test_an_executor_whose_state_is_large_is_restored_whole(storage: Storage) -> None:
    tally = Tally(limit=2)
    tally.seen = list(range(20_000))
    workflow = counting(storage, tally=tally)
    await workflow.run(1)
    assert workflow.run_id is not None
    other = Tally(limit=2)
    await counting(storage, tally=other).run(run_id=workflow.run_id)
    assert other.seen == [*range(20_000), 1, 2]


async def test_ids_with_slashes_and_percents_are_kept_apart(storage: Storage) -> None:
    def build() -> Workflow:
        split, a, b = Split("a/b"), Tally("a"), Mark("a%2Fb")
        del a
        builder = WorkflowBuilder(start_executor=split, name="odd/na%me", checkpoint_storage=storage)
        return builder.add_edge(split, b).build()

    await build().run("x")
    ids = await checkpoint_ids(storage, "odd/na%me")
    assert len(ids) == 3
    result = await build().run(checkpoint_id=ids[1])
    assert result.get_final_state() is WorkflowRunState.IDLE
