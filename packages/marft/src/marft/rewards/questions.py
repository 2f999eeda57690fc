"""Score cache for endpoint requests: an equal request is never paid for twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from marft.common import atomic
from marft.common.errors import EpisodeFailedError
from marft.common.thoughts import outside_thoughts
from marft.inference.endpoints.client import Endpoint

MOST_IN_MEMORY = 100_000  # maximum number of scores in memory; the oldest are dropped first


class Questions:
    """Scorer with a reply cache in memory and in a folder. Equal concurrent requests are sent once.

    Args:
        folder: folder of the replies, one JSON file each; None caches in memory only. A folder that cannot be read or
            written has the same effect (``counts["not_kept"]``), so no paid reply is lost.
        read: returns the score of a reply, or None without one; such a reply is not cached.
    """

    def __init__(self, endpoint: Endpoint, folder: Path | None, read: Callable[[str], float | None]) -> None:
        self.endpoint, self.folder, self.read = endpoint, folder, read
        self.counts: Counter[str] = Counter()
        self._known: dict[str, float] = {}
        self._pending: dict[str, asyncio.Task[float]] = {}

    async def ask(self, wordings: Sequence[Mapping[str, object]]) -> float:
        """Return the score for a request. The call can be awaited on any event loop.

        Args:
            wordings: request bodies: the question, then rephrased ones for replies without a score.

        Raises:
            EpisodeFailedError: the endpoint fails, or no reply has a score.
        """
        return await self.endpoint.run(self._ask, wordings)

    async def _ask(self, wordings: Sequence[Mapping[str, object]]) -> float:
        self.counts["questions"] += 1
        name = digest(self.endpoint.settings.url, wordings[0])
        known = self._remembered(name)
        pending = self._pending.get(name)
        if known is not None or pending is not None:
            self.counts["cache_hits"] += 1
        if known is not None:
            return known
        if pending is None:
            pending = self._pending[name] = asyncio.create_task(self._find_out(name, wordings))
            pending.add_done_callback(lambda task: self._found_out(name, task))
        return await asyncio.shield(pending)  # cancellation of one caller must not cancel the request for the others

    def _found_out(self, name: str, task: asyncio.Task[float]) -> None:
        del self._pending[name]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, even if all callers were cancelled

    async def _find_out(self, name: str, wordings: Sequence[Mapping[str, object]]) -> float:
        for body in wordings:
            answer = await self.endpoint.ask_here(body)
            self.counts["requests"] += 1
            cut = answer.finish == "length"  # a number at the end of a truncated reply is not a score
            score = None if cut else self.read(outside_thoughts(answer.text))
            if score is not None:
                self._keep(name, score, answer.text)
                return score
        why = "which was cut by its length (max_new_tokens)" if cut else f"{answer.text[:200]!r}"
        raise EpisodeFailedError(
            "failed", f"{self.endpoint.name!r} gave no score in {len(wordings)} answers, the last: {why}"
        )

    def _remembered(self, name: str) -> float | None:
        if name in self._known:
            return self._known[name]
        if self.folder is None:
            return None
        try:
            kept = json.loads(_file(self.folder, name).read_text(encoding="utf-8"))
            score = self.read(outside_thoughts(kept["reply"])) if kept["finish"] == "stop" else None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ):  # missing or damaged: request again and overwrite
            return None
        if score is not None:
            self._remember(name, score)
        return score

    def _keep(self, name: str, score: float, reply: str) -> None:
        self._remember(name, score)
        if self.folder is None:
            return
        table = {"url": self.endpoint.settings.url, "model": self.endpoint.model, "reply": reply, "finish": "stop"}
        try:
            atomic.write_file(_file(self.folder, name), json.dumps(table))
        except OSError:
            self.counts["not_kept"] += 1

    def _remember(self, name: str, score: float) -> None:
        self._known[name] = score
        if len(self._known) > MOST_IN_MEMORY:
            del self._known[next(iter(self._known))]


def digest(url: str, body: Mapping[str, object]) -> str:
    """Return an endpoint request's digest, used for its cache key."""
    return hashlib.sha256(json.dumps([url, body], sort_keys=True).encode()).hexdigest()


def _file(folder: Path, name: str) -> Path:
    return folder / name[:2] / f"{name}.json"
