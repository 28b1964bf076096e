"""The inspector as a person uses it, in Debian's chromium against a real server."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.hosting.flows import Gate, row, shout, until

from perdure import Host, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
from perdure.inspector import app

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Browser, Locator, Page

pytest.importorskip("playwright", reason="make browser-test installs playwright and chromium")
from playwright.async_api import async_playwright, expect

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; make browser-test installs it")

PERDURE = Path(sys.executable).with_name("perdure")
WAIT = 60_000
HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>[x](javascript:window.hacked=1)"
    "<svg onload='window.hacked=1'>\x1b[31m\u202ereversed\u2066 `code` **bold** {{constructor}}"
)


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        await browser.close()


def anyone(*_: object) -> bool:
    return True


def member(page: Page, name: str) -> Locator:
    """Find a member of the tree by its name."""
    return page.locator(".tree button", has=page.locator("b", has_text=re.compile(f"^{re.escape(name)}$")))


class Inspector:
    """A `perdure inspect` process, and pages that show it."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self._browser = browser
        self.problems: list[str] = []

    async def open(self, path: str = "", **options: Any) -> Page:
        context = await self._browser.new_context(**options)
        page = await context.new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        await page.goto(self.address)
        await expect(page.get_by_role("navigation", name="Pages")).to_be_visible(timeout=WAIT)
        await page.wait_for_function("location.hash === '#/runs'")
        if path:
            await page.evaluate("path => { location.hash = path }", path)
        return page


@asynccontextmanager
async def inspect(browser: Browser, path: Path, *options: str) -> AsyncGenerator[Inspector]:
    command = (str(PERDURE), "inspect", "-s", str(path), "--no-browser", *options)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        inspector = Inspector(browser, line.rpartition(" ")[2].strip())
        yield inspector
        assert inspector.problems == []
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def inspector(storage: SqliteCheckpointStorage, browser: Browser) -> AsyncGenerator[Inspector]:
    async with inspect(browser, storage.path) as inspector:
        yield inspector


async def test_a_live_run_is_watched_from_start_to_end(storage: SqliteCheckpointStorage, inspector: Inspector) -> None:
    gate = Gate()
    host = Host(storage)
    host.register(row("live", gate, shout))
    page = await inspector.open()
    async with host:
        await host.start("live", "hello", run_id="live-1")
        await page.get_by_role("link", name="live-1").click(timeout=WAIT)
        await gate.holds(1)
        heading = page.get_by_role("heading", name="live-1")
        await expect(heading).to_contain_text("running", timeout=WAIT)
        await page.get_by_role("link", name="Events", exact=True).click()
        gate.open()
        await until(host, "live-1", "idle")
        await expect(heading).to_contain_text("idle", timeout=WAIT)
        await expect(page.get_by_text("hello!").first).to_be_visible(timeout=WAIT)


async def test_of_two_pages_that_answer_the_second_learns_who_was_first(
    storage: SqliteCheckpointStorage, inspector: Inspector
) -> None:
    pages = [await inspector.open("#/run/ask-1") for _ in range(2)]
    for page, name, answer in zip(pages, ("ann", "ben"), ("pay", "wait"), strict=True):
        await page.get_by_label("Answer: str").fill(answer)
        await page.get_by_label("Your name").fill(name)
    await pages[0].get_by_role("button", name="Answer").click()
    await expect(pages[0].get_by_role("status").first).to_be_visible(timeout=WAIT)
    second = pages[1].get_by_role("button", name="Answer")
    if await second.is_visible():
        await second.click()
    await expect(pages[1].get_by_text("ann").first).to_be_visible(timeout=WAIT)
    assert [request.answered_by for request in await storage.requests("ask-1")] == ["ann"]


async def test_a_failure_shows_its_place_and_the_run_is_recovered(
    storage: SqliteCheckpointStorage, inspector: Inspector
) -> None:
    page = await inspector.open("#/runs?status=failed")
    await page.get_by_role("link", name="bad/1").click()
    failure = page.get_by_role("region", name="Failure")
    await expect(failure).to_contain_text("LookupError: no sku-17", timeout=WAIT)
    await expect(failure).to_contain_text("in n1")
    await page.get_by_role("button", name="Recover").click()
    await expect(page.get_by_role("status")).to_contain_text("may continue", timeout=WAIT)
    assert (await storage.run("bad/1")).status != "failed"


async def test_state_is_browsed_searched_compared_and_restored(
    storage: SqliteCheckpointStorage, inspector: Inspector
) -> None:
    page = await inspector.open("#/run/ask-1/state")
    await member(page, "requests").click()
    await expect(member(page, "about rent")).to_be_visible(timeout=WAIT)
    await page.keyboard.press("[")
    await expect(page.get_by_text("ask-1@0").first).to_be_visible(timeout=WAIT)
    await page.get_by_role("button", name="Restore…").click()
    await page.get_by_role("button", name="Restore", exact=True).click()
    await expect(page.get_by_role("button", name="Later checkpoint")).to_be_disabled(timeout=WAIT)
    assert (await storage.run("ask-1")).checkpoint_id == "ask-1@0"
    await page.evaluate("location.hash = '#/compare?kind=checkpoints&before=ask-1@0&after=ask-1@1'")
    await expect(page.get_by_text("request/about rent")).to_be_visible(timeout=WAIT)


async def test_a_wrong_token_shows_what_to_do(inspector: Inspector, browser: Browser) -> None:
    page = await (await browser.new_context()).new_page()
    await page.goto(inspector.address.partition("#")[0] + "#token=wrong")
    await expect(page.get_by_role("alert")).to_contain_text("token is missing or wrong", timeout=WAIT)


async def test_a_read_only_page_offers_no_action(storage: SqliteCheckpointStorage, browser: Browser) -> None:
    async with inspect(browser, storage.path, "--read-only") as inspector:
        page = await inspector.open("#/run/ask-1")
        await expect(page.get_by_text("This inspector is read-only.")).to_be_visible(timeout=WAIT)
        for name in ("Cancel", "Delete", "Answer"):
            await expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)


async def test_hostile_data_stays_text(tmp_path: Path, browser: Browser) -> None:
    @executor(id="<b>evil</b>")
    async def evil(text: str, ctx: WorkflowContext[None, str]) -> None:
        ctx.set_state("<img src=x onerror=window.hacked=1>", {HOSTILE: HOSTILE, "long": "x" * 10_000_000})
        nested: Any = HOSTILE
        for _ in range(60):
            nested = [nested]
        ctx.set_state("nested", nested)
        await ctx.yield_output(text)

    path = tmp_path / "runs.db"
    run_id = "<script>alert(1)</script>/..?#%\u202e"
    async with SqliteCheckpointStorage(path) as storage:
        workflow = WorkflowBuilder(name=HOSTILE[:100], start_executor=evil, checkpoint_storage=storage).build()
        await workflow.run(HOSTILE, run_id=run_id, tags={"<b>": HOSTILE[:100]})
    async with inspect(browser, path) as inspector:
        page = await inspector.open()
        await page.locator("td a.id").click()
        for tab in ("Graph", "Timeline", "Conversation", "Events", "State"):
            await page.get_by_role("link", name=tab, exact=True).click()
            await expect(page.get_by_role("link", name=tab, exact=True)).to_have_attribute("aria-current", "page")
            await expect(page.get_by_text("Loading…")).to_have_count(0, timeout=WAIT)
        await page.get_by_role("button", name="onerror").first.click()
        await expect(page.get_by_text("window.hacked").first).to_be_visible(timeout=WAIT)
        assert await page.evaluate("[window.hacked, document.querySelectorAll('main script, main img').length]") == [
            None,
            0,
        ]
        assert "\u202e" not in await page.inner_text("body")


async def test_long_runs_and_large_states_stay_usable(tmp_path: Path, browser: Browser) -> None:
    @executor(id="count")
    async def count(number: int, ctx: WorkflowContext[int, str]) -> None:
        if number == 0:
            ctx.set_state("large", {f"key {place}": "x" * 1_000 for place in range(20_000)})
        if number < 1_000:
            await ctx.send_message(number + 1)

    path = tmp_path / "runs.db"
    async with SqliteCheckpointStorage(path, durability="os") as storage:
        builder = WorkflowBuilder(name="long", start_executor=count, checkpoint_storage=storage, max_iterations=2_000)
        await builder.add_edge(count, count).build().run(0, run_id="long-1")
    async with inspect(browser, path) as inspector:
        page = await inspector.open("#/run/long-1/events")
        await expect(page.get_by_role("button", name="Show earlier events")).to_be_visible(timeout=WAIT)
        assert await page.locator(".events li").count() <= 200
        await page.evaluate("location.hash = '#/run/long-1/state'")
        await member(page, "large").click(timeout=WAIT)
        await expect(page.get_by_role("button", name="Show more of 20,000")).to_be_visible(timeout=WAIT)
        elements = await page.evaluate("document.querySelectorAll('*').length")
        assert elements < 3_000, "the page shows a part of a large state"


PAGES = ("#/runs", "#/run/bad%2F1", "#/run/ask-1", "#/run/ask-1/graph", "#/run/ask-1/timeline", "#/run/ask-1/state")
MORE_PAGES = ("#/run/ask-1/events", "#/run/ask-1/conversation", "#/requests", "#/compare", "#/nowhere")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_is_accessible_and_fits_a_narrow_window(inspector: Inspector, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="make browser-test installs axe")
    page = await inspector.open(color_scheme=theme, viewport={"width": 400, "height": 800}, bypass_csp=True)
    for path in (*PAGES, *MORE_PAGES):
        await page.evaluate("path => { location.hash = path }", path)
        await expect(page.get_by_text("Loading…")).to_have_count(0, timeout=WAIT)
        found = await axe.Axe().run(page)
        assert not found.response["violations"], (path, json.dumps(found.response["violations"], indent=1)[:3_000])
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, (path, width)


async def test_keys_open_help_and_move_between_rows(inspector: Inspector) -> None:
    page = await inspector.open()
    await expect(page.locator("[data-row]")).to_have_count(3, timeout=WAIT)
    await page.keyboard.press("?")
    await expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Workflow")).to_be_focused()
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    first = page.locator("[data-row] a.id").first
    await expect(first).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=WAIT)
    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await expect(page.get_by_role("heading", name="Requests")).to_be_visible()
    await expect(page.get_by_text("about rent").first).to_be_visible(timeout=WAIT)


async def test_it_works_behind_a_prefix(storage: SqliteCheckpointStorage, browser: Browser) -> None:
    service = Starlette(routes=[Mount("/ops/inspector", app(storage, authorize=anyone))])
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(service, log_level="warning"))
    serving = asyncio.create_task(server.serve([listening]))
    page = await (await browser.new_context()).new_page()
    await page.goto(f"http://127.0.0.1:{port}/ops/inspector")
    await expect(page.get_by_role("link", name="ask-1")).to_be_visible(timeout=WAIT)
    await page.get_by_role("link", name="ask-1").click()
    await expect(page.get_by_role("heading", name="ask-1")).to_be_visible(timeout=WAIT)
    await page.close()
    server.should_exit = True
    await serving
    listening.close()
