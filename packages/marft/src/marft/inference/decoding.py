"""Continuous batching on one backbone: requests join at each step and leave right after their last token.

Every step samples one token for each row. Rows of different policies share the batch.
"""

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
Alternatives = tuple[tuple[int, float], ...]  # token ids and log-probabilities, likeliest first
# callback per token: the token, its log-probability, the likeliest alternatives
Teller = Callable[[int, float, Alternatives], None]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Sampling request: prompt and one uniform number per token."""

    adapter: str | None
    prompt: TokenIds  # [T]
    sampling: Sampling
    uniforms: np.ndarray  # [max_new_tokens], float32 in [0, 1)
    tasks: str = ""  # pass over tasks; cached prefixes are shared only within one pass
    teller: Teller | None = None  # callback that replaces the listener of ``sampling``


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Result for one row: sampled tokens or an error."""

    row: Row
    tokens: TokenIds  # [T]
    log_probs: LogProbs  # [T]
    finish: Finish
    masks: Masks | None = None
    forced: tuple[int, ...] = ()  # positions where the grammar allowed exactly one token
    problem: str = ""  # why the grammar could not be enforced; "" if it was
    alternatives: tuple[Alternatives, ...] = ()  # per token, if requested
    error: Exception | None = None  # error raised for this row; the row then has no tokens

    @staticmethod
    def failed(row: Row, error: Exception) -> Finished:
        """Return the result for a row with a sampling error."""
        return Finished(row, np.empty(0, np.int32), np.empty(0, np.float32), "length", error=error)


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Next tokens for a set of rows."""

    tokens: list[int]
    log_probs: list[float]
    likeliest: dict[int, Alternatives]  # by batch index, for rows that request alternatives


class RunningBatch:
    """Running batch of rows; the live rows occupy slots 0..n-1 in every buffer.

    When a row finishes, the last row moves into its slot, so a finished row costs nothing from the next step on.

    A row with an error finishes with that error, and the other rows continue. An error that no single row causes is
    raised. The caller must then call :meth:`reset`.

    Args:
        stop_ids: tokens that end a turn.
        spell: factory of detokenizers, one per row, for stop strings.
        prefix_bytes: size limit of the prefix cache, in bytes; 0 disables the cache.
        holding: grammar masks; required if a row has a grammar.
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
        self.texts: dict[int, Text] = {}  # by id of the row, for rows with a grammar
        self.alternatives: dict[int, list[Alternatives]] = {}  # by id of the row, for rows that request alternatives
        self.tellers: dict[int, Teller] = {}  # by id of the row, for rows with a callback or a listener
        self.endings: dict[int, Ending] = {}  # by id of the row, for rows with stop strings
        self.adapters: list[str | None] = []
        self.tokens: list[list[int]] = []  # [n] sampled tokens per row; the last one is not in the KV cache yet
        self.log_probs: list[list[float]] = []  # [n] log-probabilities of these tokens
        self.last = torch.empty(0, dtype=torch.long, device=device)  # [n] last token per row, on the device
        self.temperatures = torch.empty(0, device=device)  # [n]
        self.greedy = torch.empty(0, dtype=torch.bool, device=device)  # [n]

    def __len__(self) -> int:
        return len(self.rows)

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> list[Finished]:
        """Prefill rows and sample their first token; return the rows that finish.

        Rows with the same pass, adapter and prompt share one prefill.
        """
        finished = []
        alike: dict[tuple[str, str | None, bytes], list[Row]] = {}
        for row in rows:
            try:
                self._begin(row)
            except Exception as error:  # noqa: BLE001  error of this row
                finished.append(self._failed(row, error))
            else:
                alike.setdefault((row.tasks, row.adapter, row.prompt.tobytes()), []).append(row)
        for some in in_batches(list(alike.values()), lambda same: len(same[0].prompt), PREFILL_TOKENS):
            finished += self._take_in(some)
        return finished

    def _take_in(self, groups: Sequence[Sequence[Row]]) -> list[Finished]:
        """Prefill groups of equal rows together. If this fails, prefill each group separately."""
        try:
            hidden = self._prefill(groups)
        except Exception as error:  # noqa: BLE001  error of one group or of all groups
            if len(groups) > 1:
                return [done for same in groups for done in self._take_in([same])]
            return [self._failed(row, error) for row in groups[0]]
        rows = [row for same in groups for row in same]
        self._append(rows)
        return self._sample(hidden, range(len(self.rows) - len(rows), len(self.rows)))

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Sample a token for every row; return the finished rows.

        Raises:
            Exception: the forward fails, but no single row causes the failure.
        """
        try:
            cached = [self._cached(index) for index in range(len(self.rows))]
            hidden = self.running.step(self.last, cached, self.adapters)
        except Exception as error:  # noqa: BLE001  error of one row or of all rows
            return self._without_guilty(error)
        return self._sample(hidden, range(len(self.rows)))

    def _without_guilty(self, error: Exception) -> list[Finished]:
        """Remove the rows with a failing forward, then step the remaining rows.

        Raises:
            Exception: ``error``, if no row fails when it runs alone.
        """
        guilty = {index: why for index in range(len(self.rows)) if (why := self._raised_alone(index))}
        if not guilty:
            raise error
        finished = [self._failed(self.rows[index], why) for index, why in guilty.items()]
        self._remove(list(guilty))
        # the model's own cache may already contain the new token of some rows
        if not isinstance(self.running, CachedRows):
            self._read_again()
        return finished + (self.step() if self.rows else [])

    def _raised_alone(self, index: int) -> Exception | None:
        """Run the prefill of a single row; return its exception, or None on success."""
        ids = np.concatenate([self.rows[index].prompt, np.array(self.tokens[index], np.int32)])
        try:
            packed = PackedRows.of([ids], [self.adapters[index]], self.backbone.device)
            running_rows(self.backbone).prefill(packed, [[0]])
        except Exception as error:  # noqa: BLE001  any error counts
            return error
        return None

    def _read_again(self) -> None:
        """Rebuild the KV cache: prefill all rows into new buffers."""
        self.running = running_rows(self.backbone)
        self.prefill = Prefill(self.backbone, self.running, self.prefix_bytes, self.prefill.tokens)
        for index, row in enumerate(self.rows):
            ids = np.concatenate([row.prompt, np.array(self.tokens[index][:-1], np.int32)])
            self.running.prefill(PackedRows.of([ids], [row.adapter], self.backbone.device), [[index]])

    def _cached(self, index: int) -> int:
        """Return the number of cached tokens for a row before its next step."""
        return len(self.rows[index].prompt) + len(self.tokens[index]) - 1

    @torch.inference_mode()
    def abandon(self, rows: Sequence[Row]) -> None:
        """Remove cancelled rows."""
        gone = {id(row) for row in rows}
        for row in rows:
            self._forget(row)
        self._remove([index for index, row in enumerate(self.rows) if id(row) in gone])

    def reset(self) -> None:
        """Remove every row from the batch, in any state."""
        self.rows, self.adapters, self.tokens, self.log_probs = [], [], [], []
        for beside in (self.alternatives, self.tellers, self.endings, self.texts):
            beside.clear()
        self.last, self.temperatures, self.greedy = self.last[:0], self.temperatures[:0], self.greedy[:0]
        self.clear()

    def raised_by_a_plain_row(self) -> Exception | None:
        """Sample two tokens of a test row; return the exception, or None on success.

        The result tells a broken engine from a broken request.
        """
        batch = self if not self.rows else RunningBatch(self.backbone, tuple(self.stop_ids), self.spell)
        row = Row(None, np.zeros(1, np.int32), Sampling(max_new_tokens=2), np.zeros(2, np.float32))
        try:
            done = batch.admit([row])
            done += batch.step() if batch.rows else []
        except Exception as error:  # noqa: BLE001  any error counts
            done = [Finished.failed(row, error)]
        if batch is self:
            self.reset()
        return done[0].error

    def clear(self) -> None:
        """Clear the cached keys and values before a weight update. No row may be live."""
        assert not self.rows, "the weights change while rows are being sampled"
        if self.holding:
            self.holding.forget()
        self.running = running_rows(self.backbone)
        self.prefill = Prefill(self.backbone, self.running, self.prefix_bytes, self.prefill.tokens)

    def _prefill(self, groups: Sequence[Sequence[Row]]) -> Tensor:
        """Prefill the prompts for groups of equal rows; return each row's last hidden state, [B, D], in row order."""
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
        """Validate a row and create its per-row state.

        Raises:
            ValueError: a prompt, temperature, token limit, adapter or grammar is invalid.
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
        """Sample a token for the rows at ``places`` from their hidden states, and remove finished rows."""
        guilty: dict[int, Exception] = {}
        try:
            drawn = self._drawn(hidden, places)
        except Exception:  # error of one row or of all rows
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
            except Exception as error:  # noqa: BLE001  error of this row's callback or detokenizer
                done = self._failed(self.rows[place], error)
            if done:
                finished.append(done)
                leaving.append(place)
        self._remove(leaving)
        return finished

    def _raised_in_drawing(self, hidden: Tensor, places: Sequence[int]) -> dict[int, Exception]:
        """Draw each row separately; return the errors by batch index."""
        guilty: dict[int, Exception] = {}
        for offset, place in enumerate(places):
            try:
                self._drawn(hidden[offset : offset + 1], [place])
            except Exception as error:  # noqa: BLE001  any error counts
                guilty[place] = error
        return guilty

    def _drawn(self, hidden: Tensor, places: Sequence[int]) -> _Drawn:
        """Draw a token for the rows at ``places``. The call changes no row state, so it can be repeated."""
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
        )  # the only device synchronization
        asking = [place for place, row in zip(places, rows, strict=True) if id(row) in self.alternatives]
        pairs = zip(asking, others[::2], others[1::2], strict=True)
        return _Drawn(list(map(int, numbers)), said, {place: _finite(ids, values) for place, ids, values in pairs})

    def _taken(self, place: int, token: int, log_prob: float, likeliest: Alternatives | None) -> Finished | None:
        """Append a token to a row; return the finished row if this token is its last."""
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
        """Log the error, drop the row's state, and return the failed result."""
        self._forget(row)
        logging.getLogger("marft").error(
            "a row could not be sampled, and is left out: %s", one_line(raised(error)), exc_info=error
        )
        return Finished.failed(row, error)

    def _likeliest(self, shifted: Tensor, drawn: Tensor, log_probs: Tensor, rows: Sequence[Row]) -> list[Tensor]:
        """Return the likeliest token ids and then their log-probabilities, for each row with alternatives.

        Args:
            shifted: logits of the rows, [B, V], after :func:`draw` has modified them in place.
            drawn: drawn tokens with known log-probabilities, [B].
            log_probs: log-probabilities of the drawn tokens, [B].
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
        """Drop the per-row state."""
        for beside in (self.alternatives, self.tellers, self.endings, self.texts):
            beside.pop(id(row), None)

    def _remove(self, leaving: Sequence[int]) -> None:
        """Remove rows; live rows from the end move into the free slots."""
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
    """Pair tokens with log-probabilities, without impossible tokens."""
    return tuple((int(token), value) for token, value in zip(ids, values, strict=True) if math.isfinite(value))


def _to_listener(listener: Callable[[int], None] | None) -> Teller:
    assert listener is not None
    return lambda token, log_prob, likeliest: listener(token)  # noqa: ARG005
