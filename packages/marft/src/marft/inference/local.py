"""In-process engine: one running batch per backbone for all agents; tensor work stays off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.common import seeds
from marft.common.errors import RowFailedError, UserError
from marft.common.log import get_logger
from marft.common.texts import cut_at_stop, format_error, single_line
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, VersionRange
from marft.config.interfaces.engine import Weights
from marft.config.settings import did_you_mean
from marft.inference.choice_sampling import ChoiceRequest, choose
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.inference.detokenizer import detokenizer_factory
from marft.inference.grammar_masking import GrammarMasker
from marft.inference.quiescence import QuiescenceBarrier
from marft.models.backbone import Backbone
from marft.models.control_tokens import decode_text
from marft.models.cuda_graphs import CudaGraphs

logger = get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class LocalPolicy:
    """Sampling setup for one policy: backbone, adapter (None: the base model), tokenizer and stop ids."""

    backbone: Backbone
    adapter: str | None
    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    key: ActionKey
    policy: str
    row: DecodeRequest
    result: asyncio.Future[Completion]


@dataclass(frozen=True, slots=True, eq=False)
class _PendingChoice:
    key: ActionKey
    policy: str
    choice: ChoiceRequest
    result: asyncio.Future[tuple[Choice, VersionRange]]


class LocalEngine:
    """Engine with dynamic batching over all waiting requests.

    ``in_order`` admission waits until no live episode can advance without the engine. It then admits requests in key
    order. The contents of a batch never depend on timing, so results are bitwise reproducible. ``continuous`` admission
    takes requests as they arrive, for devices that must not idle.

    Args:
        policies: by policy name.
        worker: executor for the tensor work, one call at a time.
        seed: seed of the run; with the action's key, it determines the random stream of a row.
        max_rows: maximum number of rows sampled at the same time.
        prefix_bytes: size limit of the prefix cache on each backbone, in bytes.
        cuda_graphs: whether to capture decoding steps on a CUDA device.
    """

    def __init__(
        self,
        policies: Mapping[str, LocalPolicy],
        worker: Executor,
        *,
        seed: int,
        max_rows: int = 256,
        in_order: bool = True,
        prefix_bytes: int = 0,
        cuda_graphs: bool = False,
    ) -> None:
        self.policies, self.seed, self.max_rows, self.in_order = policies, seed, max_rows, in_order
        self._versions: dict[str, int] = {}
        self._sampled_tokens = 0
        self._batches: dict[int, RunningBatch] = {}
        for local in policies.values():
            if id(local.backbone) not in self._batches:
                self._batches[id(local.backbone)] = RunningBatch(
                    local.backbone,
                    local.stop_ids,
                    detokenizer_factory(local.tokenizer, local.stop_ids),
                    prefix_bytes,
                    GrammarMasker.for_model(local.tokenizer, local.stop_ids, local.backbone),
                    CudaGraphs(device) if cuda_graphs and (device := local.backbone.device).type == "cuda" else None,
                )
        self._worker = worker
        self._waiting: list[_Request] = []
        self._running: dict[int, _Request] = {}  # by id of the row
        self._choices: list[_PendingChoice] = []
        self._pending_jobs = 0  # pending calls of run_between_tokens
        self.problem = ""  # error of the last failure; "" if the last request succeeded
        self._drive_task: asyncio.Task[None] | None = None
        self._barrier = QuiescenceBarrier()

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Sample one action; its random stream depends only on the run's seed and the key.

        Raises:
            UserError: the engine has no such policy.
            RowFailedError: this request failed.
        """
        local = self._find_policy(policy)
        uniforms = seeds.generator(self.seed, "sample", *key).random(sampling.max_new_tokens, np.float32)
        return await self.sample_row(
            policy, DecodeRequest(local.adapter, prompt.ids, sampling, uniforms, _task_pass(key)), key
        )

    async def sample_row(self, policy: str, row: DecodeRequest, key: ActionKey) -> Completion:
        """Sample a row for a policy.

        Args:
            key: determines the order among waiting requests.

        Raises:
            UserError: the engine has no such policy.
            RowFailedError: this request failed.
        """
        self._find_policy(policy)
        request = _Request(key, policy, row, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._notify()
        return await request.result

    async def run_between_tokens(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the worker; with continuous admission, before the next token.

        If it modifies the weights of live rows, it must call :meth:`refresh_adapters`.
        """
        self._pending_jobs += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        finally:
            self._pending_jobs -= 1

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Choose an option; a single forward scores every option.

        Raises:
            UserError: the engine has no such policy.
            RowFailedError: this request failed.
        """
        uniform = float(seeds.generator(self.seed, "sample", *key).random(1, np.float32)[0])
        choice_request = ChoiceRequest(self._find_policy(policy).adapter, prompt.ids, options, sampling, uniform)
        request = _PendingChoice(key, policy, choice_request, asyncio.get_running_loop().create_future())
        self._choices.append(request)
        self._notify()
        return await request.result

    def _find_policy(self, policy: str) -> LocalPolicy:
        """Return the policy's sampling setup.

        Raises:
            UserError: the engine has no such policy.
        """
        if policy not in self.policies:
            raise UserError(f"the engine samples no policy called {policy!r}{did_you_mean(policy, self.policies)}")
        return self.policies[policy]

    def _notify(self) -> None:
        self._barrier.notify_activity()
        if self._drive_task is None or self._drive_task.done():
            self._drive_task = asyncio.create_task(self._run_loop())

    def external_wait(self) -> AbstractContextManager[None]:
        """Context manager for waits outside the engine; in-order admission pauses during the wait."""
        return self._barrier.external_wait()

    async def wait_idle(self) -> None:
        """Wait until no computation runs, including work for cancelled requests."""
        while self._drive_task is not None and not self._drive_task.done():
            await asyncio.wait([self._drive_task])

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Record the new version; weights are shared with the learner, so no copy takes place."""
        assert not [*self._waiting, *self._choices], "the weights change while requests wait"
        self.clear_cache()
        self._versions.update(dict.fromkeys(policies, version))

    def clear_cache(self) -> None:
        """Clear the prefix cache before a weight update. It runs on the worker, and no row may be live."""
        for batch in self._batches.values():
            batch.clear_cache()

    def refresh_adapters(self) -> None:
        """On the worker: let live rows use adapters that changed in place. They keep their keys and values."""
        for batch in self._batches.values():
            # new lists, because forwards cache what they derive from adapters by the lists of live rows
            batch.live, batch.adapters = [*batch.live], [*batch.adapters]

    def version(self, policy: str) -> int:
        """Return the last published version for a policy; 0 without a published version."""
        return self._versions.get(policy, 0)

    def usage(self) -> Mapping[str, float]:
        """Return the number of sampled tokens, prompt tokens and computed prompt tokens so far."""
        prompt_tokens = [batch.prefill.tokens for batch in self._batches.values()]
        return {
            "sampled_tokens": float(self._sampled_tokens),
            "prefill/prompt_tokens": float(sum(tokens.requested for tokens in prompt_tokens)),
            "prefill/computed_tokens": float(sum(tokens.computed for tokens in prompt_tokens)),
        }

    async def close(self) -> None:
        """No-op: the worker belongs to the caller."""

    async def _run_loop(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or self._running or self._choices:
                if self.in_order:
                    await self._barrier.wait()
                if self._choices:
                    choice_requests = sorted(self._choices, key=lambda request: request.key)
                    choices = await loop.run_in_executor(self._worker, self._choose, choice_requests)
                    self._choices = self._choices[len(choice_requests) :]  # new requests may have arrived meanwhile
                    for choice_request, choice in zip(choice_requests, choices, strict=True):
                        self._resolve_choice(choice_request, choice)
                    continue
                admitted, aborted = self._admit(), self._remove_aborted()
                finished = await loop.run_in_executor(self._worker, self._advance, admitted, aborted)
                for result in sorted(finished, key=lambda result: self._running[id(result.row)].key):
                    self._resolve(self._running.pop(id(result.row)), result)
        except Exception as error:  # noqa: BLE001  the futures pass the error to the waiting code
            self._record_problem(error)
            for batch in self._batches.values():
                batch.reset()
            pending: list[_Request | _PendingChoice] = [*self._running.values(), *self._waiting, *self._choices]
            for request in pending:
                if not request.result.done():
                    request.result.set_exception(error)
            self._running.clear()
            self._waiting.clear()
            self._choices.clear()

    def _admit(self) -> list[_Request]:
        """Return the waiting requests to admit, in key order, if a prefill is worthwhile."""
        if not self._should_prefill():
            return []
        self._waiting = sorted(
            (request for request in self._waiting if not request.result.done()), key=lambda request: request.key
        )  # drops cancelled requests
        room = self.max_rows - len(self._running)
        admitted, self._waiting = self._waiting[:room], self._waiting[room:]
        self._running.update({id(request.row): request for request in admitted})
        return admitted

    def _remove_aborted(self) -> list[_Request]:
        """Remove and return running requests without a waiter.

        In-order admission lets cancelled requests run to their end, because results must not depend on the time of the
        cancellation.
        """
        aborted = [] if self.in_order else [request for request in self._running.values() if request.result.done()]
        for request in aborted:
            del self._running[id(request.row)]
        return aborted

    def _should_prefill(self) -> bool:
        """Return whether the batch is empty, or waiting requests would grow it by half or more."""
        return bool(self._waiting) and 2 * len(self._waiting) >= len(self._running) < self.max_rows

    def _advance(self, admitted: Sequence[_Request], aborted: Sequence[_Request]) -> list[RowResult]:
        """On the worker: remove cancelled rows, admit new rows, then step every batch until a row finishes.

        With continuous admission, the loop also stops when requests wait to join or leave.
        """
        finished: list[RowResult] = []
        for identity, batch in self._batches.items():
            aborted_rows, new_rows = (
                [request.row for request in requests if id(self.policies[request.policy].backbone) == identity]
                for requests in (aborted, admitted)
            )
            if aborted_rows:
                batch.abort(aborted_rows)
            if new_rows:
                finished += self._run_on_batch(batch, partial(batch.admit, new_rows), new_rows)
        while not finished and any(len(batch) for batch in self._batches.values()):
            for batch in self._batches.values():
                if len(batch):
                    finished += self._run_on_batch(batch, batch.step)
            if not self.in_order and self._has_waiting():
                break
        return finished

    def _run_on_batch(
        self, batch: RunningBatch, work: Callable[[], list[RowResult]], new_rows: Sequence[DecodeRequest] = ()
    ) -> list[RowResult]:
        """On the worker: run one operation on a batch; return the finished rows.

        If a row fails and the batch can still sample a test row, the error belongs to the row. If the whole operation
        fails, every row fails.

        Args:
            new_rows: rows that are not in the batch yet.
        """
        rows = [*batch.rows, *new_rows]
        try:
            finished, per_row = work(), True
        except Exception as error:  # any error costs these rows
            logger.exception("all %d rows of a batch have failed", len(rows))
            batch.reset()
            finished, per_row = [RowResult.failed(row, error) for row in rows], False
        failed = [result for result in finished if result.error]
        if not failed:
            self.problem = ""
            return finished
        engine_error = batch.run_health_check()
        if engine_error:
            self._record_problem(engine_error)
        else:
            self.problem = ""
        if engine_error or not per_row:
            return finished
        return [replace(result, error=_to_row_failure(result.error)) if result.error else result for result in finished]

    def _record_problem(self, error: Exception) -> None:
        self.problem = single_line(format_error(error))
        logger.critical("the engine cannot go on: %s", self.problem, exc_info=error)

    def _has_waiting(self) -> bool:
        """Return whether a request waits to interrupt the running batch."""
        has_aborted = any(request.result.done() for request in list(self._running.values()))
        return bool(self._choices or self._pending_jobs or has_aborted or self._should_prefill())

    def _choose(self, requests: Sequence[_PendingChoice]) -> list[Choice | Exception]:
        """On the worker: choose for all requests together; if this fails, for each request separately."""
        try:
            return [*self._choose_batch(requests)]
        except Exception as error:  # any error costs these choices
            logger.exception("%d choices could not be made together", len(requests))
            if len(requests) > 1:
                return [choice for request in requests for choice in self._choose([request])]
            engine_error = self._batches[id(self.policies[requests[0].policy].backbone)].run_health_check()
            if engine_error:
                self._record_problem(engine_error)
                return [error]
            return [RowFailedError(f"nothing could be chosen: {single_line(format_error(error))}")]

    def _choose_batch(self, requests: Sequence[_PendingChoice]) -> list[Choice]:
        """On the worker: score the options for all requests, with one batched forward per backbone."""
        choices: dict[int, Choice] = {}
        for backbone in {id(local.backbone): local.backbone for local in self.policies.values()}.values():
            own_requests = [
                request.choice for request in requests if self.policies[request.policy].backbone is backbone
            ]
            choices.update(zip(map(id, own_requests), choose(backbone, own_requests), strict=True))
        return [choices[id(request.choice)] for request in requests]

    def _resolve_choice(self, request: _PendingChoice, choice: Choice | Exception) -> None:
        if request.result.done():
            return
        if isinstance(choice, Exception):
            request.result.set_exception(choice)
        else:
            request.result.set_result((choice, self._current_versions(request.policy)))

    def _resolve(self, request: _Request, result: RowResult) -> None:
        self._sampled_tokens += len(result.tokens)
        if request.result.done():
            return
        error = result.error
        if result.problem:
            error = RowFailedError(f"a text could not be held to its grammar: {result.problem}", grammar_failed=True)
        if error:
            request.result.set_exception(error)
            return
        try:
            self._set_completion(request, result)
        except Exception as error:  # any error costs this row
            logger.exception("what was sampled could not be spelled")
            request.result.set_exception(RowFailedError(f"it could not be spelled: {single_line(format_error(error))}"))

    def _set_completion(self, request: _Request, result: RowResult) -> None:
        request.result.set_result(
            Completion(
                result.tokens,
                result.log_probs,
                self._decode_text(request, result),
                result.finish,
                self._current_versions(request.policy),
                masks=result.masks,
                forced=result.forced,
                alternatives=result.alternatives,
                experts=result.experts,
            )
        )

    def _current_versions(self, policy: str) -> VersionRange:
        """Return the current version; weights never change during an action in this engine."""
        return VersionRange(self.version(policy), self.version(policy))

    def _decode_text(self, request: _Request, result: RowResult) -> str:
        local = self.policies[request.policy]
        ids = result.tokens.tolist()
        text = decode_text(local.tokenizer, ids[:-1] if ids[-1] in local.stop_ids else ids)
        return cut_at_stop(text, request.row.sampling.stop)


def _to_row_failure(error: Exception) -> RowFailedError:
    """Wrap an error that belongs to a single request."""
    return RowFailedError(f"it could not be sampled: {single_line(format_error(error))}")


def _task_pass(key: ActionKey) -> str:
    """Return the step or evaluation of a stream: ``"train/12"`` for ``"train/12/1/fork/a/2+1"``."""
    return "/".join(key.stream.partition("+")[0].split("/")[:2])
