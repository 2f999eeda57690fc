"""A running batch on one backbone: rows of any policies come in, one token a step, finished rows leave at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from marft.agents.live import Spelling
from marft.common.marks import Masks
from marft.common.texts import one_line, raised
from marft.common.types import Finish, LogProbs, Sampling, TokenIds
from marft.inference.holding import Holding, Text
from marft.inference.prefilling import Asked, Prefill
from marft.inference.sampling import allowed_tokens, draw
from marft.inference.spelling import Ending
from marft.models.backbone import Backbone
from marft.models.batches import in_batches
from marft.models.devices import read_all, sent
from marft.models.packed_rows import PackedRows
from marft.models.running_rows import CachedRows, running_rows

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
    error: Exception | None = None  # what the row raised; it has no tokens then

    @staticmethod
    def failed(row: Row, error: Exception) -> Finished:
        """A row that could not be sampled."""
        return Finished(row, np.empty(0, np.int32), np.empty(0, np.float32), "length", error=error)


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """The next tokens of some rows."""

    tokens: list[int]
    log_probs: list[float]
    likeliest: dict[int, Alternatives]  # by place in the batch, of rows that ask for them


class RunningBatch:
    """Rows 0..n-1 of every buffer are live. A finished row's slot is taken by the last row, so that it costs
    nothing from the next step on.

    A row that raises is finished with its error, and the others go on. What no row raises alone is raised here:
    whoever catches it calls :meth:`reset`.

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
            try:
                self._begin(row)
            except Exception as error:  # noqa: BLE001  the row's own
                finished.append(self._failed(row, error))
            else:
                alike.setdefault((row.tasks, row.adapter, row.prompt.tobytes()), []).append(row)
        for some in in_batches(list(alike.values()), lambda same: len(same[0].prompt), PREFILL_TOKENS):
            finished += self._take_in(some)
        return finished

    def _take_in(self, groups: Sequence[Sequence[Row]]) -> list[Finished]:
        """Prefill groups of rows that are alike: each alone where they cannot be read together."""
        try:
            hidden = self._prefill(groups)
        except Exception as error:  # noqa: BLE001  of one of them, or of all
            if len(groups) > 1:
                return [done for same in groups for done in self._take_in([same])]
            return [self._failed(row, error) for row in groups[0]]
        rows = [row for same in groups for row in same]
        self._append(rows)
        return self._sample(hidden, range(len(self.rows) - len(rows), len(self.rows)))

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """One token for every row → the rows that finished with it."""
        try:
            cached = [self._cached(index) for index in range(len(self.rows))]
            hidden = self.running.step(self.last, cached, self.adapters)
        except Exception as error:  # noqa: BLE001  of a row, or of all
            return self._without_guilty(error)
        return self._sample(hidden, range(len(self.rows)))

    def _without_guilty(self, error: Exception) -> list[Finished]:
        """Let go of the rows that cannot be read alone either, and step with the others.

        Raises:
            Exception: ``error``, where every row can.
        """
        guilty = {index: why for index in range(len(self.rows)) if (why := self._raised_alone(index))}
        if not guilty:
            raise error
        finished = [self._failed(self.rows[index], why) for index, why in guilty.items()]
        self._remove(list(guilty))
        if not isinstance(self.running, CachedRows):  # a model's own cache may have taken the token of some rows
            self._read_again()
        return finished + (self.step() if self.rows else [])

    def _raised_alone(self, index: int) -> Exception | None:
        """Run the prefill of one row alone, and return the exception that it raises; None if it raises none."""
        ids = np.concatenate([self.rows[index].prompt, np.array(self.tokens[index], np.int32)])
        try:
            packed = PackedRows.of([ids], [self.adapters[index]], self.backbone.device)
            running_rows(self.backbone).prefill(packed, [[0]])
        except Exception as error:  # noqa: BLE001  whatever it is
            return error
        return None

    def _read_again(self) -> None:
        """Read all rows into caches that are new."""
        self.running = running_rows(self.backbone)
        self.prefill = Prefill(self.backbone, self.running, self.prefix_bytes, self.prefill.tokens)
        for index, row in enumerate(self.rows):
            ids = np.concatenate([row.prompt, np.array(self.tokens[index][:-1], np.int32)])
            self.running.prefill(PackedRows.of([ids], [row.adapter], self.backbone.device), [[index]])

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

    def reset(self) -> None:
        """Let go of all rows, whatever state they are in."""
        self.rows, self.adapters, self.tokens, self.log_probs = [], [], [], []
        for beside in (self.alternatives, self.tellers, self.endings, self.texts):
            beside.clear()
        self.last, self.temperatures, self.greedy = self.last[:0], self.temperatures[:0], self.greedy[:0]
        self.clear()

    def raised_by_a_plain_row(self) -> Exception | None:
        """What stands in the way of sampling anything at all; None where nothing does. It is computed."""
        batch = self if not self.rows else RunningBatch(self.backbone, tuple(self.stop_ids), self.spell)
        row = Row(None, np.zeros(1, np.int32), Sampling(max_new_tokens=2), np.zeros(2, np.float32))
        try:
            done = batch.admit([row])
            done += batch.step() if batch.rows else []
        except Exception as error:  # noqa: BLE001  whatever it is
            done = [Finished.failed(row, error)]
        if batch is self:
            self.reset()
        return done[0].error

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

    def _begin(self, row: Row) -> None:
        """Keep what a row needs beside it.

        Raises:
            Exception: it cannot be sampled.
        """
        vocabulary, sampling = len(self.backbone.head.weight), row.sampling
        if not len(row.prompt) or int(row.prompt.min()) < 0 or int(row.prompt.max()) >= vocabulary:
            raise ValueError(f"a prompt has at least one id, and ids below {vocabulary} alone")
        if not 0 <= sampling.temperature < math.inf or not 1 <= sampling.max_new_tokens <= len(row.uniforms):
            raise ValueError("the temperature or the number of tokens is none that a row can be sampled with")
        self.backbone.refuse_unknown(row.adapter)
        if sampling.alternatives:
            self.alternatives[id(row)] = []
        if row.teller or sampling.listener:
            self.tellers[id(row)] = row.teller or _to_listener(sampling.listener)
        if sampling.stop:
            self.endings[id(row)] = Ending(self.spell(), sampling.stop)
        if sampling.grammar:
            assert self.holding is not None, "a row has a grammar"
            self.texts[id(row)] = self.holding.begin(sampling.grammar)

    def _append(self, rows: Sequence[Row]) -> None:
        device = self.backbone.device
        self.rows = [*self.rows, *rows]
        self.adapters = [row.adapter for row in self.rows]
        self.tokens += [[] for _ in rows]
        self.log_probs += [[] for _ in rows]
        temperatures = np.array([row.sampling.temperature for row in rows], np.float32)
        greedy = temperatures == 0
        self.last = torch.cat([self.last, self.last.new_zeros(len(rows))])
        self.temperatures = torch.cat([self.temperatures, sent(np.where(greedy, 1.0, temperatures), device)])
        self.greedy = torch.cat([self.greedy, sent(greedy, device)])

    def _sample(self, hidden: Tensor, places: Sequence[int]) -> list[Finished]:
        """Sample a token for the rows at ``places``, whose hidden states are given, and let finished rows go."""
        guilty: dict[int, Exception] = {}
        try:
            drawn = self._drawn(hidden, places)
        except Exception:  # of a row, or of all
            guilty = self._raised_in_drawing(hidden, places)
            if not guilty:
                raise
            whole = [offset for offset, place in enumerate(places) if place not in guilty]
            places = [places[offset] for offset in whole]
            drawn = self._drawn(hidden[whole], places) if places else _Drawn([], [], {})
        finished = [self._failed(self.rows[place], why) for place, why in guilty.items()]
        leaving = list(guilty)
        for place, token, log_prob in zip(places, drawn.tokens, drawn.log_probs, strict=True):
            try:
                done = self._taken(place, token, log_prob, drawn.likeliest.get(place))
            except Exception as error:  # noqa: BLE001  the row's own: what hears or spells it
                done = self._failed(self.rows[place], error)
            if done:
                finished.append(done)
                leaving.append(place)
        self._remove(leaving)
        return finished

    def _raised_in_drawing(self, hidden: Tensor, places: Sequence[int]) -> dict[int, Exception]:
        """What rows raise when each token is drawn alone, by their places."""
        guilty: dict[int, Exception] = {}
        for offset, place in enumerate(places):
            try:
                self._drawn(hidden[offset : offset + 1], [place])
            except Exception as error:  # noqa: BLE001  whatever it is
                guilty[place] = error
        return guilty

    def _drawn(self, hidden: Tensor, places: Sequence[int]) -> _Drawn:
        """Draw a token for the rows at ``places``. Nothing of a row changes, so that it can be done again."""
        rows = [self.rows[place] for place in places]
        options = [row.sampling for row in rows]
        device = self.backbone.device
        at = slice(places[0], places[-1] + 1) if isinstance(places, range) else sent(np.array(places), device)
        plain = all(option.temperature in (0.0, 1.0) for option in options)
        logits = self.backbone.logits(hidden, None if plain else self.temperatures[at])
        texts = [self.texts.get(id(row)) for row in rows] if self.texts else []
        if self.holding and any(texts):
            self.holding.hold_(logits, texts)
        next_ones = [row.uniforms[len(self.tokens[place])] for place, row in zip(places, rows, strict=True)]
        uniforms = sent(np.array(next_ones, np.float32), device)
        greedy = self.greedy[at] if any(option.temperature == 0.0 for option in options) else None
        ids, log_probs = draw(logits, uniforms, greedy, allowed_tokens(logits, options))
        likeliest = self._likeliest(logits, ids, log_probs, rows)
        self.last[at] = ids
        numbers, said, *others = (
            found.tolist() for found in read_all([ids, log_probs, *likeliest])
        )  # all that is waited for
        asking = [place for place, row in zip(places, rows, strict=True) if id(row) in self.alternatives]
        pairs = zip(asking, others[::2], others[1::2], strict=True)
        return _Drawn(list(map(int, numbers)), said, {place: _finite(ids, values) for place, ids, values in pairs})

    def _taken(self, place: int, token: int, log_prob: float, likeliest: Alternatives | None) -> Finished | None:
        """A row's next token is this one → the row, where it is its last."""
        row = self.rows[place]
        if likeliest is not None:
            self.alternatives[id(row)].append(likeliest)
        text = self.texts.get(id(row))
        if text:
            text.take(token)
        if teller := self.tellers.get(id(row)):
            teller(token, log_prob, likeliest or ())
        stops = token in self.stop_ids
        self.tokens[place].append(token)
        self.log_probs[place].append(log_prob)
        full = len(self.tokens[place]) >= row.sampling.max_new_tokens
        ending = self.endings.get(id(row))
        by_string = ending is not None and not stops and ending.take(token)
        if stops or full or by_string or (text and text.problem):
            return self._finish(place, "stop" if stops or by_string else "length")
        return None

    def _failed(self, row: Row, error: Exception) -> Finished:
        """A row that could not be sampled is finished, and the log says why."""
        self._forget(row)
        logging.getLogger("marft").error(
            "a row could not be sampled, and is left out: %s", one_line(raised(error)), exc_info=error
        )
        return Finished.failed(row, error)

    def _likeliest(self, shifted: Tensor, drawn: Tensor, log_probs: Tensor, rows: Sequence[Row]) -> list[Tensor]:
        """The likeliest tokens of each row that asks for them, and then their log-probs.

        Args:
            shifted: logits of the rows, which :func:`draw` has used up, [B, V].
            drawn: tokens whose log-probs are known, [B].
        """
        found: list[Tensor] = []
        for offset, row in enumerate(rows if self.alternatives else ()):
            if id(row) in self.alternatives:
                mine = shifted[offset]
                values, ids = (mine - (mine.gather(0, drawn[offset : offset + 1]) - log_probs[offset])).topk(
                    min(row.sampling.alternatives, len(mine))
                )
                found += ids, values
        return found

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


def _finite(ids: Sequence[float], values: Sequence[float]) -> Alternatives:
    """Tokens and log-probs, but those that are impossible."""
    return tuple((int(token), value) for token, value in zip(ids, values, strict=True) if math.isfinite(value))


def _to_listener(listener: Callable[[int], None] | None) -> Teller:
    assert listener is not None
    return lambda token, log_prob, likeliest: listener(token)  # noqa: ARG005
