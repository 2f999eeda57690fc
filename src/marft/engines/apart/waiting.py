"""What is asked of an engine apart, until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from marft.engines.apart.words import NO_IDS, Ask, Said, Weigh, Weighed
from marft.engines.spelling import Ending


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, and what has come of it."""

    message: Ask | Weigh
    result: asyncio.Future[None]
    ending: Ending | None = None
    listener: Callable[[int], None] | None = None
    said: list[Said] = field(default_factory=list)
    weighed: Weighed | None = None
    stopped: bool = False  # by a text of ours
    told: int = 0  # tokens that the listener has heard

    def take(self, said: Said) -> bool:
        """Take in tokens → whether it is over."""
        for place, token in enumerate(said.tokens.tolist()):
            if self.listener and self._count() + place >= self.told:  # asked again, it hears nothing twice
                self.listener(token)
                self.told += 1
            if self.ending and self.ending.take(token):
                self.said.append(first(said, place + 1))
                self.stopped = True
                return True
        self.said.append(said)
        return bool(said.finish)

    def begin_again(self, ending: Ending | None) -> None:
        """Nothing has come of it yet."""
        self.said.clear()
        self.ending = ending

    def _count(self) -> int:
        return sum(len(said.tokens) for said in self.said)


def first(said: Said, count: int) -> Said:
    """The first tokens of what was said."""
    tops = (said.top_ids[:count], said.top_log_probs[:count]) if len(said.top_ids) else (NO_IDS, said.top_log_probs)
    return Said(said.number, said.tokens[:count], said.log_probs[:count], "", said.lowest, said.highest, *tops)
