from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.hosting.flows import office

import perdure
from perdure import Host, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
from perdure.inspector import Action, Scope, app, local_app, serve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import ASGIApp

TOKEN = "secret"
OWN = {"sec-fetch-site": "same-origin", "authorization": f"Bearer {TOKEN}"}


def anyone(*_: object) -> bool:
    return True


def client(inspector: ASGIApp, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(inspector)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers={**OWN, **headers})


async def ask(inspector: ASGIApp, name: str, **params: Any) -> Any:
    async with client(inspector) as http:
        response = await http.get(f"/api/v1/{name}", params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def test_runs_are_listed_counted_and_filtered(storage: SqliteCheckpointStorage) -> None:
    inspector = local_app(storage, TOKEN)
    found = await ask(inspector, "runs", order="oldest", limit=2)
    assert (found["schema"], found["next"]) == (1, "ask-1")
    assert [run["run_id"] for run in found["runs"]] == ["bad/1", "ask-1"]
    rest = await ask(inspector, "runs", order="oldest", limit=2, after="ask-1")
    assert ([run["run_id"] for run in rest["runs"]], rest["next"]) == (["ok-1"], None)
    assert [run["run_id"] for run in (await ask(inspector, "runs", tag="customer=acme", status="failed"))["runs"]] == [
        "bad/1"
    ]
    counts = (await ask(inspector, "counts"))["counts"]
    assert {name: count for name, count in counts.items() if count} == {"failed": 1, "waiting": 1, "idle": 1}


async def test_a_run_is_shown_with_its_failure_and_its_requests(storage: SqliteCheckpointStorage) -> None:
    inspector = local_app(storage, TOKEN)
    failed = (await ask(inspector, "run", run="bad/1"))["run"]
    assert failed["failure"]["error_type"] == "LookupError"
    assert "in fail" in failed["failure"]["traceback"]
    waiting = await ask(inspector, "run", run="ask-1")
    assert [request["request_id"] for request in waiting["requests"]] == ["about rent"]


async def test_checkpoints_graph_values_search_and_differences(storage: SqliteCheckpointStorage) -> None:
    inspector = local_app(storage, TOKEN)
    ids = [each["checkpoint_id"] for each in (await ask(inspector, "checkpoints", run="ask-1"))["checkpoints"]]
    graph = await ask(inspector, "graph", run="ask-1")
    assert (list(graph["graph"]["executors"]), graph["position"]["waiting"]) == (["clerk"], ["clerk"])
    root = (await ask(inspector, "value", checkpoint=ids[-1], at="[]"))["value"]
    assert "requests" in {member["key"] for member in root["members"]}
    place = ["requests", "about rent", "data"]
    assert (await ask(inspector, "value", checkpoint=ids[-1], at=json.dumps(place)))["value"]["text"] == "rent"
    assert place in [each["at"] for each in (await ask(inspector, "search", checkpoint=ids[-1], q="RENT"))["found"]]
    changes = (await ask(inspector, "diff", before=ids[0], after=ids[-1]))["diff"]["changes"]
    assert "request/about rent" in {change["path"] for change in changes}


async def test_events_come_in_pages_and_as_a_stream_that_continues_after_the_last_one(
    storage: SqliteCheckpointStorage,
) -> None:
    inspector = local_app(storage, TOKEN)
    page = await ask(inspector, "events", run="ok-1", **{"from": 2}, limit=3)
    assert [event["seq"] for event in page["events"]] == [2, 3, 4]
    assert page["newest"] > 4
    ready: asyncio.Queue[str] = asyncio.Queue()
    serving = asyncio.create_task(serve(storage, token=TOKEN, opens_browser=False, announce=ready.put_nowait))
    try:
        base = (await ready.get()).partition("#")[0]
        headers = {**OWN, "accept": "text/event-stream", "last-event-id": "3"}
        async with (
            httpx.AsyncClient(base_url=base, headers=headers) as http,
            http.stream("GET", "api/v1/events", params={"run": "ok-1"}) as stream,
        ):
            lines = [line async for line in _first(stream, page["newest"] - 3)]
        assert lines == [f"id: {number}" for number in range(4, page["newest"] + 1)]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _first(stream: httpx.Response, count: int) -> AsyncGenerator[str]:
    async for line in stream.aiter_lines():
        if line.startswith("id: "):
            yield line
            count -= 1
        if not count:
            return


async def test_of_two_answers_the_second_learns_who_was_first(storage: SqliteCheckpointStorage) -> None:
    answer = {"run": "ask-1", "request": "about rent", "answer": "pay", "by": "ann"}
    async with client(local_app(storage, TOKEN)) as http:
        wrong = await http.post("/api/v1/answer", json={**answer, "answer": 42})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (422, "AnswerTypeError")
        assert (await http.post("/api/v1/answer", json=answer)).status_code == 200
        second = await http.post("/api/v1/answer", json={**answer, "answer": "refuse", "by": "ben"})
    assert second.status_code == 409
    assert "ann" in second.json()["error"]["message"]
    assert [request.answered_by for request in await storage.requests("ask-1")] == ["ann"]


async def test_a_checkpoint_is_forked_and_its_run_stays_as_it_is(storage: SqliteCheckpointStorage) -> None:
    before = await storage.run("ask-1")
    async with client(local_app(storage, TOKEN)) as http:
        fork = {"run": "ask-1", "checkpoint": "ask-1@1", "new_run": "ask-2"}
        assert (await http.post("/api/v1/fork", json=fork)).json()["forked"] == "ask-2"
        forks = (await http.get("/api/v1/forks", params={"run": "ask-1"})).json()["runs"]
    assert [(each["run_id"], each["parent_checkpoint_id"]) for each in forks] == [("ask-2", "ask-1@1")]
    assert await storage.run("ask-1") == before


async def test_living_hosts_are_listed(storage: SqliteCheckpointStorage) -> None:
    inspector = local_app(storage, TOKEN)
    assert (await ask(inspector, "hosts"))["hosts"] == []
    host = Host(storage)
    host.register(office)
    async with host:
        (found,) = (await ask(inspector, "hosts"))["hosts"]
        assert (found["workflows"], found["process"]) == ({"office": 1}, os.getpid())


async def test_runs_are_recovered_cancelled_restored_and_deleted(storage: SqliteCheckpointStorage) -> None:
    async with client(local_app(storage, TOKEN)) as http:
        assert (await http.post("/api/v1/recover", json={"run": "bad/1"})).json()["recovered"] is True
        assert (await http.post("/api/v1/cancel", json={"run": "ask-1", "by": "ann"})).status_code == 200
        restored = await http.post("/api/v1/restore", json={"run": "ok-1", "checkpoint": "ok-1@0"})
        assert restored.status_code == 200
        assert (await storage.run("ok-1")).checkpoint_id == "ok-1@0"
        assert (await http.post("/api/v1/delete", json={"run": "ok-1"})).json()["deleted"] is True
        gone = await http.get("/api/v1/run", params={"run": "ok-1"})
    assert (gone.status_code, gone.json()["error"]["type"]) == (404, "RunNotFoundError")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": ""}, 401),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": ""}, 421),
        ({"host": "user@127.0.0.1"}, 421),
        ({"host": "127.0.0.1:x"}, 421),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "localhost:1"}, 200),
    ],
)
async def test_only_the_inspectors_own_page_with_the_token_gets_data(
    storage: SqliteCheckpointStorage, headers: dict[str, str], status: int
) -> None:
    async with client(local_app(storage, TOKEN), **headers) as http:
        for response in (await http.get("/api/v1/runs"), await http.post("/api/v1/delete", json={"run": "ok-1"})):
            assert response.status_code == status, response.text
    assert status == 200 or await storage.run("ok-1")


async def test_a_browser_without_fetch_metadata_needs_the_origin_of_the_page(storage: SqliteCheckpointStorage) -> None:
    transport = httpx.ASGITransport(local_app(storage, TOKEN))
    token = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=token) as http:
        codes = [
            (await http.get("/api/v1/runs", headers=headers)).status_code
            for headers in ({}, {"origin": "http://evil.example"}, {"origin": "http://127.0.0.1:8000"})
        ]
    assert codes == [403, 403, 200]


async def test_pages_run_nothing_but_their_own_scripts(storage: SqliteCheckpointStorage) -> None:
    async with client(local_app(storage, TOKEN)) as http:
        page = await http.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "//" not in page.text.replace("<!doctype html>", "").replace("data:,", "")


async def test_a_read_only_inspector_has_no_way_to_change_a_run(storage: SqliteCheckpointStorage) -> None:
    async with client(local_app(storage, TOKEN, read_only=True)) as http:
        assert (await http.get("/api/v1/info")).json()["read_only"] is True
        for name in ("answer", "send", "cancel", "recover", "restore", "delete"):
            assert (await http.post(f"/api/v1/{name}", json={"run": "ok-1"})).status_code == 404


async def test_a_service_decides_who_may_do_what_and_which_runs_exist(storage: SqliteCheckpointStorage) -> None:
    asked: list[tuple[Action, str | None]] = []

    async def authorize(_: Request, action: Action, run_id: str | None) -> bool:
        asked.append((action, run_id))
        return action == "read"

    inspector = app(storage, authorize=authorize, scope=lambda _: Scope(tags={"customer": "acme"}))
    async with client(inspector) as http:
        runs = (await http.get("/api/v1/runs")).json()["runs"]
        other = await http.get("/api/v1/run", params={"run": "ask-1"})
        foreign = await http.get("/api/v1/value", params={"checkpoint": "ask-1@1"})
        refused = await http.post("/api/v1/delete", json={"run": "ok-1"})
        requests = (await http.get("/api/v1/requests")).json()["requests"]
    assert {run["run_id"] for run in runs} == {"bad/1", "ok-1"}
    assert [other.status_code, foreign.status_code, refused.status_code, requests] == [404, 404, 403, []]
    assert asked[1:4] == [("read", "ask-1"), ("read", None), ("delete", "ok-1")]


async def test_a_run_that_may_not_be_read_is_not_read_through_its_checkpoints(storage: SqliteCheckpointStorage) -> None:
    async with client(app(storage, authorize=lambda _, __, run_id: run_id != "ask-1")) as http:
        answers = [
            await http.get("/api/v1/value", params={"checkpoint": "ask-1@1"}),
            await http.get("/api/v1/conversation", params={"checkpoint": "ask-1@1"}),
            await http.get("/api/v1/diff", params={"before": "ask-1@0", "after": "ask-1@1"}),
            await http.get("/api/v1/diff", params={"kind": "runs", "before": "ok-1", "after": "ask-1"}),
            await http.post("/api/v1/fork", json={"run": "ok-1", "checkpoint": "ask-1@1"}),
        ]
        own = await http.get("/api/v1/value", params={"checkpoint": "ok-1@1"})
    assert [answer.status_code for answer in answers] == [404] * 5
    assert own.status_code == 200


async def test_a_tenant_sees_its_own_runs_alone(storage: SqliteCheckpointStorage) -> None:
    inspector = app(storage, authorize=anyone, scope=lambda _: Scope(tenant="other"))
    async with client(inspector) as http:
        assert (await http.get("/api/v1/runs")).json()["runs"] == []
        assert (await http.get("/api/v1/run", params={"run": "ok-1"})).status_code == 404


@pytest.mark.parametrize(
    ("name", "params", "status"),
    [
        ("runs", {"status": "odd"}, 400),
        ("runs", {"limit": "many"}, 400),
        ("runs", {"since": "soon"}, 400),
        ("run", {}, 400),
        ("run", {"run": "none"}, 404),
        ("value", {"checkpoint": "ok-1@9"}, 404),
        ("value", {"checkpoint": "ok-1@0", "at": '["nothing"]'}, 400),
        ("value", {"checkpoint": "ok-1@0", "at": "not json"}, 400),
        ("diff", {"before": "ok-1@0"}, 400),
        ("nothing", {}, 404),
    ],
)
async def test_bad_requests_get_an_error_that_says_why(
    storage: SqliteCheckpointStorage, name: str, params: dict[str, str], status: int
) -> None:
    async with client(local_app(storage, TOKEN)) as http:
        assert (await http.get(f"/api/v1/{name}", params=params)).status_code == status


async def test_large_values_are_read_in_pieces(tmp_path: Path) -> None:
    @executor(id="writer")
    async def write(text: str, ctx: WorkflowContext[None, str]) -> None:
        ctx.set_state("numbers", list(range(10_000)))
        ctx.set_state("text", "ä" * 3_000_000)
        await ctx.yield_output(text)

    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        workflow = WorkflowBuilder(name="large", start_executor=write, checkpoint_storage=storage).build()
        await workflow.run("x", run_id="large")
        inspector = local_app(storage, TOKEN)
        numbers = (await ask(inspector, "value", run="large", at='["state", "numbers"]', **{"from": 9_990}))["value"]
        assert [member["value"] for member in numbers["members"]] == list(range(9_990, 10_000))
        text = (await ask(inspector, "value", run="large", at='["state", "text"]'))["value"]
        assert (text["size"], len(text["text"])) == (3_000_000, 20_000)
        root = await ask(inspector, "value", run="large", at='["state"]')
        assert len(json.dumps(root)) < 2_000


async def test_the_prepared_store_has_runs_of_every_kind(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "inspected.py"
    command = [sys.executable, "-W", "error", str(script), str(tmp_path / "runs.db")]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        inspector = local_app(storage, TOKEN)
        counts = (await ask(inspector, "counts"))["counts"]
        assert {name: count for name, count in counts.items() if count} == {
            "idle": 13,
            "waiting": 4,
            "sleeping": 2,
            "failed": 2,
            "cancelled": 1,
        }
        (talk,) = (await ask(inspector, "conversation", run="support-1"))["conversations"]
        kinds = [content["type"] for message in talk["messages"] for content in message["contents"]]
        assert kinds == ["text", "function_call", "function_result", "function_call", "function_approval_request"]
        position = (await ask(inspector, "graph", run="branch-1"))["position"]
        assert position["sub_workflows"]["shop"]["waiting"] == ["desk"]


async def test_the_inspector_listens_on_the_network_only_with_a_chosen_secret(storage: SqliteCheckpointStorage) -> None:
    with pytest.raises(ValueError, match="token="):
        await serve(storage, host="0.0.0.0", opens_browser=False)


def test_the_page_was_built_from_these_sources() -> None:
    sources = Path(__file__).parents[2] / "inspector"
    names = ["index.html", "package-lock.json", "vite.config.ts"]
    names += sorted(f"src/{each.name}" for each in (sources / "src").iterdir())
    found = hashlib.sha256()
    for name in names:
        found.update(f"{name}\n".encode() + (sources / name).read_bytes())
    static = Path(perdure.__file__).parent / "inspector" / "static"
    recorded = (static / "sources.sha256").read_text().strip()
    assert recorded == found.hexdigest(), "the page is older than its sources: run make inspector"


def test_the_page_is_small() -> None:
    static = Path(perdure.__file__).parent / "inspector" / "static"
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in (static / "assets").iterdir()}
    assert sum(sizes.values()) <= 150_000
    assert sum(size for name, size in sizes.items() if not name.startswith("graph")) <= 60_000
