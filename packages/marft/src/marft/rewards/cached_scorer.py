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
from marft.common.reasoning import strip_reasoning
from marft.inference.endpoints.client import Endpoint

MAX_CACHED_SCORES = 100_000  # maximum number of scores in memory; the oldest are dropped first


class CachedScorer:
    """Scorer with a reply cache in memory and in a folder. Equal concurrent requests are sent once.

    Args:
        folder: folder of the replies, one JSON file each; None caches in memory only. A folder that cannot be read or
            written has the same effect (``counts["not_cached"]``), so no paid reply is lost.
        parse_score: returns the score of a reply, or None without one; such a reply is not cached.
    """

    def __init__(self, endpoint: Endpoint, folder: Path | None, parse_score: Callable[[str], float | None]) -> None:
        self.endpoint, self.folder, self.parse_score = endpoint, folder, parse_score
        self.counts: Counter[str] = Counter()
        self._scores: dict[str, float] = {}
        self._pending: dict[str, asyncio.Task[float]] = {}

    async def score(self, requests: Sequence[Mapping[str, object]]) -> float:
        """Return the score for a request. The call can be awaited on any event loop.

        Args:
            requests: request bodies: the question, then rephrased ones for replies without a score.

        Raises:
            EpisodeFailedError: the endpoint fails, or no reply has a score.
        """
        return await self.endpoint.run_on_thread(self._score, requests)

    async def _score(self, requests: Sequence[Mapping[str, object]]) -> float:
        self.counts["questions"] += 1
        name = digest(self.endpoint.settings.url, requests[0])
        cached = self._lookup(name)
        pending = self._pending.get(name)
        if cached is not None or pending is not None:
            self.counts["cache_hits"] += 1
        if cached is not None:
            return cached
        if pending is None:
            pending = self._pending[name] = asyncio.create_task(self._request_score(name, requests))
            pending.add_done_callback(lambda task: self._on_request_done(name, task))
        return await asyncio.shield(pending)  # cancellation of one caller must not cancel the request for the others

    def _on_request_done(self, name: str, task: asyncio.Task[float]) -> None:
        del self._pending[name]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, even if all callers were cancelled

    async def _request_score(self, name: str, requests: Sequence[Mapping[str, object]]) -> float:
        for body in requests:
            answer = await self.endpoint.request_on_thread(body)
            self.counts["requests"] += 1
            is_truncated = answer.finish == "length"  # a number at the end of a truncated reply is not a score
            score = None if is_truncated else self.parse_score(strip_reasoning(answer.text))
            if score is not None:
                self._save(name, score, answer.text)
                return score
        reason = "which was cut by its length (max_new_tokens)" if is_truncated else f"{answer.text[:200]!r}"
        raise EpisodeFailedError(
            "failed", f"{self.endpoint.name!r} gave no score in {len(requests)} answers, the last: {reason}"
        )

    def _lookup(self, name: str) -> float | None:
        if name in self._scores:
            return self._scores[name]
        if self.folder is None:
            return None
        try:
            entry = json.loads(_file(self.folder, name).read_text(encoding="utf-8"))
            score = self.parse_score(strip_reasoning(entry["reply"])) if entry["finish"] == "stop" else None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ):  # missing or damaged: request again and overwrite
            return None
        if score is not None:
            self._store(name, score)
        return score

    def _save(self, name: str, score: float, reply: str) -> None:
        self._store(name, score)
        if self.folder is None:
            return
        table = {"url": self.endpoint.settings.url, "model": self.endpoint.model, "reply": reply, "finish": "stop"}
        try:
            atomic.write_file(_file(self.folder, name), json.dumps(table))
        except OSError:
            self.counts["not_cached"] += 1

    def _store(self, name: str, score: float) -> None:
        self._scores[name] = score
        if len(self._scores) > MAX_CACHED_SCORES:
            del self._scores[next(iter(self._scores))]


def digest(url: str, body: Mapping[str, object]) -> str:
    """Return an endpoint request's digest, used for its cache key."""
    return hashlib.sha256(json.dumps([url, body], sort_keys=True).encode()).hexdigest()


def _file(folder: Path, name: str) -> Path:
    return folder / name[:2] / f"{name}.json"
