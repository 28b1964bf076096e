"""The example service: what it replies, and that nothing is lost or done twice while its process is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.examples.service_process import Crowd, Followed, ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

COUNT = 30
SECONDS = 60


def claim(text: str, **further: object) -> dict[str, Any]:
    """What starts a run."""
    return {"input": {"employee": "ada", "text": text}, **further}


HOTEL = claim("Hotel, 240 EUR")
TAXI = claim("Taxi, 20 EUR")


@dataclass(frozen=True)
class Case:
    """A claim, what is decided about it, and what comes out."""

    number: int

    @property
    def run_id(self) -> str:
        return f"claim-{self.number}"

    @property
    def body(self) -> dict[str, Any]:
        text = ("Taxi to the airport, 42.50 EUR", "Hotel: 240 euros", "Minibar 9 EUR")[self.number % 3]
        return {"input": {"employee": self.employee, "text": text}, "run_id": self.run_id}

    @property
    def employee(self) -> str:
        return f"employee-{self.number:02}"

    @property
    def answer(self) -> dict[str, Any]:
        return {"approved": self.number % 3 == 1, "remark": f"says grace of {self.number}"}

    @property
    def outcome(self) -> tuple[str, int]:
        return (("paid", 42_50), ("paid", 240_00), ("refused", 9_00))[self.number % 3]


class Client:
    """One who uses the service: starts a run, follows it, and answers what it asks; some of it twice at once."""

    def __init__(self, crowd: Crowd, case: Case) -> None:
        self._crowd = crowd
        self._case = case

    async def work(self) -> Followed:
        # Not all at once, so that something begins in each life of the service.
        await self._crowd.until_seen(self._case.number * 8)
        starts = [self._crowd.call("POST", "/runs", self._case.body) for _ in range(1 + self._case.number % 2)]
        for started in await asyncio.gather(*starts):
            assert (started.status_code, started.json()) == (202, {"run_id": self._case.run_id})
        hangs_up_after = 5 if self._case.number % 4 == 0 else None
        return await self._crowd.follow(self._case.run_id, self._answer, hangs_up_after=hangs_up_after)

    async def _answer(self, event: dict[str, Any]) -> None:
        if event["type"] != "request_info":
            return
        path = f"/runs/{self._case.run_id}/requests/{event['request_id']}"
        body = {"answer": self._case.answer, "by": "grace"}
        for accepted in await asyncio.gather(*(self._crowd.call("POST", path, body) for _ in range(2))):
            assert accepted.status_code == 202, accepted.text
        other = {"answer": {"approved": not self._case.answer["approved"]}, "by": "bob"}
        refused = await self._crowd.call("POST", path, other)
        assert refused.status_code == 409, refused.text
        assert refused.json()["answered"]["by"] == "grace"


async def test_runs_outlive_the_processes_that_serve_them(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path)
    cases = [Case(number) for number in range(COUNT)]
    try:
        await asyncio.to_thread(service.start)
        async with asyncio.timeout(100), httpx.AsyncClient(timeout=SECONDS, limits=httpx.Limits()) as http:
            crowd = Crowd(service, http)
            async with asyncio.TaskGroup() as tasks:
                work = [tasks.create_task(Client(crowd, case).work()) for case in cases]
                tasks.create_task(_ends_servers(crowd))
            assert sum(done.result().connections for done in work) > COUNT
            for case, done in zip(cases, work, strict=True):
                await _require_right(crowd, case, done.result())
            await _require_nothing_left(crowd)
        paid = [case for case in cases if case.outcome[0] == "paid"]
        assert service.payments() == [(case.employee, case.outcome[1]) for case in paid]
    finally:
        service.stop()


async def _ends_servers(crowd: Crowd) -> None:
    """Four servers in the middle of their work: three are killed, one is asked to go."""
    for seen, signum in ((30, signal.SIGKILL), (120, signal.SIGKILL), (240, signal.SIGTERM), (360, signal.SIGKILL)):
        await crowd.until_seen(seen)
        code, log = await crowd.replace_service(signum)
        assert code == -signum
        assert ("Application shutdown complete" in log) == (signum == signal.SIGTERM)
        assert "Traceback" not in log, log


async def _require_right(crowd: Crowd, case: Case, followed: Followed) -> None:
    assert followed.numbers == list(range(1, len(followed.numbers) + 1))
    assert followed.end == {"status": "idle", "error": None}
    told = [event["data"] for event in followed.events if event["type"] == "output"]
    shown = (await crowd.call("GET", f"/runs/{case.run_id}")).json()
    assert shown["outputs"] == told
    assert [(output["outcome"], output["cents"]) for output in told] == [case.outcome]
    assert (shown["run"]["status"], shown["run"]["events"]) == ("idle", followed.numbers[-1])


async def _require_nothing_left(crowd: Crowd) -> None:
    assert (await crowd.call("GET", "/requests")).json() == {"requests": []}
    idle = (await crowd.call("GET", "/runs?status=idle")).json()["runs"]
    assert {run["run_id"] for run in idle} == {Case(number).run_id for number in range(COUNT)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A server that lives as long as the tests of this module."""
    service = ServiceProcess(tmp_path_factory.mktemp("service"))
    try:
        service.start()
        yield service
    finally:
        service.stop()


@pytest.fixture
def http(served: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=SECONDS) as client:
        yield client


@contextmanager
def following(
    http: httpx.Client, run_id: str, headers: dict[str, str] | None = None, **params: str
) -> Generator[Iterator[dict[str, Any]]]:
    """The messages about a run, each with its number or, if it has none, its type."""
    with http.stream("GET", f"/runs/{run_id}/events", headers=headers, params=params) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _messages(response.iter_lines())


def _messages(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    mark = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name in {"id", "event"}:
            mark = value
        elif name == "data":
            yield {"mark": mark, **json.loads(value)}


def waiting_request(http: httpx.Client, run_id: str) -> str:
    """Start a run that asks, and wait until it does."""
    assert http.post("/runs", json={**HOTEL, "run_id": run_id}).status_code == 202
    with following(http, run_id) as messages:
        return next(message["request_id"] for message in messages if message["type"] == "request_info")


def test_the_same_start_again_is_the_same_run_and_another_input_is_a_conflict(http: httpx.Client) -> None:
    body = {**TAXI, "run_id": "once"}
    assert [http.post("/runs", json=body).json() for _ in range(2)] == [{"run_id": "once"}] * 2
    refused = http.post("/runs", json=claim("Taxi, 21 EUR", run_id="once"))
    assert refused.status_code == 409
    assert refused.json()["error"].endswith("choose another run_id, or leave it out")
    ended = list_of(http, "once")
    assert [message["data"]["cents"] for message in ended if message.get("type") == "output"] == [2000]
    assert [http.post("/runs", json=body).json() for _ in range(2)] == [{"run_id": "once"}] * 2
    assert list_of(http, "once") == ended


def list_of(http: httpx.Client, run_id: str, headers: dict[str, str] | None = None, **params: str) -> list[Any]:
    with following(http, run_id, headers, **params) as messages:
        return list(messages)


def test_a_service_that_serves_says_that_it_lives_and_is_ready(http: httpx.Client) -> None:
    # A run that has ended shows that the service has looked at its store.
    assert http.post("/runs", json={**TAXI, "run_id": "live"}).status_code == 202
    assert list_of(http, "live")
    for path in ("/healthz", "/readyz"):
        reply = http.get(path)
        health = reply.json()["health"]
        assert reply.status_code == 200
        assert (health["is_serving"], health["is_draining"], health["is_store_reachable"]) == (True, False, True)
        assert health["looked_at"] is not None


def test_a_run_without_an_id_is_given_one(http: httpx.Client) -> None:
    ids = {http.post("/runs", json=claim("hello")).json()["run_id"] for _ in range(2)}
    assert len(ids) == 2
    for run_id in ids:
        messages = list_of(http, run_id)
        assert (messages[-1]["mark"], messages[-1]["status"]) == ("end", "idle")
        assert http.get(f"/runs/{run_id}").json()["outputs"][0]["outcome"] == "refused"


def test_the_same_answer_again_is_accepted_however_long_it_is(http: httpx.Client) -> None:
    path = f"/runs/long/requests/{waiting_request(http, 'long')}"
    remark = "enjoy your stay " * 20
    right = {"answer": {"remark": remark, "approved": True}, "by": "grace"}
    assert http.post(path, json=right).status_code == 202
    assert list_of(http, "long")[-1]["status"] == "idle"
    assert http.post(path, json=right).status_code == 202
    assert http.post(path, json={**right, "answer": {"remark": remark, "approved": False}}).status_code == 409
    assert http.post(path, json={**right, "by": "bob"}).status_code == 409


def test_a_follower_begins_where_it_wants(http: httpx.Client) -> None:
    http.post("/runs", json={**TAXI, "run_id": "followed"})
    every = list_of(http, "followed")
    assert [message["mark"] for message in every] == [*map(str, range(1, len(every))), "end"]
    assert list_of(http, "followed", from_seq="0") == every
    assert list_of(http, "followed", from_seq="4") == every[3:]
    assert list_of(http, "followed", {"Last-Event-ID": "4"}) == every[4:]
    assert list_of(http, "followed", {"Last-Event-ID": "4"}, from_seq="1") == every[4:]
    assert list_of(http, "followed", {"Last-Event-ID": every[-2]["mark"]}) == every[-1:]
    assert http.get("/runs/followed/events", headers={"Last-Event-ID": "four"}).status_code == 422


def test_an_answer_stands_and_a_second_one_is_refused_with_who_was_first(http: httpx.Client) -> None:
    request_id = waiting_request(http, "asked")
    assert http.get("/runs/asked").json()["run"]["status"] == "waiting"
    assert http.get("/runs/asked").json()["run"]["wake_at"] is not None
    (asked,) = [shown for shown in http.get("/requests").json()["requests"] if shown["run_id"] == "asked"]
    assert asked["data"]["objections"] == ["more than 100 euros"]
    path = f"/runs/asked/requests/{request_id}"
    wrong = http.post(path, json={"answer": {"approved": "perhaps"}, "by": "grace"})
    assert (wrong.status_code, "'perhaps' is not of type 'boolean'" in wrong.json()["error"]) == (422, True)
    unseen = http.post(path, json={"answer": {"approved": True}, "by": "grace", "approves": "something else"})
    assert unseen.status_code == 409
    right = {"answer": {"approved": True}, "by": "grace", "approves": asked["approves"]}
    assert http.post(path, json=right).status_code == 202
    assert list_of(http, "asked")[-1]["status"] == "idle"
    assert http.post(path, json=right).status_code == 202
    late = http.post(path, json={"answer": {"approved": False}, "by": "bob"})
    assert late.status_code == 409
    assert late.json()["answered"]["by"] == "grace"
    assert late.json()["answered"]["what"] == "{'approved': True}"
    assert late.json()["answered"]["at"] in late.json()["error"]


def test_a_run_is_cancelled_and_deleted(http: httpx.Client) -> None:
    waiting_request(http, "unwanted")
    with following(http, "unwanted") as messages:
        assert http.post("/runs/unwanted/cancel", json={"reason": "a mistake", "by": "ada"}).status_code == 202
        told = list(messages)
    assert [message["data"]["reason"] for message in told if message.get("type") == "cancelled"] == ["a mistake"]
    assert (told[-1]["mark"], told[-1]["status"]) == ("end", "cancelled")
    assert [run["run_id"] for run in http.get("/runs?status=cancelled").json()["runs"]] == ["unwanted"]
    assert http.delete("/runs/unwanted").status_code == 204
    assert [http.request(method, "/runs/unwanted").status_code for method in ("GET", "DELETE")] == [404, 404]


def test_a_follower_is_told_when_its_run_is_deleted(http: httpx.Client) -> None:
    waiting_request(http, "gone")
    with following(http, "gone") as messages:
        assert next(messages)["mark"] == "1"
        assert http.delete("/runs/gone").status_code == 204
        assert [message["error"] for message in messages if message["mark"] == "end"] == [
            "there is no run 'gone' in this storage"
        ]


BAD_BODIES = (
    b"",
    b"{",
    b"\xff",
    b"[" * 50_000,
    b"9" * 5_000,
    b'{"input": {"employee": "ada", "text": NaN}}',
    b'{"input": {"employee": "ada", "text": "\\ud800"}}',
)
BAD_CLAIMS: tuple[object, ...] = (
    [],
    "Taxi, 20 EUR",
    {},
    {"input": None},
    {"input": "Taxi, 20 EUR"},
    {"input": {"employee": "ada"}},
    {"input": {"employee": "ada", "text": 20}},
    {"input": {"employee": "", "text": "Taxi, 20 EUR"}},
    {"input": {"employee": "ada", "text": "Taxi, 20 EUR", "approved": True}},
    claim("\x00"),
    claim("a" * 501),
    {**HOTEL, "run_id": "a/b"},
    {**HOTEL, "run_id": "../secret"},
    {**HOTEL, "run_id": "a@1"},
    {**HOTEL, "run_id": "a" * 101},
    {**HOTEL, "run_id": 7},
    {**HOTEL, "workflow": "another"},
)
BAD_ANSWERS: tuple[object, ...] = (
    {"answer": {"approved": True}},
    {"by": "grace"},
    {"answer": {"approved": True}, "by": 7},
    {"answer": None, "by": "grace"},
    {"answer": {"approved": True, "remark": 1}, "by": "grace"},
    {"answer": {"approved": True, "remarks": ""}, "by": "grace"},
    {"answer": {"approved": True}, "by": "grace", "approves": ["it"]},
)
MISSED = (
    ("GET", "/nothing", 404),
    ("PUT", "/runs", 405),
    ("GET", "/runs/nobody", 404),
    ("DELETE", "/runs/nobody", 404),
    ("GET", "/runs/%00", 404),
    ("GET", "/runs/a%2Fb", 404),
    ("GET", "/runs/nobody/events", 404),
    ("GET", "/runs?status=happy", 422),
    ("GET", "/runs/bad-input/events?from_seq=-1", 422),
    ("GET", "/runs/bad-input/events?from_seq=one", 422),
    ("GET", f"/runs/bad-input/events?from_seq={10**30}", 422),
)


def test_bad_input_of_any_kind_is_refused_with_what_to_do(http: httpx.Client) -> None:
    request_id = waiting_request(http, "bad-input")
    before = http.get("/runs").json()
    as_json = {"Content-Type": "application/json"}
    refused = [http.post("/runs", content=raw, headers=as_json) for raw in BAD_BODIES]
    assert [reply.status_code for reply in refused] == [400] * len(BAD_BODIES)
    refused += [http.post("/runs", json=body) for body in BAD_CLAIMS]
    refused += [http.post(f"/runs/bad-input/requests/{request_id}", json=answer) for answer in BAD_ANSWERS]
    assert {reply.status_code for reply in refused[len(BAD_BODIES) :]} == {422}
    missed = [http.request(method, path) for method, path, _ in MISSED]
    assert [reply.status_code for reply in missed] == [status for _, _, status in MISSED]
    assert all(reply.json().keys() == {"error"} for reply in [*refused, *missed])
    assert http.get("/runs").json() == before


def test_what_is_no_json_or_too_large_is_not_read(http: httpx.Client) -> None:
    assert http.post("/runs", content=json.dumps(HOTEL)).status_code == 415
    assert http.post("/runs", data={"input": "Hotel, 240 EUR"}).status_code == 415
    assert http.post("/runs", json=claim("a" * 100_000)).status_code == 413


def test_what_is_not_there_can_be_neither_answered_nor_cancelled(http: httpx.Client) -> None:
    waiting_request(http, "other")
    body = {"answer": {"approved": True}, "by": "grace"}
    assert http.post("/runs/other/requests/another", json=body).status_code == 404
    assert http.post("/runs/nobody/requests/another", json=body).status_code == 404
    assert [http.post(f"/runs/nobody/{verb}", json={}).status_code for verb in ("cancel", "recover")] == [404, 404]


def test_a_run_that_has_failed_says_why_and_goes_on_when_the_cause_is_mended(tmp_path: Path) -> None:
    service, bank = ServiceProcess(tmp_path), tmp_path / "bank.db"
    bank.mkdir()
    try:
        service.start()
        with httpx.Client(base_url=service.url, timeout=SECONDS) as http:
            http.post("/runs", json={**TAXI, "run_id": "fails"})
            told = list_of(http, "fails")
            assert (told[-1]["mark"], told[-1]["status"]) == ("end", "failed")
            shown = http.get("/runs/fails").json()
            assert (shown["run"]["status"], shown["outputs"]) == ("failed", [])
            assert "unable to open database file" in shown["run"]["error"]
            bank.rmdir()
            assert http.post("/runs/fails/recover", json={}).json() == {"recovered": ["fails"]}
            rest = list_of(http, "fails", {"Last-Event-ID": told[-2]["mark"]})
            assert (rest[-1]["mark"], rest[-1]["status"]) == ("end", "idle")
        assert service.payments() == [("ada", 20_00)]
    finally:
        service.stop()


def test_a_service_that_is_asked_to_go_hangs_up_on_its_followers(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path)
    try:
        service.start()
        with httpx.Client(base_url=service.url, timeout=SECONDS) as http:
            waiting_request(http, "waits")
            with following(http, "waits") as messages:
                first = next(messages)
                code, log = service.end(signal.SIGTERM)
                rest = list(messages)
        assert (code, first["mark"]) == (-signal.SIGTERM, "1")
        assert [message["mark"] for message in rest] == [str(number) for number in range(2, len(rest) + 2)]
        assert "Application shutdown complete" in log
        assert "ERROR" not in log
        service.start()
        with httpx.Client(base_url=service.url, timeout=SECONDS) as http:
            (asked,) = http.get("/requests").json()["requests"]
            path = f"/runs/waits/requests/{asked['request_id']}"
            assert http.post(path, json={"answer": {"approved": True}, "by": "grace"}).status_code == 202
            assert list_of(http, "waits")[-1]["status"] == "idle"
        assert service.payments() == [("ada", 240_00)]
    finally:
        service.stop()
