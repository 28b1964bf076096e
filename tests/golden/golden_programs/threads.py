"""Session stores: threads with messages of all kinds, forks, keys and tags."""

from __future__ import annotations

from perdure import Content, Message

from .world import Place, Scenario

SESSION = "order 7"


async def begin_threads(place: Place) -> None:
    store = place.sessions
    call = Content.from_function_call("call-1", "look", arguments={"where": "hall"})
    last = await store.append(SESSION, "main", [Message("user", ["Where is it?"], message_id="m1")])
    last = await store.append(
        SESSION,
        "main",
        [Message("assistant", [call]), Message("tool", [Content.from_function_result("call-1", result="here")])],
        expected=last,
        tags={"agent": "desk"},
        key="first look",
    )
    await store.fork(SESSION, "main", "another try", from_message=1)
    await store.append(SESSION, "another try", [Message("assistant", ["I will look."], author_name="ada")])
    await store.append(SESSION, "main", [Message("assistant", [f"line {number}"]) for number in range(30)])


async def finish_threads(place: Place) -> list[str]:
    store = place.sessions
    await store.append(SESSION, "main", [Message("assistant", ["twice"])], key="first look")
    await store.append(SESSION, "main", [Message("user", ["Thanks."])], expected=33)
    await store.fork(SESSION, "main", "late", from_message="m1")
    await store.append(SESSION, "late", [Message("user", ["Late."])])
    told = [f"{each.thread_id} {each.sequence} {dict(each.tags)}" for each in await store.threads(SESSION)]
    for thread in ("main", "another try", "late"):
        told.extend(
            f"{event.sequence} {event.message.role} {event.message.author_name} {event.message.text}"
            f" {[content.type for content in event.message.contents]}"
            for event in await store.read(SESSION, thread)
        )
    return told


SCENARIOS = [Scenario("threads", begin_threads, finish_threads)]
