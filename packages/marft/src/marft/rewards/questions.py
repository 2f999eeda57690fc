"""Questions to an endpoint whose answers are kept: the same one is never paid for twice."""

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

MOST_IN_MEMORY = 100_000  # scores; the oldest are forgotten first


class Questions:
    """Asks for scores and remembers the answers, in memory and in a folder. Equal questions at a time are asked once.

    Args:
        folder: where answers are kept, one JSON file each; None keeps them in memory alone, as does a folder that
            cannot be read or written (``counts["not_kept"]``): what has been paid for is never lost to that.
        read: from an answer to its score; None where it has none: such an answer is not kept.
    """

    def __init__(self, endpoint: Endpoint, folder: Path | None, read: Callable[[str], float | None]) -> None:
        self.endpoint, self.folder, self.read = endpoint, folder, read
        self.counts: Counter[str] = Counter()
        self._known: dict[str, float] = {}
        self._pending: dict[str, asyncio.Task[float]] = {}

    async def ask(self, wordings: Sequence[Mapping[str, object]]) -> float:
        """The score that a question is answered with. May be awaited on any event loop.

        Args:
            wordings: request bodies: the question, and how it is put again where the answer has no score.

        Raises:
            EpisodeFailedError: the endpoint fails, or no answer has a score.
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
        return await asyncio.shield(pending)  # whoever is cancelled leaves it to the others that wait

    def _found_out(self, name: str, task: asyncio.Task[float]) -> None:
        del self._pending[name]
        if not task.cancelled():
            task.exception()  # has been heard, also where everybody who waited was cancelled

    async def _find_out(self, name: str, wordings: Sequence[Mapping[str, object]]) -> float:
        for body in wordings:
            answer = await self.endpoint.ask_here(body)
            self.counts["requests"] += 1
            cut = answer.finish == "length"  # whatever number it ends with is no score
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
        ):  # not there, or damaged: asked, and written anew
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
    """The name of a question: the same for the same request to the same endpoint alone."""
    return hashlib.sha256(json.dumps([url, body], sort_keys=True).encode()).hexdigest()


def _file(folder: Path, name: str) -> Path:
    return folder / name[:2] / f"{name}.json"
