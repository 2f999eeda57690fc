"""Client for a single endpoint: background thread, limits on requests and responses, counted retries, clear errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from marft.agents.loop_threads import LoopThread
from marft.common.errors import EpisodeFailedError, UserError
from marft.common.packages import install_command
from marft.common.texts import single_line, truncate
from marft.common.usage import Usage
from marft.config.endpoint import EndpointSettings, RequestLimits
from marft.config.secrets import fill_variables, mask_key, mask_values, read_api_key, secret_values, variable_values
from marft.inference.endpoints.limits import LocalLimits
from marft.inference.endpoints.responses import ModelResponse, compute_usage, mask_secrets, parse_body, parse_response

if TYPE_CHECKING:
    from httpx2 import Request, Response
    from openai import AsyncOpenAI
    from openai.resources.chat import AsyncCompletions

T = TypeVar("T")
PLACEHOLDER_KEY = "none"  # sent to servers without a key, because the client requires a value
CLOSE_TIMEOUT = 2.0  # timeout for closing open connections
MAX_MESSAGE_LENGTH = 300  # maximum length of a server's error message, in characters
MAX_RESPONSE_BYTES = 16 * 2**20  # bytes


class Endpoint:
    """Client for a model behind an OpenAI-compatible endpoint. Call :meth:`close` after use.

    Args:
        name: endpoint name, for messages.
        model: model name on the server.

    ``total_usage`` counts the token usage of every response, including unusable responses.

    Raises:
        UserError: the package ``openai`` is missing or cannot be used, or the environment variable of the API key is
            not set.
    """

    def __init__(self, name: str, settings: EndpointSettings, model: str) -> None:
        if find_spec("openai") is None:
            raise UserError(f"endpoint {name!r} needs the package openai; run: {install_command('remote')}")
        self.name, self.settings, self.model = name, settings, model
        self.total_usage = Usage()
        self._key = _read_key(name, settings)
        self._options = _fill_options(name, settings.extra_body)
        named = [*filter(None, [self._key]), *variable_values(settings.extra_body)]
        self._secrets = tuple(dict.fromkeys([*named, *secret_values(self._options)]))
        self.limits: RequestLimits = LocalLimits(settings)
        self._client = self._make_client()
        self._thread = LoopThread()

    def build_body(self, messages: Sequence[Mapping[str, object]], fields: Mapping[str, object]) -> dict[str, object]:
        """Build a request body from messages and ``fields``, without omitted keys and with the recipe's options."""
        full_body = {"model": self.model, "messages": [dict(message) for message in messages], **fields}
        return {key: value for key, value in full_body.items() if key not in self.settings.omit} | self._options

    async def request(self, body: Mapping[str, object]) -> ModelResponse:
        """Send a request and return the response. The coroutine works on any event loop.

        Raises:
            EpisodeFailedError: the response is late, missing or unreadable.
        """
        return await self.run_on_thread(self.request_on_thread, body)

    async def run_on_thread(self, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Await ``function(*arguments)`` on the endpoint's own thread."""
        return await self._thread.call(function, *arguments, timeout=None)

    async def request_on_thread(self, body: Mapping[str, object]) -> ModelResponse:
        """Send a request, as :meth:`request`, from code on the endpoint's own thread.

        Raises:
            EpisodeFailedError: the response is late, missing or unreadable.
        """
        async with self.limits.slot():
            completions = self._client.chat.completions  # the first access imports modules, which takes time
            await self.limits.turn()
            try:
                async with asyncio.timeout(self.settings.timeout_seconds):
                    return await self._send(completions, body)
            except EpisodeFailedError:
                raise
            except Exception as error:  # noqa: BLE001  third-party client and server can raise any error
                raise to_episode_failure(error, self.name, self.settings, self.model, self._secrets) from None

    async def _send(self, completions: AsyncCompletions, body: Mapping[str, Any]) -> ModelResponse:
        extra_fields = {key: value for key, value in body.items() if key not in ("model", "messages")}
        raw = await completions.with_raw_response.create(
            model=body["model"], messages=body["messages"], extra_body=extra_fields
        )
        try:
            parsed_body = parse_body(raw.http_response.content)
            usage = compute_usage(parsed_body, self.settings, raw.retries_taken)
            self.total_usage += usage
            return mask_secrets(parse_response(parsed_body, usage, body.get("max_tokens")), self._secrets)
        except ValueError as error:
            reason = clean_text(str(error), self._secrets)
            message = f"endpoint {self.name!r} ({self.settings.url}) sent no answer that can be read: {reason}"
            raise EpisodeFailedError("failed", message) from None

    def _make_client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        async def limit_retries(request: Request) -> None:
            if request.headers.get("x-stainless-retry-count", "0") != "0":
                await self.limits.turn()

        async def limit_size(response: Response) -> None:
            limit_response_size(response, f"endpoint {self.name!r} ({self.settings.url})")

        hooks: dict[str, list[Callable[..., object]]] = {"request": [limit_retries], "response": [limit_size]}
        try:
            return AsyncOpenAI(
                api_key=self._key or PLACEHOLDER_KEY,
                base_url=self.settings.url,
                max_retries=self.settings.max_retries,
                timeout=self.settings.timeout_seconds,
                default_headers={"Accept-Encoding": "identity"},  # a compressed response would have an unknown size
                http_client=DefaultAsyncHttpxClient(event_hooks=hooks),
            )
        except Exception as error:  # noqa: BLE001  errors about proxies and certificates
            raise UserError(
                f"endpoint {self.name!r} cannot be used: {clean_text(str(error), self._secrets)}; check ALL_PROXY, "
                "HTTPS_PROXY, HTTP_PROXY and SSL_CERT_FILE in the environment"
            ) from None

    def close(self) -> None:
        """Close the connections and stop the thread."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._client.close(), self._thread.loop).result(CLOSE_TIMEOUT)
        self._thread.stop()


def _read_key(name: str, settings: EndpointSettings) -> str:
    if not settings.api_key_variable:
        return ""
    try:
        return read_api_key(settings.api_key_variable)
    except ValueError as error:
        hint = "; or remove api_key_variable where the server asks for no key"
        raise UserError(f"endpoint {name!r}: {error}{hint}") from None


def _fill_options(name: str, options: dict[str, object]) -> dict[str, object]:
    try:
        return fill_variables(options)
    except ValueError as error:
        raise UserError(f"endpoint {name!r}: extra_body: {error}") from None


def to_episode_failure(
    error: Exception, name: str, settings: EndpointSettings, model: str, secrets: Collection[str]
) -> EpisodeFailedError:
    """Convert an error to an episode failure.

    Args:
        error: error raised during the request.
        name: endpoint name, for messages.
        model: model name on the server.
        secrets: API key and other secrets, masked in every message.
    """
    import openai

    endpoint_name = f"endpoint {name!r} ({settings.url})"
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        limit = f"{settings.timeout_seconds:g} s"
        return EpisodeFailedError("timed_out", f"{endpoint_name} gave no whole answer in {limit}, retries included")
    if isinstance(error, openai.APIStatusError):
        server_message = clean_text(error.message, secrets)
        hint = _hint(error.status_code, settings, model)
        reason = f"{endpoint_name} answered {error.status_code}{hint}. It said: {server_message}"
    elif isinstance(error, openai.APIConnectionError):
        cause = clean_text(str(error.__cause__ or error), secrets)
        reason = (
            f"{endpoint_name} cannot be reached, after {settings.max_retries} retries: {cause}; check its url and that "
            "it runs"
        )
    else:
        reason = f"{endpoint_name} cannot be used: {type(error).__name__}: {clean_text(str(error), secrets)}"
    return EpisodeFailedError("failed", reason)


def _hint(status: int, settings: EndpointSettings, model: str) -> str:
    if status in (401, 403):
        variable = settings.api_key_variable
        check_target = f"the key in ${variable}" if variable else "whether it needs a key (api_key_variable)"
        return f"; check {check_target} and what it may do"
    if status == 404:
        return f"; check the url and that it has a model called {model!r}"
    if status in (400, 422):
        return '; a field that it does not take can be left out with omit = ["…"]'
    if status == 429 or status >= 500:
        return f", after {settings.max_retries} retries"
    return ""


def clean_text(text: str, secrets: Collection[str]) -> str:
    """Clean external text for storage and display: single line, limited length, no secrets.

    Secrets are masked whatever their length.
    """
    text = mask_values(secrets, text)
    for secret in secrets:
        text = mask_key(secret, text)
    return truncate(single_line(text), MAX_MESSAGE_LENGTH)


def limit_response_size(response: Response, endpoint_name: str) -> None:
    """Limit reading of a streamed response to ``MAX_RESPONSE_BYTES`` bytes.

    Reading raises an EpisodeFailedError above the limit.

    Raises:
        EpisodeFailedError: the response is compressed, so its size would be unknown.
    """
    from httpx2 import AsyncByteStream

    class Limited(AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self.stream, self.read = stream, 0

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self.stream:
                self.read += len(chunk)
                if self.read > MAX_RESPONSE_BYTES:
                    raise EpisodeFailedError(
                        "failed", f"{endpoint_name} sent an answer of more than {MAX_RESPONSE_BYTES >> 20} MiB"
                    )
                yield chunk

        async def aclose(self) -> None:
            await self.stream.aclose()

    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise EpisodeFailedError(
            "failed", f"{endpoint_name} sent an answer in {encoding[:20]!r}, which was not asked for"
        )
    response.stream = Limited(response.stream)
