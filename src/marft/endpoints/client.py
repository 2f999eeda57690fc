"""One endpoint: requests on a thread of their own, within its limits, with retries that are counted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from marft.config.endpoint import EndpointSettings
from marft.endpoints.answers import Answer, read_answer
from marft.endpoints.failures import as_failure
from marft.endpoints.pace import Pace
from marft.game.game import EpisodeFailedError
from marft.game.hosting import HostThread

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.resources.chat import AsyncCompletions

T = TypeVar("T")
NO_KEY = "none"  # sent to servers that ask for no key: the client insists on one
CLOSING_SECONDS = 2.0  # for open connections to be closed


class Endpoint:
    """Asks one model behind an OpenAI-compatible endpoint. Close it.

    Args:
        name: for messages to people.
        model: what the model is called there.

    Raises:
        ValueError: the package ``openai`` is missing, or the environment variable of the key is not set.
    """

    def __init__(self, name: str, settings: EndpointSettings, model: str) -> None:
        if find_spec("openai") is None:
            raise ValueError(f"endpoint {name!r} needs the package openai; run: pip install 'marft[remote]'")
        self.name, self.settings, self.model = name, settings, model
        self._key = _read_key(name, settings)
        self._gate = asyncio.Semaphore(settings.concurrent_requests)
        self._pace = Pace(settings.requests_per_minute)
        self._client: AsyncOpenAI | None = None
        self._thread = HostThread()

    def body(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> dict[str, Any]:
        """A request's body: the messages and ``fields``, without what the recipe omits, with its options."""
        whole = {"model": self.model, "messages": [dict(message) for message in messages], **fields}
        return {key: value for key, value in whole.items() if key not in self.settings.omit} | self.settings.options

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """The answer to one request. May be awaited on any event loop.

        Raises:
            EpisodeFailedError: it came too late, not at all, or cannot be read.
        """
        return await self.run(self.ask_here, body)

    async def run(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Await ``function(*arguments)`` on the endpoint's own thread."""
        return await self._thread.call(function, *arguments, timeout=None)

    async def ask_here(self, body: Mapping[str, Any]) -> Answer:
        """:meth:`ask`, for who is on the endpoint's own thread already."""
        async with self._gate:
            self._client = self._client or self._connect()
            completions = self._client.chat.completions  # imports what it needs, which takes a while the first time
            await self._pace.turn()
            try:
                async with asyncio.timeout(self.settings.timeout_seconds):
                    return await self._send(completions, body)
            except EpisodeFailedError:
                raise
            except Exception as error:  # noqa: BLE001  a client made by others reads what a server made by others sends
                raise as_failure(error, self.name, self.settings, self.model, self._key) from None

    async def _send(self, completions: AsyncCompletions, body: Mapping[str, Any]) -> Answer:
        rest = {key: value for key, value in body.items() if key not in ("model", "messages")}
        raw = await completions.with_raw_response.create(
            model=body["model"], messages=body["messages"], extra_body=rest
        )
        try:
            return read_answer(raw.http_response.content, self.settings, raw.retries_taken)
        except ValueError as error:
            said = f"endpoint {self.name!r} ({self.settings.url}) sent no answer that can be read: {error}"
            raise EpisodeFailedError("failed", said) from None

    def _connect(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        async def pace_retries(request: Any) -> None:
            if request.headers.get("x-stainless-retry-count", "0") != "0":
                await self._pace.turn()

        return AsyncOpenAI(
            api_key=self._key or NO_KEY,
            base_url=self.settings.url,
            max_retries=self.settings.retries,
            timeout=self.settings.timeout_seconds,
            http_client=DefaultAsyncHttpxClient(event_hooks={"request": [pace_retries]}),
        )

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._client is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._client.close(), self._thread.loop).result(CLOSING_SECONDS)
        self._thread.stop()


def _read_key(name: str, settings: EndpointSettings) -> str:
    variable = settings.api_key_variable
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(
            f"endpoint {name!r}: its key should be in the environment variable {variable}, which is not set; "
            f"export {variable}=…, or remove api_key_variable where the server asks for no key"
        )
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"endpoint {name!r}: the environment variable {variable} holds characters that no key has")
    return key
