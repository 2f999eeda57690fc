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

from marft.agents.streaming import Detokenizer
from marft.common.texts import format_error, single_line
from marft.common.token_data import GrammarMasks
from marft.common.types import FinishReason, LogProbs, SamplingParams, TokenIds
from marft.inference.detokenizer import StopStringChecker
from marft.inference.grammar_masking import GrammarMasker, GrammarState
from marft.inference.prefill import Prefill, PrefillRequest
from marft.inference.sampling import sample_tokens, top_k_top_p_mask
from marft.models.backbone import Backbone
from marft.models.batches import split_batches
from marft.models.decode_cache import PackedDecodeCache, new_decode_cache
from marft.models.devices import read_tensors, to_device
from marft.models.packed_rows import PackedRows

PREFILL_TOKENS = 8192  # in one forward
Alternatives = tuple[tuple[int, float], ...]  # token ids and log-probabilities, likeliest first
# callback per token: the token, its log-probability, the likeliest alternatives
TokenCallback = Callable[[int, float, Alternatives], None]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Sampling request: prompt and one uniform number per token."""

    adapter: str | None
    prompt: TokenIds  # [T]
    sampling: SamplingParams
    uniforms: np.ndarray  # [max_new_tokens], float32 in [0, 1)
    task_pass: str = ""  # pass over tasks; cached prefixes are shared only within one pass
    token_callback: TokenCallback | None = None  # callback that replaces the listener of ``sampling``


@dataclass(frozen=True, slots=True, eq=False)
class RowResult:
    """Result for one row: sampled tokens or an error."""

    row: Row
    tokens: TokenIds  # [T]
    log_probs: LogProbs  # [T]
    finish: FinishReason
    masks: GrammarMasks | None = None
    forced: tuple[int, ...] = ()  # positions where the grammar allowed exactly one token
    problem: str = ""  # why the grammar could not be enforced; "" if it was
    alternatives: tuple[Alternatives, ...] = ()  # per token, if requested
    error: Exception | None = None  # error raised for this row; the row then has no tokens

    @staticmethod
    def failed(row: Row, error: Exception) -> RowResult:
        """Return the result for a row with a sampling error."""
        return RowResult(row, np.empty(0, np.int32), np.empty(0, np.float32), "length", error=error)


@dataclass(frozen=True, slots=True, eq=False)
class _SampledTokens:
    """Next tokens for a set of rows."""

    tokens: list[int]
    log_probs: list[float]
    alternatives: dict[int, Alternatives]  # by batch index, for rows that request alternatives


class RunningBatch:
    """Running batch of rows; the live rows occupy slots 0..n-1 in every buffer.

    When a row finishes, the last row moves into its slot, so a finished row costs nothing from the next step on.

    A row with an error finishes with that error, and the other rows continue. An error that no single row causes is
    raised. The caller must then call :meth:`reset`.

    Args:
        stop_ids: tokens that end a turn.
        make_detokenizer: factory of detokenizers, one per row, for stop strings.
        prefix_bytes: size limit of the prefix cache, in bytes; 0 disables the cache.
        grammar_masker: grammar masks; required if a row has a grammar.
    """

    def __init__(
        self,
        backbone: Backbone,
        stop_ids: Sequence[int],
        make_detokenizer: Callable[[], Detokenizer],
        prefix_bytes: int = 0,
        grammar_masker: GrammarMasker | None = None,
    ) -> None:
        self.backbone, self.make_detokenizer, self.prefix_bytes, self.grammar_masker = (
            backbone,
            make_detokenizer,
            prefix_bytes,
            grammar_masker,
        )
        device = backbone.device
        self.stop_ids = frozenset(stop_ids)
        self.decode_cache = new_decode_cache(backbone)
        self.prefill = Prefill(backbone, self.decode_cache, prefix_bytes)
        self.rows: list[Row] = []
        self.grammar_states: dict[int, GrammarState] = {}  # by id of the row, for rows with a grammar
        self.alternatives: dict[int, list[Alternatives]] = {}  # by id of the row, for rows that request alternatives
        self.token_callbacks: dict[int, TokenCallback] = {}  # by id of the row, for rows with a callback or a listener
        self.stop_checkers: dict[int, StopStringChecker] = {}  # by id of the row, for rows with stop strings
        self.adapters: list[str | None] = []
        self.tokens: list[list[int]] = []  # [n] sampled tokens per row; the last one is not in the KV cache yet
        self.log_probs: list[list[float]] = []  # [n] log-probabilities of these tokens
        self.last_tokens = torch.empty(0, dtype=torch.long, device=device)  # [n] last token per row, on the device
        self.temperatures = torch.empty(0, device=device)  # [n]
        self.greedy = torch.empty(0, dtype=torch.bool, device=device)  # [n]

    def __len__(self) -> int:
        return len(self.rows)

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> list[RowResult]:
        """Prefill rows and sample their first token; return the rows that finish.

        Rows with the same pass, adapter and prompt share one prefill.
        """
        finished = []
        groups: dict[tuple[str, str | None, bytes], list[Row]] = {}
        for row in rows:
            try:
                self._init_row(row)
            except Exception as error:  # noqa: BLE001  error of this row
                finished.append(self._fail_row(row, error))
            else:
                groups.setdefault((row.task_pass, row.adapter, row.prompt.tobytes()), []).append(row)
        for batch in split_batches(list(groups.values()), lambda same: len(same[0].prompt), PREFILL_TOKENS):
            finished += self._admit_groups(batch)
        return finished

    def _admit_groups(self, groups: Sequence[Sequence[Row]]) -> list[RowResult]:
        """Prefill groups of equal rows together. If this fails, prefill each group separately."""
        try:
            hidden = self._prefill(groups)
        except Exception as error:  # noqa: BLE001  error of one group or of all groups
            if len(groups) > 1:
                return [result for same in groups for result in self._admit_groups([same])]
            return [self._fail_row(row, error) for row in groups[0]]
        rows = [row for same in groups for row in same]
        self._append(rows)
        return self._sample(hidden, range(len(self.rows) - len(rows), len(self.rows)))

    @torch.inference_mode()
    def step(self) -> list[RowResult]:
        """Sample a token for every row; return the finished rows.

        Raises:
            Exception: the forward fails, but no single row causes the failure.
        """
        try:
            cached = [self._cached_tokens(index) for index in range(len(self.rows))]
            hidden = self.decode_cache.step(self.last_tokens, cached, self.adapters)
        except Exception as error:  # noqa: BLE001  error of one row or of all rows
            return self._drop_failing_rows(error)
        return self._sample(hidden, range(len(self.rows)))

    def _drop_failing_rows(self, error: Exception) -> list[RowResult]:
        """Remove the rows with a failing forward, then step the remaining rows.

        Raises:
            Exception: ``error``, if no row fails when it runs alone.
        """
        failing = {index: row_error for index in range(len(self.rows)) if (row_error := self._run_alone(index))}
        if not failing:
            raise error
        finished = [self._fail_row(self.rows[index], row_error) for index, row_error in failing.items()]
        self._remove_rows(list(failing))
        # the model's own cache may already contain the new token of some rows
        if not isinstance(self.decode_cache, PackedDecodeCache):
            self._rebuild_cache()
        return finished + (self.step() if self.rows else [])

    def _run_alone(self, index: int) -> Exception | None:
        """Run the prefill of a single row; return its exception, or None on success."""
        ids = np.concatenate([self.rows[index].prompt, np.array(self.tokens[index], np.int32)])
        try:
            packed = PackedRows.from_rows([ids], [self.adapters[index]], self.backbone.device)
            new_decode_cache(self.backbone).prefill(packed, [[0]])
        except Exception as error:  # noqa: BLE001  any error counts
            return error
        return None

    def _rebuild_cache(self) -> None:
        """Rebuild the KV cache: prefill all rows into new buffers."""
        self.decode_cache = new_decode_cache(self.backbone)
        self.prefill = Prefill(self.backbone, self.decode_cache, self.prefix_bytes, self.prefill.tokens)
        for index, row in enumerate(self.rows):
            ids = np.concatenate([row.prompt, np.array(self.tokens[index][:-1], np.int32)])
            self.decode_cache.prefill(PackedRows.from_rows([ids], [row.adapter], self.backbone.device), [[index]])

    def _cached_tokens(self, index: int) -> int:
        """Return the number of cached tokens for a row before its next step."""
        return len(self.rows[index].prompt) + len(self.tokens[index]) - 1

    @torch.inference_mode()
    def abort(self, rows: Sequence[Row]) -> None:
        """Remove cancelled rows."""
        aborted = {id(row) for row in rows}
        for row in rows:
            self._drop_row_state(row)
        self._remove_rows([index for index, row in enumerate(self.rows) if id(row) in aborted])

    def reset(self) -> None:
        """Remove every row from the batch, in any state."""
        self.rows, self.adapters, self.tokens, self.log_probs = [], [], [], []
        for row_state in (self.alternatives, self.token_callbacks, self.stop_checkers, self.grammar_states):
            row_state.clear()
        self.last_tokens, self.temperatures, self.greedy = self.last_tokens[:0], self.temperatures[:0], self.greedy[:0]
        self.clear_cache()

    def run_health_check(self) -> Exception | None:
        """Sample two tokens of a test row; return the exception, or None on success.

        The result tells a broken engine from a broken request.
        """
        batch = self if not self.rows else RunningBatch(self.backbone, tuple(self.stop_ids), self.make_detokenizer)
        row = Row(None, np.zeros(1, np.int32), SamplingParams(max_new_tokens=2), np.zeros(2, np.float32))
        try:
            results = batch.admit([row])
            results += batch.step() if batch.rows else []
        except Exception as error:  # noqa: BLE001  any error counts
            results = [RowResult.failed(row, error)]
        if batch is self:
            self.reset()
        return results[0].error

    def clear_cache(self) -> None:
        """Clear the cached keys and values before a weight update. No row may be live."""
        assert not self.rows, "the weights change while rows are being sampled"
        if self.grammar_masker:
            self.grammar_masker.clear_cache()
        self.decode_cache = new_decode_cache(self.backbone)
        self.prefill = Prefill(self.backbone, self.decode_cache, self.prefix_bytes, self.prefill.tokens)

    def _prefill(self, groups: Sequence[Sequence[Row]]) -> Tensor:
        """Prefill the prompts for groups of equal rows; return each row's last hidden state, [B, D], in row order."""
        requests, slot = [], len(self.rows)
        for same in groups:
            slots = list(range(slot, slot + len(same)))
            requests.append(PrefillRequest(same[0].task_pass, same[0].adapter, same[0].prompt, slots))
            slot += len(same)
        order = sorted(range(len(groups)), key=lambda number: requests[number].adapter or "")
        last = self.prefill.run([requests[number] for number in order])
        row_order = np.repeat(np.argsort(order), [len(same) for same in groups])
        return last[to_device(row_order, last.device)]

    def _init_row(self, row: Row) -> None:
        """Validate a row and create its per-row state.

        Raises:
            ValueError: a prompt, temperature, token limit, adapter or grammar is invalid.
        """
        vocabulary, sampling = len(self.backbone.head.weight), row.sampling
        if not len(row.prompt) or int(row.prompt.min()) < 0 or int(row.prompt.max()) >= vocabulary:
            raise ValueError(f"a prompt has at least one id, and ids below {vocabulary} alone")
        if not 0 <= sampling.temperature < math.inf or not 1 <= sampling.max_new_tokens <= len(row.uniforms):
            raise ValueError("the temperature or the number of tokens is none that a row can be sampled with")
        self.backbone.check_adapter(row.adapter)
        if sampling.alternatives:
            self.alternatives[id(row)] = []
        if row.token_callback or sampling.on_token:
            self.token_callbacks[id(row)] = row.token_callback or _wrap_on_token(sampling.on_token)
        if sampling.stop:
            self.stop_checkers[id(row)] = StopStringChecker(self.make_detokenizer(), sampling.stop)
        if sampling.grammar:
            assert self.grammar_masker is not None, "a row has a grammar"
            self.grammar_states[id(row)] = self.grammar_masker.new_state(sampling.grammar)

    def _append(self, rows: Sequence[Row]) -> None:
        device = self.backbone.device
        self.rows = [*self.rows, *rows]
        self.adapters = [row.adapter for row in self.rows]
        self.tokens += [[] for _ in rows]
        self.log_probs += [[] for _ in rows]
        temperatures = np.array([row.sampling.temperature for row in rows], np.float32)
        greedy = temperatures == 0
        self.last_tokens = torch.cat([self.last_tokens, self.last_tokens.new_zeros(len(rows))])
        self.temperatures = torch.cat([self.temperatures, to_device(np.where(greedy, 1.0, temperatures), device)])
        self.greedy = torch.cat([self.greedy, to_device(greedy, device)])

    def _sample(self, hidden: Tensor, indices: Sequence[int]) -> list[RowResult]:
        """Sample a token for the rows at ``indices`` from their hidden states, and remove finished rows."""
        failing: dict[int, Exception] = {}
        try:
            sampled = self._sample_tokens(hidden, indices)
        except Exception:  # error of one row or of all rows
            failing = self._find_failing_rows(hidden, indices)
            if not failing:
                raise
            working = [offset for offset, index in enumerate(indices) if index not in failing]
            indices = [indices[offset] for offset in working]
            sampled = self._sample_tokens(hidden[working], indices) if indices else _SampledTokens([], [], {})
        finished = [self._fail_row(self.rows[index], row_error) for index, row_error in failing.items()]
        removed = list(failing)
        for index, token, log_prob in zip(indices, sampled.tokens, sampled.log_probs, strict=True):
            try:
                result = self._append_token(index, token, log_prob, sampled.alternatives.get(index))
            except Exception as error:  # noqa: BLE001  error of this row's callback or detokenizer
                result = self._fail_row(self.rows[index], error)
            if result:
                finished.append(result)
                removed.append(index)
        self._remove_rows(removed)
        return finished

    def _find_failing_rows(self, hidden: Tensor, indices: Sequence[int]) -> dict[int, Exception]:
        """Draw each row separately; return the errors by batch index."""
        failing: dict[int, Exception] = {}
        for offset, index in enumerate(indices):
            try:
                self._sample_tokens(hidden[offset : offset + 1], [index])
            except Exception as error:  # noqa: BLE001  any error counts
                failing[index] = error
        return failing

    def _sample_tokens(self, hidden: Tensor, indices: Sequence[int]) -> _SampledTokens:
        """Draw a token for the rows at ``indices``. The call changes no row state, so it can be repeated."""
        rows = [self.rows[index] for index in indices]
        options = [row.sampling for row in rows]
        device = self.backbone.device
        at = slice(indices[0], indices[-1] + 1) if isinstance(indices, range) else to_device(np.array(indices), device)
        plain = all(option.temperature in (0.0, 1.0) for option in options)
        logits = self.backbone.compute_logits(hidden, None if plain else self.temperatures[at])
        states = [self.grammar_states.get(id(row)) for row in rows] if self.grammar_states else []
        if self.grammar_masker and any(states):
            self.grammar_masker.mask_logits_(logits, states)
        next_uniforms = [row.uniforms[len(self.tokens[index])] for index, row in zip(indices, rows, strict=True)]
        uniforms = to_device(np.array(next_uniforms, np.float32), device)
        greedy = self.greedy[at] if any(option.temperature == 0.0 for option in options) else None
        ids, log_probs = sample_tokens(logits, uniforms, greedy, top_k_top_p_mask(logits, options))
        top_tensors = self._top_alternatives(logits, ids, log_probs, rows)
        self.last_tokens[at] = ids
        token_ids, token_log_probs, *top_values = (
            tensor.tolist() for tensor in read_tensors([ids, log_probs, *top_tensors])
        )  # the only device synchronization
        with_alternatives = [index for index, row in zip(indices, rows, strict=True) if id(row) in self.alternatives]
        pairs = zip(with_alternatives, top_values[::2], top_values[1::2], strict=True)
        return _SampledTokens(
            list(map(int, token_ids)),
            token_log_probs,
            {index: _pair_finite(ids, values) for index, ids, values in pairs},
        )

    def _append_token(
        self, index: int, token: int, log_prob: float, alternatives: Alternatives | None
    ) -> RowResult | None:
        """Append a token to a row; return the finished row if this token is its last."""
        row = self.rows[index]
        if alternatives is not None:
            self.alternatives[id(row)].append(alternatives)
        state = self.grammar_states.get(id(row))
        if state:
            state.add_token(token)
        if callback := self.token_callbacks.get(id(row)):
            callback(token, log_prob, alternatives or ())
        stops = token in self.stop_ids
        self.tokens[index].append(token)
        self.log_probs[index].append(log_prob)
        full = len(self.tokens[index]) >= row.sampling.max_new_tokens
        stop_checker = self.stop_checkers.get(id(row))
        by_string = stop_checker is not None and not stops and stop_checker.add_token(token)
        if stops or full or by_string or (state and state.problem):
            return self._finish_row(index, "stop" if stops or by_string else "length")
        return None

    def _fail_row(self, row: Row, error: Exception) -> RowResult:
        """Log the error, drop the row's state, and return the failed result."""
        self._drop_row_state(row)
        logging.getLogger("marft").error(
            "a row could not be sampled, and is left out: %s", single_line(format_error(error)), exc_info=error
        )
        return RowResult.failed(row, error)

    def _top_alternatives(
        self, logits: Tensor, sampled_ids: Tensor, log_probs: Tensor, rows: Sequence[Row]
    ) -> list[Tensor]:
        """Return the likeliest token ids and then their log-probabilities, for each row with alternatives.

        Args:
            logits: logits of the rows, [B, V], after :func:`sample_tokens` has modified them in place.
            sampled_ids: drawn tokens with known log-probabilities, [B].
            log_probs: log-probabilities of the drawn tokens, [B].
        """
        tensors: list[Tensor] = []
        for offset, row in enumerate(rows if self.alternatives else ()):
            if id(row) in self.alternatives:
                row_logits = logits[offset]
                values, ids = (
                    row_logits - (row_logits.gather(0, sampled_ids[offset : offset + 1]) - log_probs[offset])
                ).topk(min(row.sampling.alternatives, len(row_logits)))
                tensors += ids, values
        return tensors

    def _finish_row(self, index: int, finish: FinishReason) -> RowResult:
        tokens = np.array(self.tokens[index], np.int32)
        log_probs = np.array(self.log_probs[index], np.float32)
        row = self.rows[index]
        self.prefill.cache_row(row.task_pass, row.adapter, np.concatenate([row.prompt, tokens[:-1]]), index)
        result = RowResult(row, tokens, log_probs, finish, alternatives=tuple(self.alternatives.get(id(row), ())))
        state = self.grammar_states.get(id(row))
        self._drop_row_state(row)
        return (
            replace(result, masks=state.build_masks(), forced=tuple(state.forced), problem=state.problem)
            if state
            else result
        )

    def _drop_row_state(self, row: Row) -> None:
        """Drop the per-row state."""
        for row_state in (self.alternatives, self.token_callbacks, self.stop_checkers, self.grammar_states):
            row_state.pop(id(row), None)

    def _remove_rows(self, removed: Sequence[int]) -> None:
        """Remove rows; live rows from the end move into the free slots."""
        if not removed:
            return
        n = len(self.rows)
        order = list(range(n))
        for index in sorted(removed, reverse=True):
            last = order.pop()
            if index < len(order):
                self.decode_cache.move(len(order), index, self._cached_tokens(last))
                order[index] = last
        self.rows = [self.rows[index] for index in order]
        self.tokens = [self.tokens[index] for index in order]
        self.log_probs = [self.log_probs[index] for index in order]
        self.adapters = [row.adapter for row in self.rows]
        keep = to_device(np.array(order, np.int64), self.backbone.device)
        self.last_tokens, self.temperatures, self.greedy = (
            self.last_tokens[keep],
            self.temperatures[keep],
            self.greedy[keep],
        )


def _pair_finite(ids: Sequence[float], values: Sequence[float]) -> Alternatives:
    """Pair tokens with log-probabilities, without impossible tokens."""
    return tuple((int(token), value) for token, value in zip(ids, values, strict=True) if math.isfinite(value))


def _wrap_on_token(on_token: Callable[[int], None] | None) -> TokenCallback:
    assert on_token is not None
    return lambda token, log_prob, alternatives: on_token(token)  # noqa: ARG005
