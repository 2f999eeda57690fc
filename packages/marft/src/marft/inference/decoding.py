"""Continuous batching on one backbone: requests join at each step and leave right after their last token.

Every step samples one token for each row. Rows of different policies share the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft.agents.streaming import Detokenizer
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.texts import format_error, single_line
from marft.common.token_data import GrammarMasks, RoutedExperts
from marft.common.types import FinishReason, LogProbs, SamplingParams, TokenIds
from marft.inference.captured_decoding import CapturedDecoder, can_capture
from marft.inference.detokenizer import StopStringChecker
from marft.inference.grammar_masking import GrammarMasker, GrammarState
from marft.inference.prefill import Prefill, PrefillRequest
from marft.inference.sampling import sample_tokens, top_k_top_p_mask
from marft.models.backbone import Backbone
from marft.models.cuda_graphs import Graphs
from marft.models.decode_cache import PackedDecodeCache, new_decode_cache
from marft.models.devices import read_tensors, to_device
from marft.models.packed_rows import PackedRows, split_batches

logger = get_logger(__name__)
PREFILL_TOKENS = 8192  # in one forward
Alternatives = tuple[tuple[int, float], ...]  # token ids and log-probabilities, likeliest first
# callback per token: the token, its log-probability, the likeliest alternatives
_Sampled = tuple[int, float, Alternatives]  # a token, its log-probability, and the likeliest alternatives
TokenCallback = Callable[[int, float, Alternatives], None]


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRequest:
    """Request to sample one completion: the prompt and one uniform number per token."""

    adapter: str | None
    prompt: TokenIds  # [T]
    sampling: SamplingParams
    uniforms: np.ndarray  # [max_new_tokens], float32 in [0, 1)
    task_pass: str = ""  # pass over tasks; cached prefixes are shared only within one pass
    token_callback: TokenCallback | None = None  # callback that replaces the listener of ``sampling``


@dataclass(frozen=True, slots=True, eq=False)
class RowResult:
    """Result for one row: sampled tokens or an error."""

    row: DecodeRequest
    tokens: TokenIds  # [T]
    log_probs: LogProbs  # [T]
    finish: FinishReason
    masks: GrammarMasks | None = None
    forced: tuple[int, ...] = ()  # positions where the grammar allowed exactly one token
    problem: str = ""  # why the grammar could not be enforced; "" if it was
    alternatives: tuple[Alternatives, ...] = ()  # per token, if requested
    error: Exception | None = None  # error raised for this row; the row then has no tokens
    experts: RoutedExperts | None = None  # of the prompt and of the tokens but the last, if recorded

    @staticmethod
    def failed(row: DecodeRequest, error: Exception) -> RowResult:
        """Return the result for a row with a sampling error."""
        return RowResult(row, np.empty(0, np.int32), np.empty(0, np.float32), "length", error=error)


@dataclass(slots=True, eq=False)
class _LiveRow:
    """Request in the running batch, with its sampled tokens and what watches them."""

    row: DecodeRequest
    grammar: GrammarState | None
    stop_checker: StopStringChecker | None
    token_callback: TokenCallback | None
    tokens: list[int] = field(default_factory=list)  # the last one is not in the KV cache yet
    log_probs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)  # empty unless requested
    experts: list[Tensor] = field(default_factory=list)  # [tokens, L, K] of each forward, if recorded

    @property
    def cached_tokens(self) -> int:
        """Number of cached tokens before the next step."""
        return len(self.row.prompt) + len(self.tokens) - 1

    def ids(self, stop: int | None = None) -> TokenIds:
        """Return the ids of the prompt and of the sampled tokens up to ``stop``."""
        return np.concatenate([self.row.prompt, np.array(self.tokens[:stop], np.int32)])

    def add_token(self, token: int, log_prob: float, alternatives: Alternatives, stops: bool) -> FinishReason | None:
        """Add a sampled token; return why the row ends with it, if it does.

        Args:
            stops: whether the token ends a turn.
        """
        if self.row.sampling.alternatives:
            self.alternatives.append(alternatives)
        if self.grammar:
            self.grammar.add_token(token)
        if self.token_callback:
            self.token_callback(token, log_prob, alternatives)
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        by_string = self.stop_checker is not None and not stops and self.stop_checker.add_token(token)
        if stops or by_string:
            return "stop"
        full = len(self.tokens) >= self.row.sampling.max_new_tokens
        return "length" if full or (self.grammar and self.grammar.problem) else None

    def result(self, finish: FinishReason) -> RowResult:
        """Return the result of the finished row."""
        tokens, log_probs = np.array(self.tokens, np.int32), np.array(self.log_probs, np.float32)
        experts = RoutedExperts.from_table(torch.cat(self.experts).cpu().numpy()) if self.experts else None
        result = RowResult(self.row, tokens, log_probs, finish, alternatives=tuple(self.alternatives), experts=experts)
        if self.grammar is None:
            return result
        grammar = self.grammar
        return replace(result, masks=grammar.build_masks(), forced=tuple(grammar.forced), problem=grammar.problem)


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
        graphs: captured graphs of the device; None runs every decoding step operation by operation.
    """

    def __init__(
        self,
        backbone: Backbone,
        stop_ids: Sequence[int],
        make_detokenizer: Callable[[], Detokenizer],
        prefix_bytes: int = 0,
        grammar_masker: GrammarMasker | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.backbone, self.make_detokenizer = backbone, make_detokenizer
        self.prefix_bytes, self.grammar_masker = prefix_bytes, grammar_masker
        device = backbone.device
        self.stop_ids = frozenset(stop_ids)
        self.decode_cache = new_decode_cache(backbone)
        self.prefill = Prefill(backbone, self.decode_cache, prefix_bytes)
        self.live: list[_LiveRow] = []  # [n]
        self.adapters: list[str | None] = []  # [n]
        self.last_tokens = torch.empty(0, dtype=torch.long, device=device)  # [n] last token per row, on the device
        self.temperatures = torch.empty(0, device=device)  # [n]
        self.greedy = torch.empty(0, dtype=torch.bool, device=device)  # [n]
        self.captured = CapturedDecoder(backbone, graphs) if graphs is not None and can_capture(backbone) else None
        # rows in the buffers of ``captured``, and the first row's number of cached tokens
        self._captured_rows: tuple[list[_LiveRow], int] | None = None

    def __len__(self) -> int:
        return len(self.live)

    @property
    def rows(self) -> list[DecodeRequest]:
        """Live rows."""
        return [live.row for live in self.live]

    @torch.inference_mode()
    def admit(self, rows: Sequence[DecodeRequest]) -> list[RowResult]:
        """Prefill rows and sample their first token; return the rows that finish.

        Rows with the same pass, adapter and prompt share one prefill.
        """
        finished = []
        groups: dict[tuple[str, str | None, bytes], list[_LiveRow]] = {}
        for row in rows:
            try:
                live = self._start_row(row)
            except Exception as error:  # noqa: BLE001  error of this row
                finished.append(_fail_row(row, error))
            else:
                groups.setdefault((row.task_pass, row.adapter, row.prompt.tobytes()), []).append(live)
        for batch in split_batches(list(groups.values()), lambda same: len(same[0].row.prompt), PREFILL_TOKENS):
            finished += self._admit_groups(batch)
        return finished

    def _admit_groups(self, groups: Sequence[Sequence[_LiveRow]]) -> list[RowResult]:
        """Prefill groups of equal rows together. If this fails, prefill each group separately."""
        try:
            hidden = self._prefill(groups)
        except Exception as error:  # noqa: BLE001  error of one group or of all groups
            if len(groups) > 1:
                return [result for same in groups for result in self._admit_groups([same])]
            return [_fail_row(live.row, error) for live in groups[0]]
        before = len(self.live)
        self._append([live for same in groups for live in same])
        return self._sample(hidden, range(before, len(self.live)))

    @torch.inference_mode()
    def step(self) -> list[RowResult]:
        """Sample a token for every row; return the finished rows.

        Raises:
            Exception: the forward fails, but no single row causes the failure.
        """
        if self.captured is not None and not self.captured.failed and (sampled := self._captured_step(self.captured)):
            return self._record(range(len(self.live)), sampled)
        try:
            cached = [live.cached_tokens for live in self.live]
            with self.backbone.record_experts() as log:
                hidden = self.decode_cache.step(self.last_tokens, cached, self.adapters)
        except Exception as error:  # noqa: BLE001  error of one row or of all rows
            return self._drop_failing_rows(error)
        if (experts := log.table()) is not None:
            for live, selected in zip(self.live, experts.split(1), strict=True):
                live.experts.append(selected)
        return self._sample(hidden, range(len(self.live)))

    def _captured_step(self, captured: CapturedDecoder) -> list[_Sampled]:
        """Sample a token for every row with a captured step; return nothing if the step cannot be captured."""
        assert isinstance(self.decode_cache, PackedDecodeCache)
        options = [live.row.sampling for live in self.live]
        if any(option.alternatives for option in options):
            return []
        try:
            allowed = self._allowed_tokens()
        except Exception:  # noqa: BLE001  the general step finds the row with this error
            return []
        lengths = [live.cached_tokens for live in self.live]
        try:
            rows, cached = self._captured_rows or (None, 0)
            if rows is not self.live or cached != lengths[0]:  # rows have joined or left, or a general step has run
                captured.set_rows(options, self.adapters, lengths, self.last_tokens)
            self.last_tokens, self._captured_rows = captured.ids, (self.live, lengths[0] + 1)
            drawn = captured.step(self.decode_cache.kv_cache, max(lengths), self._next_uniforms(self.live), allowed)
        except Exception as error:  # noqa: BLE001  any operation may be one that cannot be captured
            captured.fail(error)
            return []
        return [(token, log_prob, ()) for token, log_prob in zip(*drawn, strict=True)]

    def _allowed_tokens(self) -> npt.NDArray[np.uint8] | None:
        """Return the packed grammar mask of each row, [n, bytes]; None without grammars."""
        states = [(index, live.grammar) for index, live in enumerate(self.live) if live.grammar]
        if not states or self.grammar_masker is None:
            return None
        bits = self.grammar_masker.set_masks([state for _, state in states])
        allowed = np.full((len(self.live), bits.shape[1]), 0xFF, np.uint8)
        allowed[[index for index, _ in states]] = bits
        return allowed

    def _drop_failing_rows(self, error: Exception) -> list[RowResult]:
        """Remove the rows with a failing forward, then step the remaining rows.

        Raises:
            Exception: ``error``, if no row fails when it runs alone.
        """
        failing = {index: row_error for index, live in enumerate(self.live) if (row_error := self._run_alone(live))}
        if not failing:
            raise error
        finished = [_fail_row(self.live[index].row, row_error) for index, row_error in failing.items()]
        self._remove_rows(list(failing))
        # states, and a model's own cache, may already contain the new token of some rows
        if self.backbone.recurrent or not isinstance(self.decode_cache, PackedDecodeCache):
            self._rebuild_cache()
        return finished + (self.step() if self.live else [])

    def _run_alone(self, live: _LiveRow) -> Exception | None:
        """Run the prefill of a single row; return its exception, or None on success."""
        try:
            packed = PackedRows.from_rows([live.ids()], [live.row.adapter], self.backbone.device)
            new_decode_cache(self.backbone).prefill(packed, [[0]])
        except Exception as error:  # noqa: BLE001  any error counts
            return error
        return None

    def _rebuild_cache(self) -> None:
        """Rebuild the KV cache: prefill all rows into new buffers."""
        self._new_cache()
        for index, live in enumerate(self.live):
            packed = PackedRows.from_rows([live.ids(-1)], [live.row.adapter], self.backbone.device)
            self.decode_cache.prefill(packed, [[index]])

    def _new_cache(self) -> None:
        self.decode_cache = new_decode_cache(self.backbone)
        self.prefill = Prefill(self.backbone, self.decode_cache, self.prefix_bytes, self.prefill.tokens)

    @torch.inference_mode()
    def abort(self, rows: Sequence[DecodeRequest]) -> None:
        """Remove cancelled rows."""
        aborted = {id(row) for row in rows}
        self._remove_rows([index for index, live in enumerate(self.live) if id(live.row) in aborted])

    def reset(self) -> None:
        """Remove every row from the batch, in any state."""
        self.live, self.adapters = [], []
        self.last_tokens, self.temperatures, self.greedy = self.last_tokens[:0], self.temperatures[:0], self.greedy[:0]
        if self.captured is not None:
            self.captured.release()
        self._clear_masks()
        self._new_cache()

    def run_health_check(self) -> Exception | None:
        """Sample two tokens of a test row; return the exception, or None on success.

        The result tells a broken engine from a broken request.
        """
        batch = self if not self.live else RunningBatch(self.backbone, tuple(self.stop_ids), self.make_detokenizer)
        row = DecodeRequest(None, np.zeros(1, np.int32), SamplingParams(max_new_tokens=2), np.zeros(2, np.float32))
        try:
            results = batch.admit([row])
            results += batch.step() if batch.live else []
        except Exception as error:  # noqa: BLE001  any error counts
            results = [RowResult.failed(row, error)]
        if batch is self:
            self.reset()
        return results[0].error

    def clear_cache(self) -> None:
        """Free the cached keys and values after a weight update, with the graphs that contain them. No row may be live.

        The learner needs this memory if it uses the same GPU.
        """
        assert not self.live, "the weights change while rows are being sampled"
        self._clear_masks()
        if self.captured is not None:
            self.captured.release()
        self._new_cache()

    def _clear_masks(self) -> None:
        if self.grammar_masker:
            self.grammar_masker.clear_cache()

    def _prefill(self, groups: Sequence[Sequence[_LiveRow]]) -> Tensor:
        """Prefill the prompts for groups of equal rows; return each row's last hidden state, [B, D], in row order."""
        requests, slot = [], len(self.live)
        for same in groups:
            row, slots = same[0].row, list(range(slot, slot + len(same)))
            requests.append(PrefillRequest(row.task_pass, row.adapter, row.prompt, slots))
            slot += len(same)
        order = sorted(range(len(groups)), key=lambda number: requests[number].adapter or "")
        last, experts = self.prefill.run([requests[number] for number in order])
        for number, selected in zip(order, experts, strict=True):
            for live in groups[number]:
                live.experts = [] if selected is None else [selected]
        row_order = np.repeat(np.argsort(order), [len(same) for same in groups])
        return last[to_device(row_order, last.device)]

    def _start_row(self, row: DecodeRequest) -> _LiveRow:
        """Validate a row and start its checks and callbacks.

        Raises:
            UserError: a prompt, temperature, token limit, adapter or grammar is invalid.
        """
        vocabulary, sampling = len(self.backbone.head.weight), row.sampling
        if not len(row.prompt) or int(row.prompt.min()) < 0 or int(row.prompt.max()) >= vocabulary:
            raise UserError(f"a prompt has at least one id, and ids below {vocabulary} alone")
        if not 0 <= sampling.temperature < math.inf or not 1 <= sampling.max_new_tokens <= len(row.uniforms):
            raise UserError("the temperature or the number of tokens is none that a row can be sampled with")
        self.backbone.check_adapter(row.adapter)
        stop_checker = StopStringChecker(self.make_detokenizer(), sampling.stop) if sampling.stop else None
        grammar = None
        if sampling.grammar:
            assert self.grammar_masker is not None, "a row has a grammar"
            grammar = self.grammar_masker.new_state(sampling.grammar)
        return _LiveRow(row, grammar, stop_checker, row.token_callback or _wrap_on_token(sampling.on_token))

    def _append(self, rows: Sequence[_LiveRow]) -> None:
        device = self.backbone.device
        self.live = [*self.live, *rows]
        self.adapters = [live.row.adapter for live in self.live]
        temperatures = np.array([live.row.sampling.temperature for live in rows], np.float32)
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
            sampled = self._sample_tokens(hidden[working], indices) if indices else []
        return self._record(indices, sampled, failing)

    def _record(
        self,
        indices: Sequence[int],
        sampled: Sequence[_Sampled],
        failing: Mapping[int, Exception] = MappingProxyType({}),
    ) -> list[RowResult]:
        """Add a token to the rows at ``indices``; remove and return the finished rows and those with errors."""
        finished = [_fail_row(self.live[index].row, row_error) for index, row_error in failing.items()]
        removed = list(failing)
        for index, (token, log_prob, alternatives) in zip(indices, sampled, strict=True):
            live = self.live[index]
            try:
                finish = live.add_token(token, log_prob, alternatives, stops=token in self.stop_ids)
                result = self._finish_row(index, finish) if finish else None
            except Exception as error:  # noqa: BLE001  error of this row's callback or detokenizer
                result = _fail_row(live.row, error)
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

    def _sample_tokens(self, hidden: Tensor, indices: Sequence[int]) -> list[_Sampled]:
        """Draw a token for the rows at ``indices``; return it with its log-probability and alternatives.

        The call changes no row, so it can be repeated.
        """
        rows = [self.live[index] for index in indices]
        options = [live.row.sampling for live in rows]
        device = self.backbone.device
        at = slice(indices[0], indices[-1] + 1) if isinstance(indices, range) else to_device(np.array(indices), device)
        plain = all(option.temperature in (0.0, 1.0) for option in options)
        logits = self.backbone.compute_logits(hidden, None if plain else self.temperatures[at])
        states = [live.grammar for live in rows]
        if self.grammar_masker and any(states):
            self.grammar_masker.mask_logits_(logits, states)
        uniforms = to_device(self._next_uniforms(rows), device)
        greedy = self.greedy[at] if any(option.temperature == 0.0 for option in options) else None
        ids, log_probs = sample_tokens(logits, uniforms, greedy, top_k_top_p_mask(logits, options))
        top_tensors = _top_alternatives(logits, ids, log_probs, options)
        self.last_tokens[at] = ids
        token_ids, token_log_probs, *top_values = (
            tensor.tolist() for tensor in read_tensors([ids, log_probs, *top_tensors])
        )  # the only device synchronization
        alternatives = map(_pair_finite, top_values[::2], top_values[1::2])
        return [
            (int(token), log_prob, next(alternatives) if option.alternatives else ())
            for token, log_prob, option in zip(token_ids, token_log_probs, options, strict=True)
        ]

    @staticmethod
    def _next_uniforms(rows: Sequence[_LiveRow]) -> npt.NDArray[np.float32]:
        return np.array([live.row.uniforms[len(live.tokens)] for live in rows], np.float32)

    def _finish_row(self, index: int, finish: FinishReason) -> RowResult:
        live = self.live[index]
        experts = torch.cat(live.experts) if live.experts else None
        self.prefill.cache_row(live.row.task_pass, live.row.adapter, live.ids(-1), index, experts)
        return live.result(finish)

    def _remove_rows(self, removed: Sequence[int]) -> None:
        """Remove rows; live rows from the end move into the free slots."""
        if not removed:
            return
        order = list(range(len(self.live)))
        for index in sorted(removed, reverse=True):
            last = order.pop()
            if index < len(order):
                self.decode_cache.move(len(order), index, self.live[last].cached_tokens)
                order[index] = last
        self.live = [self.live[index] for index in order]
        self.adapters = [live.row.adapter for live in self.live]
        keep = to_device(np.array(order, np.int64), self.backbone.device)
        self.last_tokens, self.temperatures = self.last_tokens[keep], self.temperatures[keep]
        self.greedy = self.greedy[keep]


def _fail_row(row: DecodeRequest, error: Exception) -> RowResult:
    """Log the error and return the failed result."""
    logger.error("a row could not be sampled, and is left out: %s", single_line(format_error(error)), exc_info=error)
    return RowResult.failed(row, error)


def _top_alternatives(
    logits: Tensor, sampled_ids: Tensor, log_probs: Tensor, options: Sequence[SamplingParams]
) -> list[Tensor]:
    """Return the likeliest token ids and then their log-probabilities, for each row with alternatives.

    Args:
        logits: logits of the rows, [B, V], after :func:`sample_tokens` has modified them in place.
        sampled_ids: drawn tokens with known log-probabilities, [B].
        log_probs: log-probabilities of the drawn tokens, [B].
        options: sampling parameters of the rows.
    """
    tensors: list[Tensor] = []
    for offset, option in enumerate(options):
        if option.alternatives:
            row_logits = logits[offset]
            log_total = row_logits.gather(0, sampled_ids[offset : offset + 1]) - log_probs[offset]
            values, ids = (row_logits - log_total).topk(min(option.alternatives, len(row_logits)))
            tensors += ids, values
    return tensors


def _pair_finite(ids: Sequence[float], values: Sequence[float]) -> Alternatives:
    """Pair tokens with log-probabilities, without impossible tokens."""
    return tuple((int(token), value) for token, value in zip(ids, values, strict=True) if math.isfinite(value))


def _wrap_on_token(on_token: Callable[[int], None] | None) -> TokenCallback | None:
    return None if on_token is None else lambda token, log_prob, alternatives: on_token(token)  # noqa: ARG005
