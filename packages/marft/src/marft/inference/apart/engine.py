"""Engine in a subprocess; requests are sent again to the next process if a process exits."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from marft.agents.engine import Weights
from marft.common import seeds
from marft.common.errors import RowFailedError, RunError
from marft.common.processes.child import KILLED, Command
from marft.common.processes.handover import Handover
from marft.common.processes.starting import LocalStarter, Started, Starter
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, Versions
from marft.common.usage import RESTARTS
from marft.inference.apart.asked import Asked
from marft.inference.apart.frames import Connection
from marft.inference.apart.held import check_alike, with_masks
from marft.inference.apart.words import (
    FROM_ENGINE,
    Ask,
    Failed,
    Forget,
    Load,
    Loaded,
    Open,
    Ready,
    Refused,
    Said,
    Weigh,
    Weighed,
)
from marft.inference.choice_sampling import drawn
from marft.inference.holding import Holding
from marft.inference.spelling import Ending, spelling_of

MOST_DEATHS = 3  # consecutive crashes without an answer in between
MOST_LIVES = 8  # limit if the process was killed, which may also happen during startup
LARGEST_SEED = 2**63 - 1
TICK_SECONDS = 1.0  # interval between checks for a message, in seconds
HUSH_SECONDS = 60.0  # seconds of silence before a warning
LAST_WORDS = 12  # lines of a crashed engine's output in the error message


@dataclass(frozen=True, slots=True, eq=False)
class PolicyApart:
    """Policy data for a subprocess engine: weights to send, tokenizer to decode the answers.

    Args:
        save: writes an adapter in PEFT format or a full model; None: the policy is the base model itself.
        whole: whether ``save`` writes a full model.
        holding: computes grammar masks if the engine does not report them.
    """

    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    save: Callable[[Path], None] | None = None
    whole: bool = False
    holding: Holding | None = None


class EngineApart:
    """Engine in a subprocess with the protocol in :mod:`marft.inference.apart.words`.

    A process that exits or sends nothing for ``patience`` seconds is restarted. The new process gets the published
    weights, and pending requests are sent again with the same keys.

    Args:
        name: engine name, for messages.
        command: command that starts the process.
        opened: first message to the process.
        policies: by name.
        seed: seed of the run.
        patience: timeout for messages from the process, in seconds.
        starter: launches the process, and closes with the engine; None: on this machine.

    Raises:
        RunError: raised by every request after three crashes or eight kills of the process without an answer in
            between. Also raised if the engine refuses a request.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        opened: Open,
        policies: Mapping[str, PolicyApart],
        *,
        seed: int,
        patience: float,
        starter: Starter | None = None,
    ) -> None:
        self.name, self.command, self.opened, self.policies = name, command, opened, policies
        self.seed, self.patience = seed, patience
        self.starter = starter or LocalStarter()
        self.program = self._llguidance = ""  # program name, set once the process is ready
        self._spellings = {one: spelling_of(each.tokenizer, each.stop_ids) for one, each in policies.items()}
        self._handover = Handover()
        self._weights: dict[str, Load] = {}  # as published
        self._old: list[tuple[str, set[int]]] = []  # earlier weight folders, and the requests that may still use them
        self._loading: dict[int, asyncio.Future[None]] = {}
        self._waiting: dict[int, Asked] = {}
        self._number = 0
        self._ready: asyncio.Future[None] | None = None
        self._deaths = 0
        self._ends: list[str] = []  # reasons for process exits since the last answer
        self._sampled = self._read = 0
        self._gone: BaseException | None = None
        self._beginning: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and load every policy at version 0.

        Raises:
            RunError: the process does not start.
        """
        self._keeper = asyncio.create_task(self._keep())
        self._keeper.add_done_callback(self._kept)
        for name in self.policies:
            await self._load(name, 0)

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action; its random stream depends only on the run's seed and the key.

        Raises:
            RowFailedError: this request failed.
            RunError: the process failed, or the engine refuses the request.
        """
        ending = self._ending(policy, sampling)
        message = Ask(
            self._next(), policy, prompt.ids, sampling.temperature, sampling.max_new_tokens, sampling.top_p,
            sampling.top_k, seeds.derive_seed(self.seed, "sample", *key) % LARGEST_SEED,
            list(self.policies[policy].stop_ids), sampling.alternatives, _tells(ending, sampling),
            [sampling.grammar.kind, sampling.grammar.text] if sampling.grammar else [],
        )  # fmt: skip
        waiting, mine = await self._asked(Asked(message, _future(), ending, sampling.listener)), self.policies[policy]
        if not waiting.said or not len(waiting.said[0].tokens):
            raise RunError(f"{self.name}: it ended an action before its first token")
        done = waiting.completion(mine.tokenizer, mine.stop_ids, sampling)
        self._sampled += len(done.tokens)
        if sampling.grammar is None or mine.holding is None:
            return done
        check_alike(self._llguidance)
        return await asyncio.to_thread(with_masks, done, sampling.grammar, mine.holding)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Choose one option: the engine scores every option, and the draw happens in this process.

        Raises:
            RowFailedError: this request failed.
            RunError: the process failed, or the engine refuses the request.
        """
        message = Weigh(
            self._next(), policy, prompt.ids, np.concatenate([option.tokens for option in options]),
            np.array([len(option.tokens) for option in options], np.int32), sampling.temperature or 1.0,
        )  # fmt: skip
        weighed = (await self._asked(Asked(message, _future()))).weighed
        assert weighed is not None
        uniform = float(seeds.generator(self.seed, "sample", *key).random(1, np.float32)[0])
        scores = weighed.log_probs / np.array([option.normaliser for option in options], np.float32)
        logs = torch.from_numpy(scores).log_softmax(0)
        (choice,) = drawn(options, logs, sampling, [uniform])
        return choice, Versions(weighed.lowest, weighed.highest)

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """No-op: requests have no admission order."""
        yield

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Save the policies and load them in the process.

        Raises:
            RunError: the process failed, or it cannot load the weights.
        """
        await asyncio.gather(*(self._load(name, version) for name in policies))

    async def settle(self) -> None:
        """No-op: the process drops cancelled requests by itself."""

    def version(self, policy: str) -> int:
        """Return the last published version for a policy."""
        return self._weights[policy].version

    def usage(self) -> Mapping[str, float]:
        """Return the number of sampled tokens, prompt tokens and process restarts so far."""
        return {
            "sampled_tokens": float(self._sampled),
            "prefill/asked": float(self._read),
            RESTARTS: float(self._deaths),
        }

    async def close(self) -> None:
        """Terminate the process and remove its folder."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await asyncio.to_thread(self.starter.close)
        await asyncio.to_thread(self._handover.close)

    # requests

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ending(self, policy: str, sampling: Sampling) -> Ending | None:
        return Ending(self._spellings[policy](), sampling.stop) if sampling.stop else None

    async def _asked(self, waiting: Asked) -> Asked:
        if self._gone:
            raise self._gone
        number = waiting.message.number
        self._waiting[number] = waiting
        self._read += len(waiting.message.prompt)
        self._send(waiting.message)
        try:
            await waiting.result
        finally:
            del self._waiting[number]
            self._tidy(number)
            if waiting.stopped or waiting.result.cancelled():
                self._send(Forget(number))
        return waiting

    def _send(self, message: object) -> None:
        """Send a message to a ready process. A process that becomes ready later gets every pending request then."""
        if self._ready is not None and self._ready.done():
            self._connection.send(message)

    async def _load(self, name: str, version: int) -> None:
        policy, before = self.policies[name], self._weights.get(name)
        number = self._next()
        path = await asyncio.to_thread(self._handover.write, f"{number}", policy.save) if policy.save else ""
        load = Load(number, name, version, path, policy.whole)
        self._weights[name] = load
        await self._done(load, number)
        if before and before.path:
            self._old.append((before.path, set(self._waiting)))
            self._tidy(number)

    async def _done(self, message: object, number: int) -> None:
        """Run a command in the process, or in its successor, and wait for it to finish."""
        done = self._loading[number] = _future()
        if self._ready is not None and self._ready.done():
            await self._give(message)
        if self._gone:
            raise self._gone
        await done

    async def _give(self, message: object) -> None:
        """Send a command with lasting effect, such as new weights.

        If the process exits meanwhile, the next process gets the command during its startup.
        """
        child = self._child
        with suppress(RunError):
            if isinstance(message, Load) and message.path:
                path = await asyncio.to_thread(child.carried, Path(message.path))
                message = replace(message, path=path)
            if child is self._child:
                self._connection.send(message)

    def _tidy(self, number: int) -> None:
        """Delete weight folders that no request uses after request ``number`` finishes."""
        for path, users in self._old:
            users.discard(number)
            if not users:
                self._child.dropped(Path(path))
                shutil.rmtree(path, ignore_errors=True)
        self._old = [(path, users) for path, users in self._old if users]

    # process management

    async def _keep(self) -> None:
        """Keep a process running, until the task is cancelled or processes exit too often in a row."""
        last_words = ""
        try:
            while len(self._ends) < MOST_LIVES and sum(how != KILLED for how in self._ends) < MOST_DEATHS:
                self._child = child = await asyncio.to_thread(self.starter.start, self.name, self.command, quiet=True)
                try:
                    given_up = await self._listen(child)
                finally:
                    self._ready = None
                    await asyncio.to_thread(child.close)
                self._deaths += 1
                self._ends.append(given_up or child.outcome())
                said = "\n".join(list(child.said)[-LAST_WORDS:])
                last_words = f"{'; the last that it said:' if said else ''}\n{said}".rstrip()
            self._fail(RunError(f"{self.name}: its process {self._ends[-1]}{last_words}"))
        except RunError as error:
            self._fail(error)

    async def _listen(self, child: Started) -> str:
        """Handle messages from a process; return the reason for its termination, or "" if the process exited."""
        self._ready = _future()
        self._connection = await Connection.over(child.socket, FROM_ENGINE)
        self._connection.send(self.opened)
        receiving, quiet = asyncio.ensure_future(self._connection.receive()), 0.0
        try:
            while quiet < self.patience:
                done, _ = await asyncio.wait([receiving], timeout=TICK_SECONDS)
                before, quiet = quiet, quiet + TICK_SECONDS if self._busy() and not done else 0.0
                if before < HUSH_SECONDS <= quiet and self._ready.done():  # startup may take long
                    self._say_that_it_is_silent()
                if done:
                    self._heed(receiving.result())
                    receiving = asyncio.ensure_future(self._connection.receive())
        except EOFError:
            return ""
        except ValueError as error:
            return f"was ended: {error}"
        finally:
            receiving.cancel()
            if self._beginning:
                self._beginning.cancel()
            self._connection.close()
        return f"said nothing for {self.patience:g} s (engine.patience_seconds), and was ended"

    def _say_that_it_is_silent(self) -> None:
        logging.getLogger("marft").warning(
            "%s has said nothing for %g s; after %g s it is started again", self.name, HUSH_SECONDS, self.patience
        )

    def _busy(self) -> bool:
        return bool(self._waiting or self._loading) or self._ready is None or not self._ready.done()

    def _heed(self, message: object) -> None:
        match message:
            case Ready(program, llguidance):
                self.program, self._llguidance = program, llguidance
                self._beginning = asyncio.create_task(self._begin())
            case Loaded(number):
                loaded = self._loading.pop(number, None)
                if loaded and not loaded.done():
                    loaded.set_result(None)
            case Failed(number, reason):
                self._end(number, RowFailedError(reason))
            case Refused(number, reason):
                self._refuse(number, reason)
            case Said() | Weighed():
                self._ends.clear()
                waiting = self._waiting.get(message.number)
                if waiting is None or waiting.result.done():
                    return
                if isinstance(message, Weighed):
                    waiting.weighed = message
                if isinstance(message, Weighed) or waiting.take(message):
                    waiting.result.set_result(None)

    async def _begin(self) -> None:
        """Initialize a ready process: send the weights, including new ones, then the pending requests."""
        assert self._ready is not None
        given: list[object] = []
        while missing := [message for message in self._standing() if not any(message is one for one in given)]:
            for message in missing:
                await self._give(message)
            given += missing
        self._ready.set_result(None)
        for waiting in self._waiting.values():
            message = waiting.message
            stops = waiting.ending.stops if waiting.ending else ()
            waiting.begin_again(Ending(self._spellings[message.policy](), stops) if stops else None)
            self._connection.send(message)

    def _standing(self) -> list[object]:
        """Return the commands for a new process."""
        return list(self._weights.values())

    def _refuse(self, number: int, reason: str) -> None:
        error = RunError(f"{self.name}: {reason}")
        if number < 0:
            raise error
        self._end(number, error)

    def _end(self, number: int, error: Exception) -> None:
        waiting = self._waiting.get(number)
        if waiting and not waiting.result.done():
            waiting.result.set_exception(error)

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._gone = error
        for future in [*(waiting.result for waiting in self._waiting.values()), *self._loading.values()]:
            if not future.done():
                future.set_exception(error)


def _tells(ending: Ending | None, sampling: Sampling) -> bool:
    """Return whether to stream tokens.

    Grammar masks arrive with the last token. If a stop string of the run may end the action early, the engine therefore
    sends the whole action at once.
    """
    return bool(ending or sampling.listener) and not (ending and sampling.grammar)


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
