"""A team that is served as an A2A agent, and the SDK's own client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.types import Message, Part, Role, SendMessageRequest, StreamResponse, TaskState

from marft_serve.serving.a2a import build_agent_routes
from marft_serve.serving.settings import ServedTeam
from tests.helpers import settings
from tests.servings import Serving, bearer, serving

WORDS = {value: name.removeprefix("TASK_STATE_").lower() for name, value in TaskState.items()}


@contextmanager
def agent(*roles: str, address: str = "", **options: Any) -> Iterator[Serving]:
    """A team without models, as ``marft serve --a2a`` opens it."""
    with serving(*roles, **options) as s:
        s.app.asgi.routes.extend(build_agent_routes(s.app, ServedTeam(settings()), address))
        yield s


@asynccontextmanager
async def client(
    url: str, token: str = "", streaming: bool = True, polling: bool = False
) -> AsyncIterator[Client]:  # fmt: skip
    """One that waits for events, for the end, or (``polling``) for nothing."""
    async with httpx.AsyncClient(headers=bearer(token), timeout=60) as http:
        yield await create_client(url, ClientConfig(streaming=streaming, polling=polling, httpx_client=http))


def message(*texts: str, task: str = "") -> SendMessageRequest:
    parts = [Part(text=text) for text in texts or ("1 + 2?",)]
    return SendMessageRequest(message=Message(role=Role.ROLE_USER, message_id="1", task_id=task, parts=parts))


async def sent(url: str, request: SendMessageRequest, token: str = "", streaming: bool = False) -> list[StreamResponse]:
    """All that a client is told."""
    async with client(url, token, streaming) as one:
        return [event async for event in one.send_message(request)]


def told(events: list[StreamResponse]) -> list[str]:
    """What a stream has said, in words."""
    return [_words(event) for event in events]


def _words(event: StreamResponse) -> str:
    if event.HasField("task"):
        return f"task {WORDS[event.task.status.state]}"
    if event.HasField("artifact_update"):
        return f"answer {event.artifact_update.artifact.parts[0].text}"
    update = event.status_update
    if "asked" in update.metadata:
        return f"asked {update.metadata['asked']}"
    if "agent" in update.metadata:
        return f"{update.metadata['agent']} has acted"
    said = update.status.message
    return f"{said.metadata['agent']}: {said.parts[0].text}" if said.parts else WORDS[update.status.state]
