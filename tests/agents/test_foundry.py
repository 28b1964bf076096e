"""The client of a Foundry project: where it asks, and with which token."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from tests.agents.openai_server import serving, text

from perdure.agents import Message
from perdure.errors import ChatClientInvalidAuthException
from perdure.foundry import FoundryChatClient
from perdure.providers.openai.client import foundry_url
from perdure.providers.openai.connection import Tokens
from perdure.testing.clock import ManualClock

HELLO = [Message("user", ["Hello"])]


@dataclass
class Token:
    token: str
    expires_on: int


@dataclass
class Credential:
    """Gives tokens that hold for an hour, and remembers what they were for."""

    clock: ManualClock
    scopes: list[str] = field(default_factory=list[str])

    def get_token(self, *scopes: str, **_: Any) -> Token:
        self.scopes += scopes
        ends_at = self.clock.now() + timedelta(hours=1)
        return Token(f"token-{len(self.scopes)}", int(ends_at.timestamp()))


class AsyncCredential(Credential):
    async def get_token(self, *scopes: str, **more: Any) -> Token:  # pyright: ignore[reportIncompatibleMethodOverride] - it has two forms
        return super().get_token(*scopes, **more)


class NobodyError(Exception):
    """Nobody has signed in."""


class Nobody:
    def get_token(self, *scopes: str) -> Token:
        raise NobodyError(f"sign in first, for {scopes}")


@pytest.mark.parametrize("kind", [Credential, AsyncCredential])
async def test_a_token_is_kept_while_it_holds_and_renewed_before_it_ends(kind: type[Credential]) -> None:
    clock = ManualClock()
    credential = kind(clock)
    tokens = Tokens(credential, "the-scope", clock)
    assert [await tokens(), await tokens()] == ["token-1", "token-1"]
    clock.advance(timedelta(minutes=56))
    assert [await tokens(), await tokens()] == ["token-2", "token-2"]
    assert credential.scopes == ["the-scope", "the-scope"]


async def test_the_resource_of_the_project_is_asked_with_a_token_for_it() -> None:
    credential = Credential(ManualClock())
    with serving(text("Hi")) as server:
        endpoint = f"{server.root}/api/projects/mine"
        async with FoundryChatClient(project_endpoint=endpoint, model="deployed", credential=credential) as client:
            assert (await client.get_response(HELLO)).text == "Hi"
    assert server.paths == ["openai/v1/chat/completions"]
    assert server.headers[0]["authorization"] == "Bearer token-1"
    assert server.requests[0]["model"] == "deployed"
    assert credential.scopes == ["https://ai.azure.com/.default"]


@pytest.mark.parametrize(
    "names",
    [("FOUNDRY_PROJECT_ENDPOINT", "FOUNDRY_MODEL"), ("AZURE_AI_PROJECT_ENDPOINT", "AZURE_AI_MODEL_DEPLOYMENT_NAME")],
)
async def test_a_project_is_found_in_the_environment(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(text("Hi")) as server:
        monkeypatch.setenv(names[0], f"{server.root}/api/projects/mine/")
        monkeypatch.setenv(names[1], "deployed")
        async with FoundryChatClient(credential=lambda: "a-token") as client:
            await client.get_response(HELLO)
    assert server.headers[0]["authorization"] == "Bearer a-token"
    assert server.requests[0]["model"] == "deployed"


async def test_a_credential_that_gives_no_token_is_told_as_that() -> None:
    with serving(text("Hi")) as server:
        async with FoundryChatClient(project_endpoint=server.root, model="m", credential=Nobody()) as client:
            with pytest.raises(ChatClientInvalidAuthException, match="sign in first"):
                await client.get_response(HELLO)
    assert server.requests == []


def test_without_a_project_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOUNDRY_PROJECT_ENDPOINT", raising=False)
    monkeypatch.delenv("AZURE_AI_PROJECT_ENDPOINT", raising=False)
    with pytest.raises(ValueError, match="project_endpoint="):
        FoundryChatClient(model="m", credential=Nobody())


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://r.services.ai.azure.com/api/projects/p",
        "https://r.services.ai.azure.com/",
        "https://r.services.ai.azure.com/openai/v1/",
    ],
)
def test_the_address_of_a_project_leads_to_its_resource(endpoint: str) -> None:
    assert foundry_url(endpoint) == "https://r.services.ai.azure.com/openai/v1"
