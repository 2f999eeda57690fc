"""A running batch on one backbone: rows of any policies come in, one token a step, finished rows leave at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from marft.engines.holding import Holding, Text
from marft.engines.prefilling import Asked, Prefill
from marft.engines.sampling import allowed_tokens, draw
from marft.engines.spelling import Ending
from marft.game.live import Spelling
from marft.marks import Masks
from marft.models.backbone import Backbone
from marft.models.batches import in_batches
from marft.models.devices import read_all, sent
from marft.models.running_rows import running_rows
from marft.types import Finish, LogProbs, Sampling, TokenIds

PREFILL_TOKENS = 8192  # in one forward
Alternatives = tuple[tuple[int, float], ...]  # ids and log-probs, likeliest first
Teller = Callable[[int, float, Alternatives], None]  # is told each token, its log-prob and what else was likely


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One request: what to sample from, and the uniform numbers to sample with (one a token)."""

    adapter: str | None
    prompt: TokenIds  # [T]
    sampling: Sampling
    uniforms: np.ndarray  # [max_new_tokens], float32 in [0, 1)
    tasks: str = ""  # the pass over tasks that it belongs to: others' prefixes are not its own
    teller: Teller | None = None  # in place of the listener of ``sampling``


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    row: Row
    tokens: TokenIds  # [T]
    log_probs: LogProbs  # [T]
    finish: Finish
    masks: Masks | None = None
    forced: tuple[int, ...] = ()  # places at which a grammar allowed for one token
    problem: str = ""  # why a grammar could not be held
    alternatives: tuple[Alternatives, ...] = ()  # of each token, where they were asked for


class RunningBatch:
    """Rows 0..n-1 of every buffer are live. A finished row's slot is taken by the last row, so that it costs
    nothing from the next step on.

    Args:
        stop_ids: tokens that end a turn.
        spell: makes what spells one row's text, for stop strings.
        prefix_bytes: what keys and values may take that are kept for rows to come; 0 keeps none.
        holding: holds rows to their grammars, where any has one.
    """

    def __init__(
        self,
        backbone: Backbone,
        stop_ids: Sequence[int],
        spell: Callable[[], Spelling],
        prefix_bytes: int = 0,
        holding: Holding | None = None,
    ) -> None:
        self.backbone, self.spell, self.prefix_bytes, self.holding = backbone, spell, prefix_bytes, holding
        device = backbone.device
        self.stop_ids = frozenset(stop_ids)
        self.running = running_rows(backbone)
        self.prefill = Prefill(backbone, self.running, prefix_bytes)
        self.rows: list[Row] = []
        self.texts: dict[int, Text] = {}  # by id of the row: of those that have a grammar
        self.alternatives: dict[int, list[Alternatives]] = {}  # by id of the row: of those that ask for them
        self.tellers: dict[int, Teller] = {}  # by id of the row: of those that have one, or a listener
        self.endings: dict[int, Ending] = {}  # by id of the row: of those that have stop strings
        self.adapters: list[str | None] = []
        self.tokens: list[list[int]] = []  # [n] of what each row has sampled; its last one is not cached yet
        self.log_probs: list[list[float]] = []  # [n] of those
        self.last = torch.empty(0, dtype=torch.long, device=device)  # [n] the last ones, where they are needed next
        self.temperatures = torch.empty(0, device=device)  # [n]
        self.greedy = torch.empty(0, dtype=torch.bool, device=device)  # [n]

    def __len__(self) -> int:
        return len(self.rows)

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> list[Finished]:
        """Prefill rows and sample their first token. Rows with the same adapter and prompt share one prefill."""
        finished = []
        alike: dict[tuple[str, str | None, bytes], list[Row]] = {}
        for row in rows:
            alike.setdefault((row.tasks, row.adapter, row.prompt.tobytes()), []).append(row)
        for some in in_batches(list(alike.values()), lambda same: len(same[0].prompt), PREFILL_TOKENS):
            hidden = self._prefill(some)
            group = [row for same in some for row in same]
            self._append(group)
            finished += self._sample(hidden, slice(len(self.rows) - len(group), len(self.rows)))
        return finished

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """One token for every row → the rows that finished with it."""
        hidden = self.running.step(self.last, [self._cached(index) for index in range(len(self.rows))], self.adapters)
        return self._sample(hidden, slice(0, len(self.rows)))

    def _cached(self, index: int) -> int:
        """Tokens of a row whose keys and values are there when it goes on."""
        return len(self.rows[index].prompt) + len(self.tokens[index]) - 1

    @torch.inference_mode()
    def abandon(self, rows: Sequence[Row]) -> None:
        """Let go of rows that nobody waits for any more."""
        gone = {id(row) for row in rows}
        for row in rows:
            self._forget(row)
        self._remove([index for index, row in enumerate(self.rows) if id(row) in gone])

    def clear(self) -> None:
        """Forget cached keys and values, which belong to weights that are about to change."""
        assert not self.rows, "the weights change while rows are being sampled"
        if self.holding:
            self.holding.forget()
        self.running = running_rows(self.backbone)
        self.prefill = Prefill(self.backbone, self.running, self.prefix_bytes, self.prefill.tokens)

    def _prefill(self, groups: Sequence[Sequence[Row]]) -> Tensor:
        """Read the prompts of rows that are alike, group by group → hidden states of all rows, in their order."""
        asked, slot = [], len(self.rows)
        for same in groups:
            slots = list(range(slot, slot + len(same)))
            asked.append(Asked(same[0].tasks, same[0].adapter, same[0].prompt, slots))
            slot += len(same)
        order = sorted(range(len(groups)), key=lambda number: asked[number].adapter or "")
        last = self.prefill.read([asked[number] for number in order])
        back = np.repeat(np.argsort(order), [len(same) for same in groups])
        return last[sent(back, last.device)]

    def _append(self, rows: Sequence[Row]) -> None:
        device = self.backbone.device
        self.rows = [*self.rows, *rows]
        for row in rows:
            if row.sampling.alternatives:
                self.alternatives[id(row)] = []
            if row.teller or row.sampling.listener:
                self.tellers[id(row)] = row.teller or _to_listener(row.sampling.listener)
            if row.sampling.stop:
                self.endings[id(row)] = Ending(self.spell(), row.sampling.stop)
            if row.sampling.grammar:
                assert self.holding is not None, "a row has a grammar"
                self.texts[id(row)] = self.holding.begin(row.sampling.grammar)
        self.adapters = [row.adapter for row in self.rows]
        self.tokens += [[] for _ in rows]
        self.log_probs += [[] for _ in rows]
        temperatures = np.array([row.sampling.temperature for row in rows], np.float32)
        greedy = temperatures == 0
        self.last = torch.cat([self.last, self.last.new_zeros(len(rows))])
        self.temperatures = torch.cat([self.temperatures, sent(np.where(greedy, 1.0, temperatures), device)])
        self.greedy = torch.cat([self.greedy, sent(greedy, device)])

    def _sample(self, hidden: Tensor, part: slice) -> list[Finished]:
        """Sample a token for the rows of ``part``, whose hidden states are given, and let finished rows go."""
        options = [row.sampling for row in self.rows[part]]
        plain = all(option.temperature in (0.0, 1.0) for option in options)
        logits = self.backbone.logits(hidden, None if plain else self.temperatures[part])
        texts = [self.texts.get(id(row)) for row in self.rows[part]] if self.texts else []
        if self.holding and any(texts):
            self.holding.hold_(logits, texts)
        next_ones = [row.uniforms[len(made)] for row, made in zip(self.rows[part], self.tokens[part], strict=True)]
        uniforms = sent(np.array(next_ones, np.float32), self.backbone.device)
        greedy = self.greedy[part] if any(option.temperature == 0.0 for option in options) else None
        ids, log_probs = draw(logits, uniforms, greedy, allowed_tokens(logits, options))
        likeliest = self._likeliest(logits, ids, log_probs, part)
        self.last[part] = ids
        numbers, said, *others = (
            found.tolist() for found in read_all([ids, log_probs, *likeliest])
        )  # all that is waited for
        drawn = list(map(int, numbers))
        self._tell_alternatives(others, part)
        for text, token in zip(texts, drawn if texts else (), strict=True):
            if text:
                text.take(token)
        if self.tellers:
            self._tell(drawn, said, part)
        finished, leaving = [], []
        for index, token, log_prob in zip(range(part.start, part.stop), drawn, said, strict=True):
            row, stops = self.rows[index], token in self.stop_ids
            self.tokens[index].append(token)
            self.log_probs[index].append(log_prob)
            full = len(self.tokens[index]) >= row.sampling.max_new_tokens
            ending = self.endings.get(id(row))
            by_string = ending is not None and not stops and ending.take(token)
            text = self.texts.get(id(row))
            if stops or full or by_string or (text and text.problem):
                finished.append(self._finish(index, "stop" if stops or by_string else "length"))
                leaving.append(index)
        self._remove(leaving)
        return finished

    def _likeliest(self, shifted: Tensor, drawn: Tensor, log_probs: Tensor, part: slice) -> list[Tensor]:
        """The likeliest tokens of each row that asks for them, and then their log-probs.

        Args:
            shifted: logits of the rows of ``part``, which :func:`draw` has used up, [B, V].
            drawn: tokens whose log-probs are known, [B].
        """
        found: list[Tensor] = []
        for offset, row in enumerate(self.rows[part] if self.alternatives else ()):
            if id(row) in self.alternatives:
                mine = shifted[offset]
                values, ids = (mine - (mine.gather(0, drawn[offset : offset + 1]) - log_probs[offset])).topk(
                    row.sampling.alternatives
                )
                found += ids, values
        return found

    def _tell_alternatives(self, found: Sequence[Sequence[float]], part: slice) -> None:
        """Note what :meth:`_likeliest` found, once it is read."""
        asking = [row for row in self.rows[part] if id(row) in self.alternatives]
        for row, ids, values in zip(asking, found[::2], found[1::2], strict=True):
            pairs = zip(ids, values, strict=True)
            self.alternatives[id(row)].append(tuple((int(i), value) for i, value in pairs if math.isfinite(value)))

    def _tell(self, drawn: Sequence[int], log_probs: Sequence[float], part: slice) -> None:
        for row, token, log_prob in zip(self.rows[part], drawn, log_probs, strict=True):
            if teller := self.tellers.get(id(row)):
                likeliest = self.alternatives.get(id(row))
                teller(token, log_prob, likeliest[-1] if likeliest else ())

    def _finish(self, index: int, finish: Finish) -> Finished:
        tokens = np.array(self.tokens[index], np.int32)
        log_probs = np.array(self.log_probs[index], np.float32)
        row = self.rows[index]
        self.prefill.keep(row.tasks, row.adapter, np.concatenate([row.prompt, tokens[:-1]]), index)
        done = Finished(row, tokens, log_probs, finish, alternatives=tuple(self.alternatives.get(id(row), ())))
        text = self.texts.get(id(row))
        self._forget(row)
        return replace(done, masks=text.masks(), forced=tuple(text.forced), problem=text.problem) if text else done

    def _forget(self, row: Row) -> None:
        """Forget what is kept beside a row."""
        for beside in (self.alternatives, self.tellers, self.endings, self.texts):
            beside.pop(id(row), None)

    def _remove(self, leaving: Sequence[int]) -> None:
        """Take rows out: live rows from the end move into their slots."""
        if not leaving:
            return
        n = len(self.rows)
        order = list(range(n))
        for index in sorted(leaving, reverse=True):
            last = order.pop()
            if index < len(order):
                self.running.move(len(order), index, self._cached(last))
                order[index] = last
        self.rows = [self.rows[index] for index in order]
        self.tokens = [self.tokens[index] for index in order]
        self.log_probs = [self.log_probs[index] for index in order]
        self.adapters = [row.adapter for row in self.rows]
        keep = sent(np.array(order, np.int64), self.backbone.device)
        self.last, self.temperatures, self.greedy = self.last[keep], self.temperatures[keep], self.greedy[keep]


def _to_listener(listener: Callable[[int], None] | None) -> Teller:
    assert listener is not None
    return lambda token, log_prob, likeliest: listener(token)  # noqa: ARG005
