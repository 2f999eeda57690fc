"""Pending requests to a subprocess engine, with the results received so far."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.common.marks import Masks
from marft.common.texts import until
from marft.common.types import Completion, Sampling, Versions
from marft.inference.apart.words import Ask, Said, Weigh, Weighed
from marft.inference.spelling import Ending
from marft.models.control_tokens import spelled


@dataclass(slots=True, eq=False)
class Asked:
    """Request to a subprocess engine, with the results received so far."""

    message: Ask | Weigh
    result: asyncio.Future[None]
    ending: Ending | None = None
    listener: Callable[[int], None] | None = None
    said: list[Said] = field(default_factory=list)
    weighed: Weighed | None = None
    stopped: bool = False  # by one of the run's stop strings
    told: int = 0  # number of tokens passed to the listener

    def take(self, said: Said) -> bool:
        """Add received tokens; return whether the request is complete."""
        for place, token in enumerate(said.tokens.tolist()):
            # after a retry, the listener receives no token twice
            if self.listener and self._count() + place >= self.told:
                self.listener(token)
                self.told += 1
            if self.ending and self.ending.take(token):
                self.said.append(_first(said, place + 1))
                self.stopped = True
                return True
        self.said.append(said)
        return bool(said.finish)

    def begin_again(self, ending: Ending | None) -> None:
        """Discard the results received before a retry."""
        self.said.clear()
        self.ending = ending

    def completion(self, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Build the completion from the received tokens. The request must be complete."""
        said = self.said
        tokens = np.concatenate([each.tokens for each in said])
        ids = tokens.tolist()
        text = spelled(tokenizer, ids[:-1] if ids[-1] in stop_ids else ids)
        return Completion(
            tokens,
            np.concatenate([each.log_probs for each in said]),
            until(text, sampling.stop),
            "stop" if self.stopped or said[-1].finish == "stop" else "length",
            Versions(min(each.lowest for each in said), max(each.highest for each in said)),
            masks=_masks(said[-1], len(ids)) if sampling.grammar else None,
            forced=tuple(place for place in said[-1].forced.tolist() if place < len(ids)),
            alternatives=tuple(
                tuple(pair for pair in zip(row.tolist(), numbers.tolist(), strict=True) if math.isfinite(pair[1]))
                for each in said
                for row, numbers in zip(each.top_ids, each.top_log_probs, strict=True)
            ),
        )

    def _count(self) -> int:
        return sum(len(said.tokens) for said in self.said)


def _masks(last: Said, tokens: int) -> Masks | None:
    """Build the grammar masks for the first ``tokens`` positions; None without masks."""
    at = [place for place in last.mask_at.tolist() if place < tokens]
    table = [mask.tobytes() for mask in last.mask_table]
    return Masks.of(at, [table[which] for which in last.mask_which.tolist()[: len(at)]]) if at else None


def _first(said: Said, count: int) -> Said:
    """Keep the first ``count`` tokens."""
    return replace(
        said, tokens=said.tokens[:count], log_probs=said.log_probs[:count], finish="", top_ids=said.top_ids[:count],
        top_log_probs=said.top_log_probs[:count],
    )  # fmt: skip
