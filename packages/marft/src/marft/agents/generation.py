"""How an agent's action comes about: it writes, maybe on from a teammate's text, or chooses from a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_

import numpy as np
import numpy.typing as npt

from marft.agents.agents import Agent, Request
from marft.agents.chat import Chat, ChatRefusedError
from marft.agents.chat_record import ChatRecord
from marft.agents.consulting import Counsel, Quote
from marft.agents.engine import Sampler
from marft.agents.live import Live
from marft.agents.rendering import NOTHING, ChatMessage, NotExact, Renderer
from marft.agents.tool_belt import ToolBelt
from marft.common.errors import EpisodeFailedError, RowFailedError
from marft.common.marks import Mark, Masks, only
from marft.common.segments import Restart
from marft.common.texts import raised
from marft.common.thoughts import Said, thinking_after
from marft.common.types import Action, ActionKey, Completion, Finish, LogProbs, Option, Prompt, TokenIds, ToolCall
from marft.common.usage import Usage


@dataclass(frozen=True, slots=True, eq=False)
class ResponsePrefix:
    """A teammate's text at the beginning of a turn."""

    tokens: TokenIds = field(default_factory=lambda: np.empty(0, np.int32))  # [T]
    marks: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))  # [T]
    log_probs: LogProbs = field(default_factory=lambda: np.empty(0, np.float32))  # [number of teammate tokens]
    text: str = ""


def response_prefix_of(renderer: Renderer, policy: str, begins: Action | None) -> ResponsePrefix:
    """What a turn begins with: a teammate's tokens, under the marks and log-probs that they have for others. Of an
    action that went on from a chat that was rendered anew, those that came after it.
    """
    if begins is None:
        return ResponsePrefix()
    if begins.choice:
        raise ValueError(f"{begins.id} was chosen from a list: no turn can begin with it; pass it on as a message")
    count, start = renderer.response_prefix(policy, begins), begins.segments[-1].start
    log_probs = np.zeros(len(begins.tokens), np.float32)
    log_probs[begins.sampled] = begins.log_probs
    if begins.teammate_log_probs is not None:
        log_probs[begins.by_teammate] = begins.teammate_log_probs
    written = begins.own | begins.by_teammate
    marks = np.where(written, np.uint8(Mark.TEAMMATE), begins.marks)[:count]
    return ResponsePrefix(
        begins.tokens[start:count], marks[start:], log_probs[start:count][written[start:count]], begins.text
    )


def options_of(renderer: Renderer, policy: str, request: Request) -> list[Option]:
    """What the agent may choose from, as token ids; nothing when it is to write."""
    options = []
    for text in request.options:
        ids = renderer.option(policy, text)
        sizes = {"none": 1, "tokens": len(ids), "words": len(text.split())}
        options.append(Option(ids, float(max(1, sizes[request.normalisation]))))
    return options


async def generate(
    engine: Sampler,
    renderer: Renderer,
    belt: ToolBelt,
    agent: Agent,
    prompt: Prompt,
    prefix: ResponsePrefix,
    key: ActionKey,
    live: Live | None = None,
    counsel: Counsel | None = None,
) -> Action:
    """Sample a text that goes on from the prefix, after every question to a helper from its reply, and after every use
    of tools from what they answered.

    Where it stands in the episode is filled in by the caller.

    Args:
        live: hears it, where there is neither a prefix nor a tool nor a helper: else what is sampled first need not be
            its text.
        counsel: answers the agent's questions, where it may ask any.
    """
    draft = Draft(prompt, prefix)
    limits, left, rounds = agent.tool_use, agent.sampling.max_new_tokens, 0
    if live and not (agent.profile.tools or len(prefix.tokens) or counsel):
        live.text = partial(renderer.live, agent.policy, agent.sampling.stop, agent.thinking == "drop", False)
        agent = replace(agent, sampling=replace(agent.sampling, listener=live))
    while True:
        sampling = replace(counsel.sampling(agent.sampling) if counsel else agent.sampling, max_new_tokens=left)
        completion = await engine.sample(agent.policy, draft.so_far(), sampling, turn_key(key, draft.samplings))
        before, begun = draft.text, draft.turn
        completion = _going_on(renderer, agent.policy, completion) if len(begun) else completion
        draft.say(completion)
        quote = await counsel.quote(agent, key, before, completion, rounds, bool(len(begun))) if counsel else None
        if quote is not None:
            room = renderer.context(agent.policy) - draft.length - len(quote.tokens)
            left = min(agent.sampling.max_new_tokens - draft.sampled, room)
            if left < 1:
                return draft.action(key, agent, "length")
            draft.quote(before, quote)
            continue
        calls = _calls_in(renderer, agent, completion, begun)
        if not calls:
            return draft.action(key, agent, completion.finish)
        if rounds == limits.rounds:
            return draft.action(key, agent, "length")
        clip = partial(renderer.clip, agent.policy, tokens=limits.output_tokens)
        answered = [replace(call, round=rounds) for call in await belt.use(limits, calls, clip)]
        draft.calls += answered
        heard = draft.heard(renderer, agent, completion, answered)
        rounds += 1
        left = min(
            agent.sampling.max_new_tokens - draft.sampled, renderer.context(agent.policy) - draft.length_with(heard)
        )
        if left < 1:
            return draft.action(key, agent, "length")
        draft.hear(heard)


def check_log_probs(action: Action) -> None:
    """
    Raises:
        EpisodeFailedError: nobody could learn from them.
    """
    whole = action.choice.log_probs if action.choice else action.log_probs
    if not np.isfinite(action.log_probs).all() or np.isnan(whole).any():
        raise EpisodeFailedError("failed", f"{action.agent} sampled a token whose log-prob is not a finite number")


def turn_key(key: ActionKey, rounds: int) -> ActionKey:
    """The name of the random stream of an action's text after so many uses of tools."""
    return key._replace(stream=f"{key.stream}+{rounds}") if rounds else key


def _going_on(renderer: Renderer, policy: str, completion: Completion) -> Completion:
    """Return a completion whose turn others began, with the space that its text begins with there."""
    alone, inside = (renderer.spelled(policy, completion.tokens, at) for at in (False, True))
    space = inside[: len(inside) - len(alone)] if inside.endswith(alone) else ""
    return replace(completion, text=space + completion.text)


def _calls_in(renderer: Renderer, agent: Agent, completion: Completion, begun: TokenIds) -> Sequence[ToolCall]:
    if not agent.profile.tools or completion.finish == "length":
        return ()
    if completion.calls is not None:
        return completion.calls
    return renderer.calls(agent.policy, completion.tokens, agent.profile.tools, begun)


@dataclass(frozen=True, slots=True, eq=False)
class _Heard:
    """What comes after a turn that called tools.

    Args:
        messages: of the chat so far.
        ids: that are appended, or those of the whole chat, rendered anew, where there is a reason for it.
    """

    messages: list[ChatMessage]
    ids: TokenIds  # [T]
    anew: str = ""


class Draft:
    """An action that is being written: what was sampled, what helpers replied, what tools answered in between."""

    def __init__(self, prompt: Prompt, prefix: ResponsePrefix) -> None:
        self.prompt, self.prefix = prompt, prefix
        self.chat = list(prompt.chat)
        self.calls: list[ToolCall] = []
        self._said: list[Completion] = []
        self._quotes: list[Quote] = []
        self._texts = [""]  # of each turn as it was written here, replies included
        self._turn_at = 0  # which of the tokens' parts the turn begins with
        self._tokens, self._marks = [prefix.tokens], [prefix.marks]
        self._context = [prompt.ids, prefix.tokens]  # what is sampled from next
        self._restarts: list[Restart] = []
        self._masks: list[tuple[int, Masks]] = []  # and at which token what they held begins

    @property
    def samplings(self) -> int:
        return len(self._said)

    @property
    def sampled(self) -> int:
        return sum(len(said.tokens) for said in self._said)

    @property
    def length(self) -> int:
        """Tokens of what is sampled from next."""
        return sum(map(len, self._context))

    @property
    def text(self) -> str:
        """Of the turn, so far, without what a teammate began it with."""
        return self._texts[-1]

    @property
    def turn(self) -> TokenIds:
        """The turn's tokens so far, what a teammate began it with included."""
        return np.concatenate([NOTHING, *self._tokens[self._turn_at :]])

    def so_far(self) -> Prompt:
        """What is sampled from next."""
        return replace(self.prompt, ids=np.concatenate(self._context), chat=tuple(self.chat))

    def say(self, completion: Completion) -> None:
        self._said.append(completion)
        if completion.masks:
            self._masks.append((sum(map(len, self._tokens)), completion.masks))
        self._texts[-1] += completion.text
        self._write(completion.tokens, Mark.SAMPLED)
        self._marks[-1][list(completion.forced)] = Mark.FORCED

    def quote(self, before: str, quote: Quote) -> None:
        """Go on after what a helper replied.

        Args:
            before: the turn's text before what was sampled last, which ends with the question.
        """
        self._quotes.append(quote)
        self._texts[-1] = before + quote.said + quote.text
        self._write(quote.tokens, Mark.TEAMMATE)

    def heard(self, renderer: Renderer, agent: Agent, completion: Completion, calls: Sequence[ToolCall]) -> _Heard:
        """What the chat template puts after the last turn; the whole chat where it changes what stands there.

        Raises:
            EpisodeFailedError: the template cannot show it.
        """
        policy, tools = agent.policy, self.prompt.tools
        begun = self.prefix.tokens if len(self._texts) == 1 else NOTHING
        try:
            chat = [*self.chat, *renderer.calling_turn(policy, self.text, calls, begun)]
            found = renderer.tool_response(policy, completion.tokens, chat, calls, tools)
            if isinstance(found, NotExact):
                return _Heard(chat, renderer.start(policy, chat, tools), found.reason)
        except (ValueError, TypeError, RecursionError) as error:  # of a template that renders what others wrote
            raise EpisodeFailedError("failed", f"{agent.role}: {raised(error)}") from error
        return _Heard(chat, found)

    def length_with(self, heard: _Heard) -> int:
        """Tokens that the next turn would be sampled from."""
        return len(heard.ids) + (0 if heard.anew else self.length)

    def hear(self, heard: _Heard) -> None:
        """Go on after what tools answered: a segment begins where the chat was rendered anew."""
        self.chat = heard.messages
        if heard.anew:
            at = sum(map(len, self._tokens))
            self._restarts.append(Restart(at, heard.ids, len(self._texts), heard.anew))
            self._context = [heard.ids]
        else:
            self._write(heard.ids, Mark.TOOL)
        self._texts.append("")
        self._turn_at = len(self._tokens)

    def _write(self, ids: TokenIds, mark: Mark) -> None:
        self._tokens.append(ids)
        self._marks.append(np.full(len(ids), mark, np.uint8))
        self._context.append(ids)

    def action(self, key: ActionKey, agent: Agent, finish: Finish) -> Action:
        tokens, marks = np.concatenate(self._tokens), np.concatenate(self._marks)
        forced = np.flatnonzero(marks == Mark.FORCED)
        if len(forced) and not (marks == Mark.SAMPLED).any():  # the last token stands for a decision
            last = int(forced[-1])
            marks[last] = Mark.SAMPLED
            self._masks.append((last, Masks.of([0], [only(int(tokens[last]))])))
        log_probs = np.zeros(len(tokens), np.float32)
        log_probs[np.isin(marks, (Mark.SAMPLED, Mark.FORCED))] = np.concatenate([s.log_probs for s in self._said])
        used = [usage for usage in (*(s.usage for s in self._said), *(q.usage for q in self._quotes)) if usage]
        of_others = np.concatenate([self.prefix.log_probs, *(quote.log_probs for quote in self._quotes)])
        begun = self.prefix.text if len(self._texts) == 1 else ""
        return Action(
            key=key,
            policy=agent.policy,
            profile_version=agent.profile.version,
            index=0,
            sees=(),
            prompt=self.prompt.ids,
            tokens=tokens,
            marks=marks,
            log_probs=log_probs[marks == Mark.SAMPLED],
            masks=Masks.joined(self._masks),
            teammate_log_probs=of_others if len(self.prefix.tokens) or self._quotes else None,
            text=begun + self._texts[-1],
            response_prefix=len(begun),
            intermediate_texts=tuple(self._texts[:-1]),
            calls=tuple(self.calls),
            consultations=tuple(quote.consultation for quote in self._quotes if quote.consultation),
            finish=finish,
            versions=reduce(or_, (said.versions for said in self._said)),
            usage=sum(used, Usage()) if used else None,
            restarts=tuple(self._restarts),
        )


async def answer(
    engine: Sampler, record: ChatRecord, agent: Agent, chat: Chat, prompt: Prompt, key: ActionKey
) -> Action:  # fmt: skip
    """Sample one turn of a client's chat. The calls in it are the client's to make.

    Where it stands in the episode is filled in by the caller.

    Raises:
        ChatRefusedError: its row could not be sampled.
    """
    renderer = record.renderer
    room = renderer.context(agent.policy) - len(prompt.ids)
    grammar = renderer.grammar(agent.policy, chat) if chat.constraint else None
    calls = bool(chat.tools) and chat.calls
    sampling = chat.sampling(agent.sampling, room, grammar, _call_end(renderer, agent, chat))
    begun = {"begun": chat.begun} if chat.begun else {}
    if chat.live:
        chat.live.text = partial(renderer.live, agent.policy, sampling.stop, agent.thinking == "drop", calls, **begun)
    try:
        completion = await engine.sample(agent.policy, prompt, sampling, key)
    except RowFailedError as error:  # the client's to hear: the episode goes on
        raise ChatRefusedError("unsupported" if error.form else "failed", error.reason) from error
    completion = _going_on(renderer, agent.policy, completion) if chat.begun else completion
    draft = Draft(prompt, ResponsePrefix())
    draft.say(completion)
    if calls and completion.finish == "stop":
        found = list(_called(record, agent, chat, completion) if completion.calls is None else completion.calls)
        draft.calls += ([call for call in found if call.name][:1] or found) if chat.calls_once else found
    action = replace(draft.action(key, agent, completion.finish), wishes=chat.recorded())
    if completion.alternatives:
        record.note_alternatives(action.id, completion.alternatives)
    return action


def _called(record: ChatRecord, agent: Agent, chat: Chat, completion: Completion) -> Sequence[ToolCall]:
    """Return the calls in what a client is told of a turn."""
    told = record.told(chat, agent.policy, completion.tokens, completion.text)
    begun = record.renderer.opening(agent.policy, chat.begun) if chat.begun else NOTHING
    return record.renderer.calls(agent.policy, told, chat.tools, begun)


def _call_end(renderer: Renderer, agent: Agent, chat: Chat) -> str | Said:
    """Return the mark that ends a turn after its first call; "" where no such mark is to end it."""
    end = renderer.call_end(agent.policy) if chat.calls_once else ""
    return replace(end, begun=thinking_after(chat.begun, end.begun)) if isinstance(end, Said) else end


async def choose(
    engine: Sampler, agent: Agent, request: Request, prompt: Prompt, options: Sequence[Option], key: ActionKey
) -> Action:
    """Choose one of the options. Where it stands in the episode is filled in by the caller."""
    choice, versions = await engine.choose(agent.policy, prompt, options, agent.sampling, key)
    tokens = options[choice.chosen].tokens
    return Action(
        key=key,
        policy=agent.policy,
        profile_version=agent.profile.version,
        index=0,
        sees=(),
        prompt=prompt.ids,
        tokens=tokens,
        marks=np.full(len(tokens), Mark.SAMPLED, np.uint8),
        log_probs=choice.log_probs[[choice.chosen]],
        text=request.options[choice.chosen],
        finish="stop",
        versions=versions,
        choice=choice,
        usage=choice.usage,
    )
