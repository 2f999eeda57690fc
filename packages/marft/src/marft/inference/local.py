"""In-process engine: one running batch per backbone for all agents; tensor work stays off the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.agents.engine import Weights
from marft.common import seeds
from marft.common.errors import RowFailedError
from marft.common.texts import one_line, raised, until
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, Versions
from marft.config.settings import did_you_mean
from marft.inference.choice_sampling import ChoiceRequest, choose
from marft.inference.decoding import Finished, Row, RunningBatch
from marft.inference.grammars import Grammars
from marft.inference.holding import Holding
from marft.inference.spelling import spelling_of
from marft.inference.stillness import Stillness
from marft.models.backbone import Backbone
from marft.models.control_tokens import spelled

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
    row: Row
    result: asyncio.Future[Completion]


@dataclass(frozen=True, slots=True, eq=False)
class _PendingChoice:
    key: ActionKey
    policy: str
    choice: ChoiceRequest
    result: asyncio.Future[tuple[Choice, Versions]]


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
                    spelling_of(local.tokenizer, local.stop_ids),
                    prefix_bytes,
                    Holding(Grammars.of(local.tokenizer, local.stop_ids), len(local.backbone.head.weight)),
                )
        self._worker = worker
        self._waiting: list[_Request] = []
        self._running: dict[int, _Request] = {}  # by id of the row
        self._choices: list[_PendingChoice] = []
        self._aside = 0  # pending calls of between_tokens
        self.problem = ""  # error of the last failure; "" if the last request succeeded
        self._driver: asyncio.Task[None] | None = None
        self._stillness = Stillness()

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action; its random stream depends only on the run's seed and the key.

        Raises:
            ValueError: the engine has no such policy.
            RowFailedError: this request failed.
        """
        local = self._known(policy)
        uniforms = seeds.generator(self.seed, "sample", *key).random(sampling.max_new_tokens, np.float32)
        return await self.complete(policy, Row(local.adapter, prompt.ids, sampling, uniforms, _pass_of(key)), key)

    async def complete(self, policy: str, row: Row, key: ActionKey) -> Completion:
        """Sample a row for a policy.

        Args:
            key: determines the order among waiting requests.

        Raises:
            ValueError: the engine has no such policy.
            RowFailedError: this request failed.
        """
        self._known(policy)
        request = _Request(key, policy, row, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._stir()
        return await request.result

    async def between_tokens(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the worker; with continuous admission, before the next token.

        It must not modify the weights of live rows.
        """
        self._aside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        finally:
            self._aside -= 1

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Choose an option; a single forward scores every option.

        Raises:
            ValueError: the engine has no such policy.
            RowFailedError: this request failed.
        """
        uniform = float(seeds.generator(self.seed, "sample", *key).random(1, np.float32)[0])
        asked_for = ChoiceRequest(self._known(policy).adapter, prompt.ids, options, sampling, uniform)
        request = _PendingChoice(key, policy, asked_for, asyncio.get_running_loop().create_future())
        self._choices.append(request)
        self._stir()
        return await request.result

    def _known(self, policy: str) -> LocalPolicy:
        """Return the policy's sampling setup.

        Raises:
            ValueError: the engine has no such policy.
        """
        if policy not in self.policies:
            raise ValueError(f"the engine samples no policy called {policy!r}{did_you_mean(policy, self.policies)}")
        return self.policies[policy]

    def _stir(self) -> None:
        self._stillness.stir()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())

    def external_wait(self) -> AbstractContextManager[None]:
        """Context manager for waits outside the engine; in-order admission pauses during the wait."""
        return self._stillness.external_wait()

    async def settle(self) -> None:
        """Wait until no computation runs, including work for cancelled requests."""
        while self._driver is not None and not self._driver.done():
            await asyncio.wait([self._driver])

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Record the new version; weights are shared with the learner, so no copy takes place."""
        assert not [*self._waiting, *self._choices], "the weights change while requests wait"
        self.forget()
        self._versions.update(dict.fromkeys(policies, version))

    def forget(self) -> None:
        """Clear the prefix cache before a weight update. It runs on the worker, and no row may be live."""
        for batch in self._batches.values():
            batch.clear()

    def version(self, policy: str) -> int:
        """Return the last published version for a policy; 0 without a published version."""
        return self._versions.get(policy, 0)

    def usage(self) -> Mapping[str, float]:
        """Return the number of sampled tokens, prompt tokens and computed prompt tokens so far."""
        of_prompts = [batch.prefill.tokens for batch in self._batches.values()]
        return {
            "sampled_tokens": float(self._sampled_tokens),
            "prefill/asked": float(sum(tokens.asked for tokens in of_prompts)),
            "prefill/computed": float(sum(tokens.computed for tokens in of_prompts)),
        }

    async def close(self) -> None:
        """No-op: the worker belongs to the caller."""

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or self._running or self._choices:
                if self.in_order:
                    await self._stillness.reached()
                if self._choices:
                    asked = sorted(self._choices, key=lambda request: request.key)
                    choices = await loop.run_in_executor(self._worker, self._choose, asked)
                    self._choices = self._choices[len(asked) :]  # new requests may have arrived meanwhile
                    for chooser, choice in zip(asked, choices, strict=True):
                        self._chosen(chooser, choice)
                    continue
                admitted, gone = self._admit(), self._given_up()
                finished = await loop.run_in_executor(self._worker, self._advance, admitted, gone)
                for done in sorted(finished, key=lambda done: self._running[id(done.row)].key):
                    self._resolve(self._running.pop(id(done.row)), done)
        except Exception as error:  # noqa: BLE001  the futures pass the error to the waiting code
            self._note_problem(error)
            for batch in self._batches.values():
                batch.reset()
            everybody: list[_Request | _PendingChoice] = [*self._running.values(), *self._waiting, *self._choices]
            for request in everybody:
                if not request.result.done():
                    request.result.set_exception(error)
            self._running.clear()
            self._waiting.clear()
            self._choices.clear()

    def _admit(self) -> list[_Request]:
        """Return the waiting requests to admit, in key order, if a prefill is worthwhile."""
        if not self._worth_a_prefill():
            return []
        self._waiting = sorted(
            (request for request in self._waiting if not request.result.done()), key=lambda request: request.key
        )  # drops cancelled requests
        room = self.max_rows - len(self._running)
        admitted, self._waiting = self._waiting[:room], self._waiting[room:]
        self._running.update({id(request.row): request for request in admitted})
        return admitted

    def _given_up(self) -> list[_Request]:
        """Remove and return running requests without a waiter.

        In-order admission lets cancelled requests run to their end, because results must not depend on the time of the
        cancellation.
        """
        gone = [] if self.in_order else [request for request in self._running.values() if request.result.done()]
        for request in gone:
            del self._running[id(request.row)]
        return gone

    def _worth_a_prefill(self) -> bool:
        """Return whether the batch is empty, or waiting requests would grow it by half or more."""
        return bool(self._waiting) and 2 * len(self._waiting) >= len(self._running) < self.max_rows

    def _advance(self, admitted: Sequence[_Request], gone: Sequence[_Request]) -> list[Finished]:
        """On the worker: remove cancelled rows, admit new rows, then step every batch until a row finishes.

        With continuous admission, the loop also stops when requests wait to join or leave.
        """
        finished: list[Finished] = []
        for identity, batch in self._batches.items():
            left, rows = (
                [request.row for request in some if id(self.policies[request.policy].backbone) == identity]
                for some in (gone, admitted)
            )
            if left:
                batch.abandon(left)
            if rows:
                finished += self._done(batch, partial(batch.admit, rows), rows)
        while not finished and any(len(batch) for batch in self._batches.values()):
            for batch in self._batches.values():
                if len(batch):
                    finished += self._done(batch, batch.step)
            if not self.in_order and self._somebody_waits():
                break
        return finished

    def _done(
        self, batch: RunningBatch, work: Callable[[], list[Finished]], joining: Sequence[Row] = ()
    ) -> list[Finished]:  # fmt: skip
        """On the worker: run one operation on a batch; return the finished rows.

        If a row fails and the batch can still sample a test row, the error belongs to the row. If the whole operation
        fails, every row fails.

        Args:
            joining: rows that are not in the batch yet.
        """
        rows = [*batch.rows, *joining]
        try:
            finished, own = work(), True
        except Exception as error:
            logging.getLogger("marft").exception("all %d rows of a batch have failed", len(rows))
            batch.reset()
            finished, own = [Finished.failed(row, error) for row in rows], False
        failed = [done for done in finished if done.error]
        if not failed:
            self.problem = ""
            return finished
        broken = batch.raised_by_a_plain_row()
        if broken:
            self._note_problem(broken)
        else:
            self.problem = ""
        if broken or not own:
            return finished
        return [replace(done, error=_own(done.error)) if done.error else done for done in finished]

    def _note_problem(self, error: Exception) -> None:
        self.problem = one_line(raised(error))
        logging.getLogger("marft").critical("the engine cannot go on: %s", self.problem, exc_info=error)

    def _somebody_waits(self) -> bool:
        """Return whether a request waits to interrupt the running batch."""
        gone = any(request.result.done() for request in list(self._running.values()))
        return bool(self._choices or self._aside or gone or self._worth_a_prefill())

    def _choose(self, asked: Sequence[_PendingChoice]) -> list[Choice | Exception]:
        """On the worker: choose for all requests together; if this fails, for each request separately."""
        try:
            return [*self._scored(asked)]
        except Exception as error:
            logging.getLogger("marft").exception("%d choices could not be made together", len(asked))
            if len(asked) > 1:
                return [found for request in asked for found in self._choose([request])]
            broken = self._batches[id(self.policies[asked[0].policy].backbone)].raised_by_a_plain_row()
            if broken:
                self._note_problem(broken)
                return [error]
            return [RowFailedError(f"nothing could be chosen: {one_line(raised(error))}")]

    def _scored(self, asked: Sequence[_PendingChoice]) -> list[Choice]:
        """On the worker: score the options for all requests, with one batched forward per backbone."""
        made: dict[int, Choice] = {}
        for backbone in {id(local.backbone): local.backbone for local in self.policies.values()}.values():
            mine = [request.choice for request in asked if self.policies[request.policy].backbone is backbone]
            made.update(zip(map(id, mine), choose(backbone, mine), strict=True))
        return [made[id(request.choice)] for request in asked]

    def _chosen(self, request: _PendingChoice, choice: Choice | Exception) -> None:
        if request.result.done():
            return
        if isinstance(choice, Exception):
            request.result.set_exception(choice)
        else:
            request.result.set_result((choice, self._now(request.policy)))

    def _resolve(self, request: _Request, done: Finished) -> None:
        self._sampled_tokens += len(done.tokens)
        if request.result.done():
            return
        error = done.error
        if done.problem:
            error = RowFailedError(f"a text could not be held to its grammar: {done.problem}", form=True)
        if error:
            request.result.set_exception(error)
            return
        try:
            self._complete(request, done)
        except Exception as error:
            logging.getLogger("marft").exception("what was sampled could not be spelled")
            request.result.set_exception(RowFailedError(f"it could not be spelled: {one_line(raised(error))}"))

    def _complete(self, request: _Request, done: Finished) -> None:
        request.result.set_result(
            Completion(
                done.tokens,
                done.log_probs,
                self._text(request, done),
                done.finish,
                self._now(request.policy),
                masks=done.masks,
                forced=done.forced,
                alternatives=done.alternatives,
            )
        )

    def _now(self, policy: str) -> Versions:
        """Return the current version; weights never change during an action in this engine."""
        return Versions(self.version(policy), self.version(policy))

    def _text(self, request: _Request, done: Finished) -> str:
        local = self.policies[request.policy]
        ids = done.tokens.tolist()
        text = spelled(local.tokenizer, ids[:-1] if ids[-1] in local.stop_ids else ids)
        return until(text, request.row.sampling.stop)


def _own(error: Exception) -> RowFailedError:
    """Wrap an error that belongs to a single request."""
    return RowFailedError(f"it could not be sampled: {one_line(raised(error))}")


def _pass_of(key: ActionKey) -> str:
    """Return the step or evaluation of a stream: ``"train/12"`` for ``"train/12/1/fork/a/2+1"``."""
    return "/".join(key.stream.partition("+")[0].split("/")[:2])
