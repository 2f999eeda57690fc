"""Size limit for endpoint responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from marft.common.errors import EpisodeFailedError

if TYPE_CHECKING:
    from httpx2 import Response

MAX_RESPONSE_BYTES = 16 * 2**20  # bytes


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
