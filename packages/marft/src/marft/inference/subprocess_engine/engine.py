"""Engine in a subprocess; requests are sent again to the next process if a process exits."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from marft.common import seeds
from marft.common.errors import RowFailedError, RunError
from marft.common.log import get_logger
from marft.common.processes.child_process import Command
from marft.common.processes.connection import AsyncConnection
from marft.common.processes.launcher import Launcher, LocalLauncher, ProcessHandle
from marft.common.processes.messages import Completed
from marft.common.processes.remote_error import RemoteError
from marft.common.processes.supervisor import Supervisor
from marft.common.processes.weight_transfer import WeightTransfer
from marft.common.texts import cut_at_stop
from marft.common.token_data import GrammarMasks, RoutedExperts
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, TokenIds, VersionRange
from marft.common.usage import ENGINE_RESTARTS
from marft.config.interfaces.engine import Weights
from marft.inference.choice_sampling import sample_choices
from marft.inference.detokenizer import StopStringChecker, detokenizer_factory
from marft.inference.grammar_masking import GrammarMasker, add_masks, check_same_version
from marft.inference.subprocess_engine.messages import (
    FROM_ENGINE,
    VALUES,
    CancelRequest,
    EngineInit,
    EngineReady,
    LoadCommand,
    Rejected,
    RequestFailed,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    SleepCommand,
    TokenChunk,
)
from marft.models.control_tokens import decode_text

logger = get_logger(__name__)
MAX_CRASHES = 3  # consecutive crashes without an answer in between
MAX_SEED = 2**63 - 1
POLL_SECONDS = 1.0  # interval between checks for a message, in seconds
WARNING_SECONDS = 60.0  # seconds of silence before a warning


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
            token_versions=_join_versions(chunks),
            experts=_build_experts(chunks[-1], len(self.message.prompt) + len(ids) - 1),
        )

    def _count_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


def _join_versions(chunks: Sequence[TokenChunk]) -> TokenIds | None:
    """Return the version of each token, [T]; None if all tokens have the same version, or a version is unknown."""
    versions = [
        np.full(len(chunk.tokens), chunk.lowest, np.int32) if chunk.lowest == chunk.highest else chunk.versions
        for chunk in chunks
    ]
    joined = np.concatenate(versions)
    known = all(len(own) == len(chunk.tokens) for own, chunk in zip(versions, chunks, strict=True))
    return joined if known and (joined != joined[0]).any() else None


def _build_masks(last: TokenChunk, tokens: int) -> GrammarMasks | None:
    """Build the grammar masks for the first ``tokens`` positions; None without masks."""
    positions = [index for index in last.mask_at.tolist() if index < tokens]
    if not positions:
        return None
    table = [mask.tobytes() for mask in last.mask_table]
    return GrammarMasks.from_masks(positions, [table[which] for which in last.mask_which.tolist()[: len(positions)]])


def _build_experts(last: TokenChunk, size: int) -> RoutedExperts | None:
    """Return the record of experts for the first ``size`` tokens of prompt and action; None without a record."""
    return RoutedExperts.from_table(last.experts[:size]) if last.experts.size else None


def _truncate(chunk: TokenChunk, count: int) -> TokenChunk:
    """Keep the first ``count`` tokens."""
    versions = chunk.versions[:count]
    return replace(
        chunk,
        lowest=int(versions.min()) if len(versions) else chunk.lowest,
        highest=int(versions.max()) if len(versions) else chunk.highest,
        versions=versions,
        tokens=chunk.tokens[:count],
        log_probs=chunk.log_probs[:count],
        finish="",
        top_ids=chunk.top_ids[:count],
        top_log_probs=chunk.top_log_probs[:count],
    )


@dataclass(frozen=True, slots=True, eq=False)
class SubprocessPolicy:
    """Policy data for a subprocess engine: weights to send, tokenizer to decode the answers.

    Args:
        save: writes an adapter in PEFT format or a full model; None: the policy is the base model itself.
        full_model: whether ``save`` writes a full model.
        grammar_masker: computes grammar masks if the engine does not report them.
    """

    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    save: Callable[[Path], None] | None = None
    full_model: bool = False
    grammar_masker: GrammarMasker | None = None


class SubprocessEngine:
    """Engine in a subprocess with the protocol in :mod:`marft.inference.subprocess_engine.messages`.

    A process that exits or sends nothing for ``timeout`` seconds is restarted. The new process gets the published
    weights, and pending requests are sent again with the same keys.

    An engine with sleep mode frees its device memory while the learner uses the device. It sleeps once it is idle, and
    wakes before it gets a request or new weights. A process that restarts during sleep mode also sleeps.

    Args:
        name: engine name, for messages.
        command: command that starts the process.
        init_message: first message to the process.
        policies: by name.
        seed: seed of the run.
        timeout: timeout for messages from the process, in seconds.
        launcher: starts the process, and closes with the engine; None: on this machine.

    Raises:
        RunError: raised by every request after three crashes or eight kills of the process without an answer in
            between. Also raised if the engine refuses a request.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        init_message: EngineInit,
        policies: Mapping[str, SubprocessPolicy],
        *,
        seed: int,
        timeout: float,
        launcher: Launcher | None = None,
    ) -> None:
        self.name, self.init_message, self.policies = name, init_message, policies
        self.seed, self.timeout = seed, timeout
        self.launcher = launcher or LocalLauncher()
        self._supervisor = Supervisor(self.launcher, name, command, quiet=True, max_crashes=MAX_CRASHES)
        self.program = self._grammar_version = ""  # program name, set once the process is ready
        self._detokenizers = {
            policy_name: detokenizer_factory(policy.tokenizer, policy.stop_ids)
            for policy_name, policy in policies.items()
        }
        self._weight_transfer = WeightTransfer()
        self._weights: dict[str, LoadCommand] = {}  # as published
        self._old_folders: list[
            tuple[str, set[int]]
        ] = []  # earlier weight folders, and the requests that may still use them
        self._pending_commands: dict[int, asyncio.Future[None]] = {}
        self._last_sleep: SleepCommand | None = None  # last sleep command sent
        self._sleep_lock = asyncio.Lock()
        self._pending: dict[int, PendingRequest] = {}
        self._last_id = 0
        self._ready: asyncio.Future[None] | None = None
        self._sampled_tokens = self._prompt_tokens = 0
        self._error: BaseException | None = None
        self._startup_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and load every policy at version 0.

        Raises:
            RunError: the process does not start.
        """
        self._monitor_task = asyncio.create_task(self._monitor())
        self._monitor_task.add_done_callback(self._monitor_done)
        for name in self.policies:
            await self._load_policy(name, 0)

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Sample one action; its random stream depends only on the run's seed and the key.

        Raises:
            RowFailedError: this request failed.
            RunError: the process failed, or the engine refuses the request.
        """
        stop_checker = self._make_stop_checker(policy, sampling)
        message = SampleRequest(
            self._next_id(),
            policy,
            prompt.ids,
            replace(sampling, stop=(), on_token=None),
            seeds.derive_seed(self.seed, "sample", *key) % MAX_SEED,
            list(self.policies[policy].stop_ids),
            _streams_tokens(stop_checker, sampling),
        )
        own_policy = self.policies[policy]
        request = await self._run_request(PendingRequest(message, _new_future(), stop_checker, sampling.on_token))
        if not request.chunks or not len(request.chunks[0].tokens):
            raise RunError(f"{self.name}: it ended an action before its first token")
        completion = request.build_completion(own_policy.tokenizer, own_policy.stop_ids, sampling)
        self._sampled_tokens += len(completion.tokens)
        if sampling.grammar is None or own_policy.grammar_masker is None:
            return completion
        check_same_version(self._grammar_version)
        return await asyncio.to_thread(add_masks, completion, sampling.grammar, own_policy.grammar_masker)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Choose one option: the engine scores every option, and the draw happens in this process.

        Raises:
            RowFailedError: this request failed.
            RunError: the process failed, or the engine refuses the request.
        """
        message = ScoreRequest(
            self._next_id(),
            policy,
            prompt.ids,
            np.concatenate([option.tokens for option in options]),
            np.array([len(option.tokens) for option in options], np.int32),
            sampling.temperature or 1.0,
        )
        response = (await self._run_request(PendingRequest(message, _new_future()))).scores
        assert response is not None
        uniform = float(seeds.generator(self.seed, "sample", *key).random(1, np.float32)[0])
        scores = response.log_probs / np.array([option.normaliser for option in options], np.float32)
        logs = torch.from_numpy(scores).log_softmax(0)
        (choice,) = sample_choices(options, logs, sampling, [uniform])
        return choice, VersionRange(response.lowest, response.highest)

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: requests have no admission order."""
        return nullcontext()

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Save the policies and load them in the process.

        Raises:
            RunError: the process failed, or it cannot load the weights.
        """
        await asyncio.gather(*(self._load_policy(name, version) for name in policies))

    async def wait_idle(self) -> None:
        """Put an engine with sleep mode to sleep, unless requests wait.

        The process drops cancelled requests by itself.
        """
        if not self._pending:
            await self._set_sleep(sleep=True)

    def version(self, policy: str) -> int:
        """Return the last published version for a policy."""
        return self._weights[policy].version

    def usage(self) -> Mapping[str, float]:
        """Return the number of sampled tokens, prompt tokens and process restarts so far."""
        return {
            "sampled_tokens": float(self._sampled_tokens),
            "prefill/prompt_tokens": float(self._prompt_tokens),
            ENGINE_RESTARTS: float(self._supervisor.exit_count),
        }

    async def close(self) -> None:
        """Terminate the process and remove its folder."""
        self._supervisor.close()
        self._monitor_task.cancel()
        await asyncio.gather(self._monitor_task, return_exceptions=True)
        await asyncio.to_thread(self.launcher.close)
        await asyncio.to_thread(self._weight_transfer.close)

    # requests

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _make_stop_checker(self, policy: str, sampling: SamplingParams) -> StopStringChecker | None:
        return StopStringChecker(self._detokenizers[policy](), sampling.stop) if sampling.stop else None

    async def _run_request(self, request: PendingRequest) -> PendingRequest:
        await self._set_sleep(sleep=False)
        if self._error:
            raise self._error
        number = request.message.number
        self._pending[number] = request
        self._prompt_tokens += len(request.message.prompt)
        self._send(request.message)
        try:
            await request.result
        finally:
            del self._pending[number]
            self._remove_old_folders(number)
            if request.stopped or request.result.cancelled():
                self._send(CancelRequest(number))
        return request

    def _send(self, message: object) -> None:
        """Send a message to a ready process. A process that becomes ready later gets every pending request then."""
        if self._ready is not None and self._ready.done():
            self._connection.send(message)

    async def _load_policy(self, name: str, version: int) -> None:
        await self._set_sleep(sleep=False)
        policy, previous = self.policies[name], self._weights.get(name)
        number = self._next_id()
        path = await asyncio.to_thread(self._weight_transfer.write, f"{number}", policy.save) if policy.save else ""
        command = LoadCommand(number, name, version, path, policy.full_model)
        self._weights[name] = command
        await self._run_command(command, number)
        if previous and previous.path:
            users = set() if self.init_message.in_flight else set(self._pending)
            self._old_folders.append((previous.path, users))
            self._remove_old_folders(number)

    async def _run_command(self, message: object, number: int) -> None:
        """Run a command in the process, or in its successor, and wait for it to finish."""
        future = self._pending_commands[number] = _new_future()
        if self._ready is not None and self._ready.done():
            await self._send_command(message)
        if self._error:
            raise self._error
        await future

    async def _send_command(self, message: object) -> None:
        """Send a command with lasting effect, such as new weights.

        If the process exits meanwhile, the next process gets the command during its startup.
        """
        child = self._child
        with suppress(RunError):
            if isinstance(message, LoadCommand) and message.path:
                path = await asyncio.to_thread(child.share_folder, Path(message.path))
                message = replace(message, path=path)
            if child is self._child:
                self._connection.send(message)

    def _remove_old_folders(self, number: int) -> None:
        """Delete weight folders that no request uses after request ``number`` finishes."""
        for path, users in self._old_folders:
            users.discard(number)
            if not users:
                self._child.release_folder(Path(path))
                shutil.rmtree(path, ignore_errors=True)
        self._old_folders = [(path, users) for path, users in self._old_folders if users]

    # process management

    async def _monitor(self) -> None:
        """Keep a process running, until the task is cancelled or processes exit too often in a row."""
        supervisor = self._supervisor
        try:
            while supervisor.may_start:
                self._child = child = await supervisor.start()
                try:
                    stop_reason = await self._handle_messages(child)
                finally:
                    self._ready = None
                    await asyncio.to_thread(child.close)
                supervisor.record_exit(stop_reason or child.wait_or_terminate(), child.output_tail)
            self._fail_all(RunError(f"{self.name}: its process {supervisor.last_exit}"))
        except RunError as error:
            self._fail_all(error)

    async def _handle_messages(self, child: ProcessHandle) -> str:
        """Handle messages from a process; return the reason for its termination, or "" if the process exited."""
        self._ready = _new_future()
        self._connection = await AsyncConnection.from_socket(child.socket, FROM_ENGINE, VALUES)
        self._connection.send(self.init_message)
        next_message, idle_seconds = asyncio.ensure_future(self._connection.receive()), 0.0
        try:
            while idle_seconds < self.timeout:
                received, _ = await asyncio.wait([next_message], timeout=POLL_SECONDS)
                previous = idle_seconds
                idle_seconds = idle_seconds + POLL_SECONDS if self._is_busy() and not received else 0.0
                if previous < WARNING_SECONDS <= idle_seconds and self._ready.done():  # startup may take long
                    self._warn_no_response()
                if received:
                    self._handle(next_message.result())
                    next_message = asyncio.ensure_future(self._connection.receive())
        except EOFError:
            return ""
        except ValueError as error:
            return f"was ended: {error}"
        finally:
            next_message.cancel()
            if self._startup_task:
                self._startup_task.cancel()
            self._connection.close()
        return f"said nothing for {self.timeout:g} s (engine.timeout_seconds), and was ended"

    def _warn_no_response(self) -> None:
        logger.warning(
            "%s has said nothing for %g s; after %g s it is started again", self.name, WARNING_SECONDS, self.timeout
        )

    def _is_busy(self) -> bool:
        return bool(self._pending or self._pending_commands) or self._ready is None or not self._ready.done()

    def _handle(self, message: object) -> None:
        match message:
            case EngineReady(_, program, grammar_version):
                self.program, self._grammar_version = program, grammar_version
                self._startup_task = asyncio.create_task(self._initialize())
            case Completed(number):
                loaded = self._pending_commands.pop(number, None)
                if loaded and not loaded.done():
                    loaded.set_result(None)
            case RequestFailed(number, reason):
                self._fail_request(number, RowFailedError(reason))
            case Rejected(number, reason):
                self._fail_request(number, RunError(f"{self.name}: {reason}"))
            case RemoteError(reason):
                raise RunError(f"{self.name}: {reason}")
            case TokenChunk() | ScoreResponse():
                self._supervisor.reset()
                request = self._pending.get(message.number)
                if request is None or request.result.done():
                    return
                if isinstance(message, ScoreResponse):
                    request.scores = message
                if isinstance(message, ScoreResponse) or request.add_chunk(message):
                    request.result.set_result(None)

    async def _initialize(self) -> None:
        """Initialize a ready process: send the weights, including new ones, then the pending requests."""
        assert self._ready is not None
        sent_commands: list[object] = []
        while missing := [
            message for message in self._startup_commands() if not any(message is command for command in sent_commands)
        ]:
            for message in missing:
                await self._send_command(message)
            sent_commands += missing
        self._ready.set_result(None)
        for request in self._pending.values():
            message = request.message
            stops = request.stop_checker.stops if request.stop_checker else ()
            request.reset(StopStringChecker(self._detokenizers[message.policy](), stops) if stops else None)
            self._connection.send(message)

    def _startup_commands(self) -> list[object]:
        """Return the commands for a new process: the policies, and the sleep mode.

        The repeated sleep command also answers a wait that started with the previous process.
        """
        return [*self._weights.values(), *([self._last_sleep] if self._last_sleep else [])]

    async def _set_sleep(self, *, sleep: bool) -> None:
        """Put the process to sleep or wake it, if the engine has a sleep mode."""
        if not self.init_message.sleep_mode:
            return
        async with self._sleep_lock:
            if sleep is (self._last_sleep is not None and self._last_sleep.sleep):
                return
            if not sleep and torch.cuda.is_available():
                torch.cuda.empty_cache()  # memory cached by the learner becomes available to the engine
            self._last_sleep = SleepCommand(self._next_id(), sleep)
            await self._run_command(self._last_sleep, self._last_sleep.number)

    def _fail_request(self, number: int, error: Exception) -> None:
        request = self._pending.get(number)
        if request and not request.result.done():
            request.result.set_exception(error)

    def _monitor_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        self._error = error
        for future in [*(request.result for request in self._pending.values()), *self._pending_commands.values()]:
            if not future.done():
                future.set_exception(error)


def _streams_tokens(stop_checker: StopStringChecker | None, sampling: SamplingParams) -> bool:
    """Return whether to stream tokens.

    Grammar masks arrive with the last token. If a stop string of the run may end the action early, the engine therefore
    sends the whole action at once.
    """
    return bool(stop_checker or sampling.on_token) and not (stop_checker and sampling.grammar)


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
