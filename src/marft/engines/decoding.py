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
        self.is_stop = torch.zeros(backbone.head.weight.shape[0], dtype=torch.bool, device=device)
        self.is_stop[list(stop_ids)] = True
        self.running = running_rows(backbone)
        self.prefill = Prefill(backbone, self.running, prefix_bytes)
        self.rows: list[Row] = []
        self.texts: dict[int, Text] = {}  # by id of the row: of those that have a grammar
        self.alternatives: dict[int, list[Alternatives]] = {}  # by id of the row: of those that ask for them
        self.tellers: dict[int, Teller] = {}  # by id of the row: of those that have one, or a listener
        self.endings: dict[int, Ending] = {}  # by id of the row: of those that have stop strings
        self.adapters: list[str | None] = []
        self.lengths = torch.empty(0, dtype=torch.long, device=device)  # [n] cached tokens
        self.last = torch.empty(0, dtype=torch.long, device=device)  # [n] the token not cached yet
        self.made = torch.empty(0, dtype=torch.long, device=device)  # [n] tokens sampled so far
        self.limits = torch.empty(0, dtype=torch.long, device=device)  # [n] max_new_tokens
        self.temperatures = torch.empty(0, device=device)  # [n]
        self.greedy = torch.empty(0, dtype=torch.bool, device=device)  # [n]
        self.uniforms = torch.empty(0, 0, device=device)  # [n, most tokens]
        self.tokens = torch.empty(0, 0, dtype=torch.long, device=device)  # [n, most tokens]
        self.log_probs = torch.empty(0, 0, device=device)  # [n, most tokens]

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
        hidden = self.running.step(self.last, self.lengths, self.adapters)
        self.lengths = self.lengths + 1
        return self._sample(hidden, slice(0, len(self.rows)))

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
        return last[torch.from_numpy(back).to(last.device)]

    def _append(self, rows: Sequence[Row]) -> None:
        device = self.backbone.device
        options = [row.sampling for row in rows]
        limits = torch.tensor([option.max_new_tokens for option in options], device=device)
        most = max(self.uniforms.shape[1], int(limits.max()))
        uniforms = np.zeros((len(rows), most), np.float32)
        for index, row in enumerate(rows):
            uniforms[index, : len(row.uniforms)] = row.uniforms
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
        zeros = torch.zeros(len(rows), dtype=torch.long, device=device)
        self.lengths = torch.cat([self.lengths, torch.tensor([len(row.prompt) for row in rows], device=device)])
        self.last = torch.cat([self.last, zeros])
        self.made = torch.cat([self.made, zeros])
        self.limits = torch.cat([self.limits, limits])
        temperatures = torch.tensor([option.temperature or 1.0 for option in options], device=device)
        self.temperatures = torch.cat([self.temperatures, temperatures])
        self.greedy = torch.cat([self.greedy, torch.tensor([o.temperature == 0 for o in options], device=device)])
        self.uniforms = torch.cat([_widen(self.uniforms, most), torch.from_numpy(uniforms).to(device)])
        self.tokens = torch.cat([_widen(self.tokens, most), zeros[:, None].expand(-1, most)])
        self.log_probs = torch.cat([_widen(self.log_probs, most), torch.zeros(len(rows), most, device=device)])

    def _sample(self, hidden: Tensor, part: slice) -> list[Finished]:
        """Sample a token for the rows of ``part``, whose hidden states are given, and let finished rows go."""
        options = [row.sampling for row in self.rows[part]]
        plain = all(option.temperature in (0.0, 1.0) for option in options)
        logits = self.backbone.logits(hidden, None if plain else self.temperatures[part])
        texts = [self.texts.get(id(row)) for row in self.rows[part]] if self.texts else []
        if self.holding and any(texts):
            self.holding.hold_(logits, texts)
        made = self.made[part].clone()
        uniforms = self.uniforms[part].gather(1, made[:, None])[:, 0]
        greedy = self.greedy[part] if any(option.temperature == 0.0 for option in options) else None
        ids, log_probs = draw(logits, uniforms, greedy, allowed_tokens(logits, options))
        if self.alternatives:
            self._tell_alternatives(logits, logits.gather(1, ids[:, None])[:, 0] - log_probs, part)
        self.tokens[part].scatter_(1, made[:, None], ids[:, None])
        self.log_probs[part].scatter_(1, made[:, None], log_probs[:, None])
        self.last[part] = ids
        self.made[part] = made + 1
        stopped = self.is_stop[ids]
        full = made + 1 >= self.limits[part]
        ended = (stopped | full).tolist()
        stops = stopped.tolist()
        drawn = ids.tolist()
        for text, token in zip(texts, drawn if texts else (), strict=True):
            if text:
                text.take(token)
        if self.tellers:
            self._tell(drawn, log_probs.tolist(), part)
        finished, leaving = [], []
        for offset in range(len(ended)):
            index = part.start + offset
            ending = self.endings.get(id(self.rows[index]))
            by_string = ending is not None and not stops[offset] and ending.take(drawn[offset])
            text = self.texts.get(id(self.rows[index]))
            if ended[offset] or by_string or (text and text.problem):
                finished.append(self._finish(index, "stop" if stops[offset] or by_string else "length"))
                leaving.append(index)
        self._remove(leaving)
        return finished

    def _tell_alternatives(self, shifted: Tensor, normalisers: Tensor, part: slice) -> None:
        """Note the likeliest tokens of the rows that ask for them.

        Args:
            shifted: logits of the rows of ``part``, which :func:`draw` has used up, [B, V].
            normalisers: what each row's differ from log-probs by, [B].
        """
        for offset, row in enumerate(self.rows[part]):
            if id(row) in self.alternatives:
                values, ids = (shifted[offset] - normalisers[offset]).topk(row.sampling.alternatives)
                pairs = zip(ids.tolist(), values.tolist(), strict=True)
                self.alternatives[id(row)].append(
                    tuple((token, value) for token, value in pairs if math.isfinite(value))
                )

    def _tell(self, drawn: Sequence[int], log_probs: Sequence[float], part: slice) -> None:
        for row, token, log_prob in zip(self.rows[part], drawn, log_probs, strict=True):
            if teller := self.tellers.get(id(row)):
                likeliest = self.alternatives.get(id(row))
                teller(token, log_prob, likeliest[-1] if likeliest else ())

    def _finish(self, index: int, finish: Finish) -> Finished:
        made = int(self.made[index])
        tokens = self.tokens[index, :made].cpu().numpy().astype(np.int32)
        log_probs = self.log_probs[index, :made].cpu().numpy().astype(np.float32)
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
                self.running.move(len(order), index, int(self.lengths[last]))
                order[index] = last
        keep = torch.tensor(order, dtype=torch.long, device=self.backbone.device)
        self.rows = [self.rows[index] for index in order]
        self.adapters = [row.adapter for row in self.rows]
        for name in ("lengths", "last", "made", "limits", "temperatures", "greedy", "uniforms", "tokens", "log_probs"):
            setattr(self, name, getattr(self, name)[keep])


def _to_listener(listener: Callable[[int], None] | None) -> Teller:
    assert listener is not None
    return lambda token, log_prob, likeliest: listener(token)  # noqa: ARG005


def _widen(buffer: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(buffer, (0, columns - buffer.shape[1]))
