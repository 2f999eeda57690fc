"""Helper calls: ``consult(kind, question)`` within a turn, the helper's answer, and its reply in the turn (AIPO)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from marft.agents.agents import Agent
from marft.agents.chat_history import CHARACTERS_PER_TOKEN
from marft.agents.prompt_messages import NO_TOKENS, PromptTooLongError, Renderer, TruncationPolicy
from marft.common.errors import EpisodeFailedError
from marft.common.types import (
    ActionKey,
    AgentProfile,
    Completion,
    HelperCallRecord,
    LogProbs,
    Observation,
    SamplingParams,
    TokenIds,
)
from marft.common.usage import Usage
from marft.config.helpers import HelperCallSettings
from marft.config.interfaces.channel import Message
from marft.config.interfaces.engine import Sampler

if TYPE_CHECKING:
    from marft.agents.game import Game


@dataclass(frozen=True, slots=True)
class Helper:
    """Helper model for one kind of question, and its input before the question: the task, the turn so far."""

    policy: str
    profile: AgentProfile
    sampling: SamplingParams
    sees: frozenset[Literal["task", "turn"]] = frozenset(("task", "turn"))


@dataclass(frozen=True, eq=False)
class HelperConfig:
    """Syntax of helper calls and replies, with the available helpers.

    Args:
        helpers: by kind.
        call: format of a call, with ``{kind}`` and ``{question}``.
        reply: format of a reply, with ``{text}``.
        prompt_mode: when the prompt announces that the agent may ask.
        description: the announcement.
    """

    helpers: Mapping[str, Helper]
    call: str
    reply: str
    prompt_mode: str = "when_available"
    description: str = ""

    @staticmethod
    def from_settings(settings: HelperCallSettings) -> HelperConfig:
        """Build the helper configuration from a recipe's settings."""
        example = settings.call_template.format(kind="KIND", question="your question")
        lines = [f"You may ask for help while you write: {example}, with one of these as KIND."]
        helpers = {}
        for kind, helper in settings.helpers.items():
            profile, sampling = AgentProfile(kind, helper.instructions), helper.sampling.to_sampling_params()
            helpers[kind] = Helper(helper.policy, profile, sampling, frozenset(helper.context))
            lines.append(f"{kind}: {helper.description}" if helper.description else kind)
        description = "\n".join(lines)
        return HelperConfig(helpers, settings.call_template, settings.reply_template, settings.visible, description)

    @cached_property
    def call_end(self) -> str:
        """The text that ends a call."""
        return self.call.partition("{question}")[2]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        before, _, after_kind = self.call.partition("{kind}")
        between = after_kind.partition("{question}")[0]
        parts = [re.escape(part) for part in (before, between, self.call_end)]
        return re.compile(rf"{parts[0]}(?P<kind>\w+?){parts[1]}(?P<question>.*?){parts[2]}", re.DOTALL)

    def parse_call(self, text: str) -> tuple[str, str] | None:
        """Return kind and question of the helper call at the end of a text.

        If several openings are possible, the last one that completes a call counts. Return None without a call to a
        known helper.

        >>> helper = Helper("teacher", AgentProfile("verify"), SamplingParams())
        >>> config = HelperConfig({"verify": helper}, "<consult {kind}>{question}</consult>", "<reply>{text}</reply>")
        >>> config.parse_call("Is it 7? <consult verify>3 + 4 = 7?</consult>")
        ('verify', '3 + 4 = 7?')
        """
        opening = re.escape(self.call.partition("{kind}")[0])
        calls = [self._pattern.match(text, begins.start()) for begins in re.finditer(opening, text)]
        match = next((call for call in reversed(calls) if call and call["kind"] in self.helpers), None)
        return (match["kind"], match["question"]) if match else None

    def describe_helpers(self, profile: AgentProfile, may_ask: bool) -> AgentProfile:
        """Return the agent's profile, with the announcement of helpers if the settings call for it."""
        if self.prompt_mode == "never" or (self.prompt_mode == "when_available" and not may_ask):
            return profile
        return replace(profile, instructions="\n\n".join(filter(None, (profile.instructions, self.description))))


@dataclass(frozen=True, slots=True, eq=False)
class HelperReply:
    """Text inserted into a turn after the end of a helper call.

    Args:
        call_text: the agent's sampled text, including the end marker of the call.
        tokens: the reply in the agent's own vocabulary, [T]; empty if the call named no known helper.
        log_probs: the helper's log-probabilities, [T]; 0 (probability 1) where they are unknown.
    """

    call_text: str
    tokens: TokenIds = field(default_factory=lambda: NO_TOKENS)  # [T]
    log_probs: LogProbs = field(default_factory=lambda: np.empty(0, np.float32))  # [T]
    text: str = ""
    record: HelperCallRecord | None = None
    usage: Usage | None = None


class HelperCall:
    """Handler for one action's helper calls.

    Args:
        task: the observation shown to the agent.
        remaining: number of calls that the agent may still make.
    """

    def __init__(self, config: HelperConfig, engine: Sampler, renderer: Renderer, task: str, remaining: int) -> None:
        self.config, self.engine, self.renderer = config, engine, renderer
        self.task, self.remaining = task, remaining
        self._call_count = 0

    @staticmethod
    def from_game(game: Game, role: str, observation: Observation, remaining: int) -> HelperCall | None:
        """Return the helper access for an agent's action, or None if the agent may not call helpers."""
        config = game.team.helpers
        if not remaining or config is None or role not in game.team.helper_callers:
            return None
        return HelperCall(config, game.engine, game.renderer, observation.for_role(role), remaining)

    def resolve_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return the agent's sampling settings; while calls remain, the call's end marker stops sampling at once."""
        return replace(sampling, stop=(*sampling.stop, self.config.call_end)) if self.remaining else sampling

    async def reply(
        self, agent: Agent, key: ActionKey, before: str, completion: Completion, rounds: int, inside: bool = False
    ) -> HelperReply | None:
        """Return the insertion after a completion that ends with a helper call, or None for other completions.

        Args:
            before: the turn's text before the completion.
            rounds: number of earlier tool rounds in the action.
            inside: whether the completion continues tokens from another source.
        """
        call_text = self.renderer.decode_tokens(agent.policy, completion.tokens, inside)
        stopped = any(stop in call_text for stop in agent.sampling.stop if isinstance(stop, str))
        if completion.finish != "stop" or not self.remaining or stopped or self.config.call_end not in call_text:
            return None
        parsed_call = self.config.parse_call(call_text)
        if parsed_call is None:
            return HelperReply(call_text)
        self.remaining -= 1
        self._call_count += 1
        (kind, question), written, start_time = parsed_call, before + call_text, time.perf_counter()
        answer, error = await self._sample_answer(kind, agent.role, key, written, question)
        tokens, log_probs, text = self._format_reply(agent.policy, kind, answer)
        size, seconds = len(answer.tokens) if answer else 0, time.perf_counter() - start_time
        record = HelperCallRecord(kind, question, text, len(written), rounds, size, seconds, error)
        return HelperReply(call_text, tokens, log_probs, text, record, answer.usage if answer else None)

    async def _sample_answer(
        self, kind: str, role: str, key: ActionKey, written: str, question: str
    ) -> tuple[Completion | None, str]:
        """Return a helper's completion and "", or None and the error message."""
        helper = self.config.helpers[kind]
        seen = [Message(role, written)] if "turn" in helper.sees else []
        profile, visible_task = replace(helper.profile, guidance=question), self.task if "task" in helper.sees else ""
        reserve = helper.sampling.max_new_tokens
        try:
            cut = TruncationPolicy()
            prompt = self.renderer.render(helper.policy, profile, visible_task, seen, reserve=reserve, cut=cut)
            name = key._replace(stream=f"{key.stream}+?{self._call_count}")
            completion = await self.engine.sample(helper.policy, prompt, helper.sampling, name)
        # The agent continues without a reply: a helper failure does not cost the attempt.
        except (PromptTooLongError, EpisodeFailedError) as error:
            return None, str(error)
        thought = self.renderer.reasoning_length(helper.policy, completion.text)
        return replace(completion, text=completion.text[: thought + reserve * CHARACTERS_PER_TOKEN]), ""

    def _format_reply(self, policy: str, kind: str, answer: Completion | None) -> tuple[TokenIds, LogProbs, str]:
        """Return the formatted reply: token ids, log-probabilities and text.

        If the helper shares the agent's tokens, the reply keeps the sampled ids and log-probabilities.
        """
        before, _, after = self.config.reply.partition("{text}")
        helper = self.config.helpers[kind].policy
        text = answer.text[self.renderer.reasoning_length(helper, answer.text) :] if answer else ""
        shared_tokens = self.renderer.shared_tokens(policy, helper, answer.tokens, text) if answer else None
        parts = [self.renderer.encode_text(policy, part) for part in (before, text, after)]
        log_probs = [np.zeros(len(part), np.float32) for part in parts]
        if shared_tokens is not None and answer is not None:
            parts[1], log_probs[1] = shared_tokens, answer.log_probs[: len(shared_tokens)]
        return np.concatenate(parts), np.concatenate(log_probs), f"{before}{text}{after}"
