"""Pending requests to a subprocess engine, with the results received so far."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.common.texts import cut_at_stop
from marft.common.token_data import GrammarMasks
from marft.common.types import Completion, SamplingParams, VersionRange
from marft.inference.detokenizer import StopStringChecker
from marft.inference.subprocess_engine.messages import SampleRequest, ScoreRequest, ScoreResponse, TokenChunk
from marft.models.control_tokens import decode_text


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Request to a subprocess engine, with the results received so far."""

    message: SampleRequest | ScoreRequest
    result: asyncio.Future[None]
    stop_checker: StopStringChecker | None = None
    on_token: Callable[[int], None] | None = None
    chunks: list[TokenChunk] = field(default_factory=list)
    scores: ScoreResponse | None = None
    stopped: bool = False  # by one of the run's stop strings
    streamed_tokens: int = 0  # number of tokens passed to the listener

    def add_chunk(self, chunk: TokenChunk) -> bool:
        """Add received tokens; return whether the request is complete."""
        for index, token in enumerate(chunk.tokens.tolist()):
            # after a retry, the listener receives no token twice
            if self.on_token and self._count_tokens() + index >= self.streamed_tokens:
                self.on_token(token)
                self.streamed_tokens += 1
            if self.stop_checker and self.stop_checker.add_token(token):
                self.chunks.append(_truncate(chunk, index + 1))
                self.stopped = True
                return True
        self.chunks.append(chunk)
        return bool(chunk.finish)

    def reset(self, stop_checker: StopStringChecker | None) -> None:
        """Discard the results received before a retry."""
        self.chunks.clear()
        self.stop_checker = stop_checker

    def build_completion(
        self, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int], sampling: SamplingParams
    ) -> Completion:
        """Build the completion from the received tokens. The request must be complete."""
        chunks = self.chunks
        tokens = np.concatenate([chunk.tokens for chunk in chunks])
        ids = tokens.tolist()
        text = decode_text(tokenizer, ids[:-1] if ids[-1] in stop_ids else ids)
        return Completion(
            tokens,
            np.concatenate([chunk.log_probs for chunk in chunks]),
            cut_at_stop(text, sampling.stop),
            "stop" if self.stopped or chunks[-1].finish == "stop" else "length",
            VersionRange(min(chunk.lowest for chunk in chunks), max(chunk.highest for chunk in chunks)),
            masks=_build_masks(chunks[-1], len(ids)) if sampling.grammar else None,
            forced=tuple(index for index in chunks[-1].forced.tolist() if index < len(ids)),
            alternatives=tuple(
                tuple(pair for pair in zip(row.tolist(), numbers.tolist(), strict=True) if math.isfinite(pair[1]))
                for chunk in chunks
                for row, numbers in zip(chunk.top_ids, chunk.top_log_probs, strict=True)
            ),
        )

    def _count_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


def _build_masks(last: TokenChunk, tokens: int) -> GrammarMasks | None:
    """Build the grammar masks for the first ``tokens`` positions; None without masks."""
    positions = [index for index in last.mask_at.tolist() if index < tokens]
    table = [mask.tobytes() for mask in last.mask_table]
    return (
        GrammarMasks.from_masks(positions, [table[which] for which in last.mask_which.tolist()[: len(positions)]])
        if positions
        else None
    )


def _truncate(chunk: TokenChunk, count: int) -> TokenChunk:
    """Keep the first ``count`` tokens."""
    return replace(
        chunk,
        tokens=chunk.tokens[:count],
        log_probs=chunk.log_probs[:count],
        finish="",
        top_ids=chunk.top_ids[:count],
        top_log_probs=chunk.top_log_probs[:count],
    )
