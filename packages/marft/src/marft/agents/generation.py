"""Generation of an agent's action: sampled text, a continued teammate text, or a choice from a list."""

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
    """Teammate's text at the beginning of a turn."""

    tokens: TokenIds = field(default_factory=lambda: np.empty(0, np.int32))  # [T]
    marks: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))  # [T]
    log_probs: LogProbs = field(default_factory=lambda: np.empty(0, np.float32))  # [number of teammate tokens]
    text: str = ""


def response_prefix_of(renderer: Renderer, policy: str, begins: Action | None) -> ResponsePrefix:
    """Return the beginning of a turn: a teammate's tokens with their marks and log-probabilities, as seen by others.

    If the teammate's action continued a freshly rendered chat, only the tokens after that chat count.

    Raises:
        ValueError: the action was chosen from a list, so no turn can begin with it.
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
    """Return the request's options as token ids with their normalizers Z; empty if the agent writes."""
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
    """Sample a text after the prefix, with helper replies and tool outputs inserted as they occur.

    After each helper call, sampling continues from the reply; after each tool round, from the tool outputs. The
    caller fills in the action's position in the episode.

    Args:
        live: stream for the tokens. It is used only without a prefix, tools and helpers: otherwise the tokens sampled
            first may not be the action's final text.
        counsel: access to helpers, if the agent may call any.
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
    """Raise an error if an action's log-probabilities are not finite.

    An excluded option of a choice may have a log-probability of -inf.

    Raises:
        EpisodeFailedError: a sampled token's log-probability is not finite, or an option's is NaN, so the action
            cannot be trained.
    """
    whole = action.choice.log_probs if action.choice else action.log_probs
    if not np.isfinite(action.log_probs).all() or np.isnan(whole).any():
        raise EpisodeFailedError("failed", f"{action.agent} sampled a token whose log-prob is not a finite number")


def turn_key(key: ActionKey, rounds: int) -> ActionKey:
    """Return the key for the random stream of an action's text after ``rounds`` earlier samplings."""
    return key._replace(stream=f"{key.stream}+{rounds}") if rounds else key


def _going_on(renderer: Renderer, policy: str, completion: Completion) -> Completion:
    """Return a completion from the middle of a turn, with its leading space.

    Decoding at the start of a turn drops the space.
    """
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
    """Chat and token ids after a turn that called tools.

    Args:
        messages: all messages of the chat so far.
        ids: the ids to append, [T]; or, if ``anew`` gives a reason, the ids of the whole chat rendered again.
        anew: reason for rendering the whole chat again, or "".
    """

    messages: list[ChatMessage]
    ids: TokenIds  # [T]
    anew: str = ""


class Draft:
    """Builder for an action: sampled completions, helper replies and tool outputs between them."""

    def __init__(self, prompt: Prompt, prefix: ResponsePrefix) -> None:
        self.prompt, self.prefix = prompt, prefix
        self.chat = list(prompt.chat)
        self.calls: list[ToolCall] = []
        self._said: list[Completion] = []
        self._quotes: list[Quote] = []
        self._texts = [""]  # text of each turn as generated here, including helper replies
        self._turn_at = 0  # index of the turn's first part in _tokens
        self._tokens, self._marks = [prefix.tokens], [prefix.marks]
        self._context = [prompt.ids, prefix.tokens]  # context for the next sampling
        self._restarts: list[Restart] = []
        self._masks: list[tuple[int, Masks]] = []  # (index of the first token, token masks of a completion)

    @property
    def samplings(self) -> int:
        """Number of completions so far."""
        return len(self._said)

    @property
    def sampled(self) -> int:
        """Number of sampled and forced tokens so far."""
        return sum(len(said.tokens) for said in self._said)

    @property
    def length(self) -> int:
        """Number of tokens in the context for the next sampling."""
        return sum(map(len, self._context))

    @property
    def text(self) -> str:
        """The turn's text so far, without a teammate's prefix."""
        return self._texts[-1]

    @property
    def turn(self) -> TokenIds:
        """The turn's tokens so far, including a teammate's prefix, [T]."""
        return np.concatenate([NOTHING, *self._tokens[self._turn_at :]])

    def so_far(self) -> Prompt:
        """Return the prompt for the next sampling."""
        return replace(self.prompt, ids=np.concatenate(self._context), chat=tuple(self.chat))

    def say(self, completion: Completion) -> None:
        """Add a completion."""
        self._said.append(completion)
        if completion.masks:
            self._masks.append((sum(map(len, self._tokens)), completion.masks))
        self._texts[-1] += completion.text
        self._write(completion.tokens, Mark.SAMPLED)
        self._marks[-1][list(completion.forced)] = Mark.FORCED

    def quote(self, before: str, quote: Quote) -> None:
        """Add a helper's reply.

        Args:
            before: text of the turn before the last completion, which ends with the helper call.
            quote: the call's end and the reply.
        """
        self._quotes.append(quote)
        self._texts[-1] = before + quote.said + quote.text
        self._write(quote.tokens, Mark.TEAMMATE)

    def heard(self, renderer: Renderer, agent: Agent, completion: Completion, calls: Sequence[ToolCall]) -> _Heard:
        """Return the template's rendering of tool outputs after the last turn.

        If the template changes earlier parts, return the whole chat instead, rendered again.

        Raises:
            EpisodeFailedError: the template cannot render the tool outputs.
        """
        policy, tools = agent.policy, self.prompt.tools
        begun = self.prefix.tokens if len(self._texts) == 1 else NOTHING
        try:
            chat = [*self.chat, *renderer.calling_turn(policy, self.text, calls, begun)]
            found = renderer.tool_response(policy, completion.tokens, chat, calls, tools)
            if isinstance(found, NotExact):
                return _Heard(chat, renderer.start(policy, chat, tools), found.reason)
        # a template that renders text from tools can raise any of these
        except (ValueError, TypeError, RecursionError) as error:
            raise EpisodeFailedError("failed", f"{agent.role}: {raised(error)}") from error
        return _Heard(chat, found)

    def length_with(self, heard: _Heard) -> int:
        """Return the context length for the next turn, in tokens."""
        return len(heard.ids) + (0 if heard.anew else self.length)

    def hear(self, heard: _Heard) -> None:
        """Add tool outputs; if the chat was rendered again, a new segment begins."""
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
        """Build the action; the caller fills in its position in the episode."""
        tokens, marks = np.concatenate(self._tokens), np.concatenate(self._marks)
        forced = np.flatnonzero(marks == Mark.FORCED)
        # an action needs one trained decision: the last forced token takes that role
        if len(forced) and not (marks == Mark.SAMPLED).any():
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
    """Sample one turn of a client's chat; the client executes its tool calls.

    The caller fills in the action's position in the episode.

    Raises:
        ChatRefusedError: the engine could not sample this request.
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
    except RowFailedError as error:  # the client receives the error and the episode continues
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
    """Return the tool calls in the part of a turn that the client receives."""
    told = record.told(chat, agent.policy, completion.tokens, completion.text)
    begun = record.renderer.opening(agent.policy, chat.begun) if chat.begun else NOTHING
    return record.renderer.calls(agent.policy, told, chat.tools, begun)


def _call_end(renderer: Renderer, agent: Agent, chat: Chat) -> str | Said:
    """Return the marker that ends a turn after its first tool call, or "" if the turn may continue."""
    end = renderer.call_end(agent.policy) if chat.calls_once else ""
    return replace(end, begun=thinking_after(chat.begun, end.begun)) if isinstance(end, Said) else end


async def choose(
    engine: Sampler, agent: Agent, request: Request, prompt: Prompt, options: Sequence[Option], key: ActionKey
) -> Action:
    """Choose one option. The caller fills in the action's position in the episode."""
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
