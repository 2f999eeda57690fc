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
from marft.agents.chat_record import CHARACTERS_OF_A_TOKEN
from marft.agents.engine import Sampler
from marft.agents.rendering import NOTHING, Cut, Message, PromptTooLongError, Renderer
from marft.common.consulted import Consultation
from marft.common.errors import EpisodeFailedError
from marft.common.types import ActionKey, Completion, LogProbs, Observation, Profile, Sampling, TokenIds
from marft.common.usage import Usage
from marft.config.consulting import ConsultingSettings

if TYPE_CHECKING:
    from marft.agents.game import Game


@dataclass(frozen=True, slots=True)
class Helper:
    """Helper model for one kind of question, and its input before the question: the task, the turn so far."""

    policy: str
    profile: Profile
    sampling: Sampling
    sees: frozenset[Literal["task", "turn"]] = frozenset(("task", "turn"))


@dataclass(frozen=True, eq=False)
class Consulting:
    """Syntax of helper calls and replies, with the available helpers.

    Args:
        helpers: by kind.
        call: format of a call, with ``{kind}`` and ``{question}``.
        reply: format of a reply, with ``{text}``.
        told: when the prompt announces that the agent may ask.
        about: the announcement.
    """

    helpers: Mapping[str, Helper]
    call: str
    reply: str
    told: str = "helped"
    about: str = ""

    @staticmethod
    def of(settings: ConsultingSettings) -> Consulting:
        """Build the helper configuration from a recipe's settings."""
        helpers = {
            kind: Helper(one.policy, Profile(kind, one.instructions), one.sampling.resolve(), frozenset(one.sees))
            for kind, one in settings.helpers.items()
        }
        example = settings.call.format(kind="KIND", question="your question")
        kinds = [f"{kind}: {one.about}" if one.about else kind for kind, one in settings.helpers.items()]
        about = "\n".join([f"You may ask for help while you write: {example}, with one of these as KIND.", *kinds])
        return Consulting(helpers, settings.call, settings.reply, settings.told, about)

    @cached_property
    def closes(self) -> str:
        """The text that ends a call."""
        return self.call.partition("{question}")[2]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        before, _, rest = self.call.partition("{kind}")
        between = rest.partition("{question}")[0]
        parts = [re.escape(part) for part in (before, between, self.closes)]
        return re.compile(rf"{parts[0]}(?P<kind>\w+?){parts[1]}(?P<question>.*?){parts[2]}", re.DOTALL)

    def asked(self, said: str) -> tuple[str, str] | None:
        """Return kind and question of the helper call at the end of a text.

        If several openings are possible, the last one that completes a call counts. Return None without a call to a
        known helper.

        >>> helper = Helper("teacher", Profile("verify"), Sampling())
        >>> consulting = Consulting({"verify": helper}, "<consult {kind}>{question}</consult>", "<reply>{text}</reply>")
        >>> consulting.asked("Is it 7? <consult verify>3 + 4 = 7?</consult>")
        ('verify', '3 + 4 = 7?')
        """
        opening = re.escape(self.call.partition("{kind}")[0])
        calls = [self._pattern.match(said, begins.start()) for begins in re.finditer(opening, said)]
        found = next((call for call in reversed(calls) if call and call["kind"] in self.helpers), None)
        return (found["kind"], found["question"]) if found else None

    def tells(self, profile: Profile, may_ask: bool) -> Profile:
        """Return the agent's profile, with the announcement of helpers if the settings call for it."""
        if self.told == "never" or (self.told == "helped" and not may_ask):
            return profile
        return replace(profile, instructions="\n\n".join(filter(None, (profile.instructions, self.about))))


@dataclass(frozen=True, slots=True, eq=False)
class Quote:
    """Text inserted into a turn after the end of a helper call.

    Args:
        said: the agent's sampled text, including the end marker of the call.
        tokens: the reply in the agent's own vocabulary, [T]; empty if the call named no known helper.
        log_probs: the helper's log-probabilities, [T]; 0 (probability 1) where they are unknown.
    """

    said: str
    tokens: TokenIds = field(default_factory=lambda: NOTHING)  # [T]
    log_probs: LogProbs = field(default_factory=lambda: np.empty(0, np.float32))  # [T]
    text: str = ""
    consultation: Consultation | None = None
    usage: Usage | None = None


class Counsel:
    """Handler for one action's helper calls.

    Args:
        task: the observation shown to the agent.
        left: number of calls that the agent may still make.
    """

    def __init__(self, consulting: Consulting, engine: Sampler, renderer: Renderer, task: str, left: int) -> None:
        self.consulting, self.engine, self.renderer = consulting, engine, renderer
        self.task, self.left = task, left
        self._asked = 0

    @staticmethod
    def of(game: Game, role: str, observation: Observation, left: int) -> Counsel | None:
        """Return the helper access for an agent's action, or None if the agent may not call helpers."""
        consulting = game.team.consulting
        if not left or consulting is None or role not in game.team.consult:
            return None
        return Counsel(consulting, game.engine, game.renderer, observation.seen_by(role), left)

    def sampling(self, sampling: Sampling) -> Sampling:
        """Return the agent's sampling settings; while calls remain, the call's end marker stops sampling at once."""
        return replace(sampling, stop=(*sampling.stop, self.consulting.closes)) if self.left else sampling

    async def quote(
        self, agent: Agent, key: ActionKey, before: str, completion: Completion, rounds: int, inside: bool = False
    ) -> Quote | None:
        """Return the insertion after a completion that ends with a helper call, or None for other completions.

        Args:
            before: the turn's text before the completion.
            rounds: number of earlier tool rounds in the action.
            inside: whether the completion continues tokens from another source.
        """
        said = self.renderer.spelled(agent.policy, completion.tokens, inside)
        ended = any(stop in said for stop in agent.sampling.stop if isinstance(stop, str))
        if completion.finish != "stop" or not self.left or ended or self.consulting.closes not in said:
            return None
        asked = self.consulting.asked(said)
        if asked is None:
            return Quote(said)
        self.left -= 1
        self._asked += 1
        (kind, question), written, began = asked, before + said, time.perf_counter()
        answer, error = await self._answer(kind, agent.role, key, written, question)
        tokens, log_probs, text = self._reply(agent.policy, kind, answer)
        size, seconds = len(answer.tokens) if answer else 0, time.perf_counter() - began
        told = Consultation(kind, question, text, len(written), rounds, size, seconds, error)
        return Quote(said, tokens, log_probs, text, told, answer.usage if answer else None)

    async def _answer(
        self, kind: str, role: str, key: ActionKey, written: str, question: str
    ) -> tuple[Completion | None, str]:
        """Return a helper's completion and "", or None and the error message."""
        helper = self.consulting.helpers[kind]
        seen = [Message(role, written)] if "turn" in helper.sees else []
        profile, shown = replace(helper.profile, guidance=question), self.task if "task" in helper.sees else ""
        reserve = helper.sampling.max_new_tokens
        try:
            prompt = self.renderer.render(helper.policy, profile, shown, seen, reserve=reserve, cut=Cut())
        except PromptTooLongError as error:
            return None, str(error)
        name = key._replace(stream=f"{key.stream}+?{self._asked}")
        try:
            said = await self.engine.sample(helper.policy, prompt, helper.sampling, name)
        # The agent continues without a reply: a helper failure does not cost the attempt.
        except EpisodeFailedError as error:
            return None, str(error)
        thought = self.renderer.thought(helper.policy, said.text)
        return replace(said, text=said.text[: thought + reserve * CHARACTERS_OF_A_TOKEN]), ""

    def _reply(self, policy: str, kind: str, answer: Completion | None) -> tuple[TokenIds, LogProbs, str]:
        """Return the formatted reply: token ids, log-probabilities and text.

        If the helper shares the agent's tokens, the reply keeps the sampled ids and log-probabilities.
        """
        before, _, after = self.consulting.reply.partition("{text}")
        helper = self.consulting.helpers[kind].policy
        text = answer.text[self.renderer.thought(helper, answer.text) :] if answer else ""
        own = self.renderer.quotable(policy, helper, answer.tokens, text) if answer else None
        parts = [self.renderer.ids(policy, part) for part in (before, text, after)]
        known = [np.zeros(len(part), np.float32) for part in parts]
        if own is not None and answer is not None:
            parts[1], known[1] = own, answer.log_probs[: len(own)]
        return np.concatenate(parts), np.concatenate(known), f"{before}{text}{after}"
