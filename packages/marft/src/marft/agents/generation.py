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
from marft.agents.chat_history import ChatHistory
from marft.agents.helpers import HelperCall, HelperReply
from marft.agents.prompt_messages import NO_TOKENS, ChatMessage, InexactContinuation, Renderer
from marft.agents.streaming import TokenStream
from marft.agents.tool_executor import ToolExecutor
from marft.common.errors import EpisodeFailedError, RowFailedError, UserError
from marft.common.reasoning import StopString, ends_in_reasoning
from marft.common.texts import format_error
from marft.common.token_data import (
    GrammarMasks,
    PromptReset,
    RoutedExperts,
    TokenSource,
    single_token_mask,
    split_segments,
)
from marft.common.types import Action, ActionKey, Completion, FinishReason, LogProbs, Option, Prompt, TokenIds, ToolCall
from marft.common.usage import Usage
from marft.config.interfaces.engine import Sampler


@dataclass(frozen=True, slots=True, eq=False)
class ResponsePrefix:
    """Teammate's text at the beginning of a turn."""

    tokens: TokenIds = field(default_factory=lambda: np.empty(0, np.int32))  # [T]
    marks: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))  # [T]
    log_probs: LogProbs = field(default_factory=lambda: np.empty(0, np.float32))  # [number of teammate tokens]
    text: str = ""


def build_response_prefix(renderer: Renderer, policy: str, begins: Action | None) -> ResponsePrefix:
    """Return the beginning of a turn: a teammate's tokens with their marks and log-probabilities, as seen by others.

    If the teammate's action continued a freshly rendered chat, only the tokens after that chat count.

    Raises:
        UserError: the action was chosen from a list, so no turn can begin with it.
    """
    if begins is None:
        return ResponsePrefix()
    if begins.choice:
        raise UserError(f"{begins.id} was chosen from a list: no turn can begin with it; pass it on as a message")
    count, start = renderer.response_prefix(policy, begins), begins.segments[-1].start
    log_probs = np.zeros(len(begins.tokens), np.float32)
    log_probs[begins.sampled_mask] = begins.log_probs
    if begins.teammate_log_probs is not None:
        log_probs[begins.teammate_mask] = begins.teammate_log_probs
    written = begins.own_mask | begins.teammate_mask
    marks = np.where(written, np.uint8(TokenSource.TEAMMATE), begins.marks)[:count]
    return ResponsePrefix(
        begins.tokens[start:count], marks[start:], log_probs[start:count][written[start:count]], begins.text
    )


def encode_options(renderer: Renderer, policy: str, request: Request) -> list[Option]:
    """Return the request's options as token ids with their normalizers Z; empty if the agent writes."""
    options = []
    for text in request.options:
        ids = renderer.tokenize_option(policy, text)
        sizes = {"none": 1, "tokens": len(ids), "words": len(text.split())}
        options.append(Option(ids, float(max(1, sizes[request.normalisation]))))
    return options


@dataclass(frozen=True, slots=True, eq=False)
class ActionSampler:
    """Sampler for one action of an agent. The caller fills in the action's position in the episode."""

    engine: Sampler
    renderer: Renderer
    agent: Agent
    prompt: Prompt
    key: ActionKey

    async def generate(
        self,
        tool_executor: ToolExecutor,
        prefix: ResponsePrefix,
        token_stream: TokenStream | None = None,
        helper_call: HelperCall | None = None,
    ) -> Action:
        """Sample a text after the prefix, with helper replies and tool outputs inserted as they occur.

        After each helper call, sampling continues from the reply; after each tool round, from the tool outputs.

        Args:
            token_stream: stream for the tokens. It is used only without a prefix, tools and helpers: otherwise the
                tokens sampled first may not be the action's final text.
            helper_call: access to helpers, if the agent may call any.
        """
        agent, policy, sampling, limits = self.agent, self.agent.policy, self.agent.sampling, self.agent.tool_use
        if token_stream and not (agent.profile.tools or len(prefix.tokens) or helper_call):
            token_stream.make_text_stream = partial(
                self.renderer.text_stream, policy, sampling.stop, agent.thinking == "drop", False
            )
            sampling = replace(sampling, on_token=token_stream)
        builder = ActionBuilder(self.prompt, prefix)
        room, rounds = sampling.max_new_tokens, 0
        while True:
            turn_sampling = helper_call.resolve_sampling(sampling) if helper_call else sampling
            completion = await self.engine.sample(
                policy,
                builder.build_prompt(),
                replace(turn_sampling, max_new_tokens=room),
                _turn_key(self.key, builder.completion_count),
            )
            before, turn_tokens = builder.text, builder.turn
            if len(turn_tokens):
                completion = self._restore_space(completion)
            builder.add_completion(completion)
            helper_reply = None
            if helper_call:
                inside = bool(len(turn_tokens))
                helper_reply = await helper_call.reply(agent, self.key, before, completion, rounds, inside)
            if helper_reply is not None:
                room = self._room(builder, builder.length + len(helper_reply.tokens))
                if room < 1:
                    return builder.build_action(self.key, agent, "length")
                builder.add_helper_reply(before, helper_reply)
                continue
            calls = self._parse_calls(completion, turn_tokens)
            if not calls or rounds == limits.rounds:
                return builder.build_action(self.key, agent, "length" if calls else completion.finish)
            clip = partial(self.renderer.clip, policy, tokens=limits.output_tokens)
            executed = [replace(call, round=rounds) for call in await tool_executor.execute(limits, calls, clip)]
            builder.calls += executed
            tool_turn = builder.render_tool_turn(self.renderer, agent, completion, executed)
            rounds += 1
            room = self._room(builder, builder.length_with(tool_turn))
            if room < 1:
                return builder.build_action(self.key, agent, "length")
            builder.add_tool_turn(tool_turn)

    def _room(self, builder: ActionBuilder, context_length: int) -> int:
        """Return the number of tokens that the action may still sample after a context of this length."""
        return min(
            self.agent.sampling.max_new_tokens - builder.sampled_tokens,
            self.renderer.context_length(self.agent.policy) - context_length,
        )

    def _restore_space(self, completion: Completion) -> Completion:
        """Return a completion from the middle of a turn, with its leading space.

        Decoding at the start of a turn drops the space.
        """
        decode = partial(self.renderer.decode_tokens, self.agent.policy, completion.tokens)
        alone, inside = decode(False), decode(True)
        space = inside[: len(inside) - len(alone)] if inside.endswith(alone) else ""
        return replace(completion, text=space + completion.text)

    def _parse_calls(self, completion: Completion, turn_tokens: TokenIds) -> Sequence[ToolCall]:
        tools = self.agent.profile.tools
        if not tools or completion.finish == "length":
            return ()
        if completion.calls is not None:
            return completion.calls
        return self.renderer.calls(self.agent.policy, completion.tokens, tools, turn_tokens)

    async def answer_chat(self, record: ChatHistory, chat: Chat) -> Action:
        """Sample one turn of a client's chat; the client executes its tool calls.

        Raises:
            ChatRefusedError: the engine could not sample this request.
        """
        agent, renderer, policy = self.agent, self.renderer, self.agent.policy
        room = renderer.context_length(policy) - len(self.prompt.ids)
        grammar = renderer.grammar(policy, chat) if chat.constraint else None
        calls = bool(chat.tools) and chat.parse_calls
        sampling = chat.resolve_sampling(agent.sampling, room, grammar, self._call_end_marker(chat))
        if chat.token_stream:
            chat.token_stream.make_text_stream = partial(
                renderer.text_stream, policy, sampling.stop, agent.thinking == "drop", calls, chat.prefix
            )
        try:
            completion = await self.engine.sample(policy, self.prompt, sampling, self.key)
        except RowFailedError as error:  # the client receives the error and the episode continues
            raise ChatRefusedError("unsupported" if error.grammar_failed else "failed", error.reason) from error
        completion = self._restore_space(completion) if chat.prefix else completion
        builder = ActionBuilder(self.prompt, ResponsePrefix())
        builder.add_completion(completion)
        if calls and completion.finish == "stop":
            found_calls: Sequence[ToolCall] | None = completion.calls
            if found_calls is None:
                client_tokens = record.client_tokens(chat, policy, completion.tokens, completion.text)
                prefix_tokens = renderer.encode_prefix(policy, chat.prefix) if chat.prefix else NO_TOKENS
                found_calls = renderer.calls(policy, client_tokens, chat.tools, prefix_tokens)
            first_named = [call for call in found_calls if call.name][:1] if chat.stops_after_first_call else ()
            builder.calls += first_named or found_calls
        action = replace(
            builder.build_action(self.key, agent, completion.finish), wishes=chat.requested_sampling_json()
        )
        if completion.alternatives:
            record.store_alternatives(action.id, completion.alternatives)
        return action

    def _call_end_marker(self, chat: Chat) -> str | StopString:
        """Return the marker that ends a turn after its first tool call, or "" if the turn may continue."""
        end = self.renderer.call_end(self.agent.policy) if chat.stops_after_first_call else ""
        if isinstance(end, StopString):
            return replace(end, in_reasoning=ends_in_reasoning(chat.prefix, end.in_reasoning))
        return end

    async def choose(self, texts: Sequence[str], options: Sequence[Option]) -> Action:
        """Choose one of the options, the encoded ``texts``."""
        agent = self.agent
        choice, versions = await self.engine.choose(agent.policy, self.prompt, options, agent.sampling, self.key)
        tokens = options[choice.chosen].tokens
        return Action(
            key=self.key,
            policy=agent.policy,
            profile_version=agent.profile.version,
            index=0,
            sees=(),
            prompt=self.prompt.ids,
            tokens=tokens,
            marks=np.full(len(tokens), TokenSource.SAMPLED, np.uint8),
            log_probs=choice.log_probs[[choice.chosen]],
            text=texts[choice.chosen],
            finish="stop",
            versions=versions,
            choice=choice,
            usage=choice.usage,
        )


def check_log_probs(action: Action) -> None:
    """Raise an error if an action's log-probabilities are not finite.

    An excluded option of a choice may have a log-probability of -inf.

    Raises:
        EpisodeFailedError: a sampled token's log-probability is not finite, or an option's is NaN, so the action
            cannot be trained.
    """
    all_log_probs = action.choice.log_probs if action.choice else action.log_probs
    if not np.isfinite(action.log_probs).all() or np.isnan(all_log_probs).any():
        raise EpisodeFailedError("failed", f"{action.agent} sampled a token whose log-prob is not a finite number")


def _turn_key(key: ActionKey, rounds: int) -> ActionKey:
    """Return the key for the random stream of an action's text after ``rounds`` earlier samplings."""
    return key._replace(stream=f"{key.stream}+{rounds}") if rounds else key


@dataclass(frozen=True, slots=True, eq=False)
class _ToolTurn:
    """Chat and token ids after a turn that called tools.

    Args:
        messages: all messages of the chat so far.
        ids: the ids to append, [T]; or, if ``restart_reason`` gives a reason, the ids of the whole chat rendered again.
        restart_reason: reason for rendering the whole chat again, or "".
    """

    messages: list[ChatMessage]
    ids: TokenIds  # [T]
    restart_reason: str = ""


class ActionBuilder:
    """Builder for an action: sampled completions, helper replies and tool outputs between them."""

    def __init__(self, prompt: Prompt, prefix: ResponsePrefix) -> None:
        self.prompt, self.prefix = prompt, prefix
        self.chat = list(prompt.chat)
        self.calls: list[ToolCall] = []
        self._completions: list[Completion] = []
        self._helper_replies: list[HelperReply] = []
        self._texts = [""]  # text of each turn as generated here, including helper replies
        self._turn_start = 0  # index of the turn's first part in _tokens
        self._tokens, self._marks = [prefix.tokens], [prefix.marks]
        self._context = [prompt.ids, prefix.tokens]  # context for the next sampling
        self._restarts: list[PromptReset] = []
        self._masks: list[tuple[int, GrammarMasks]] = []  # (index of the first token, token masks of a completion)
        self._experts: list[list[RoutedExperts]] = [[]]  # by segment, of its completions

    @property
    def completion_count(self) -> int:
        """Number of completions so far."""
        return len(self._completions)

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled and forced tokens so far."""
        return sum(len(completion.tokens) for completion in self._completions)

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
        return np.concatenate([NO_TOKENS, *self._tokens[self._turn_start :]])

    def build_prompt(self) -> Prompt:
        """Return the prompt for the next sampling."""
        return replace(self.prompt, ids=np.concatenate(self._context), chat=tuple(self.chat))

    def add_completion(self, completion: Completion) -> None:
        """Add a completion."""
        self._completions.append(completion)
        if completion.masks:
            self._masks.append((sum(map(len, self._tokens)), completion.masks))
        if completion.experts:
            self._experts[-1].append(completion.experts)
        self._texts[-1] += completion.text
        self._append(completion.tokens, TokenSource.SAMPLED)
        self._marks[-1][list(completion.forced)] = TokenSource.FORCED

    def add_helper_reply(self, before: str, reply: HelperReply) -> None:
        """Add a helper's reply.

        Args:
            before: text of the turn before the last completion, which ends with the helper call.
            reply: the call's end and the reply.
        """
        self._helper_replies.append(reply)
        self._texts[-1] = before + reply.call_text + reply.text
        self._append(reply.tokens, TokenSource.TEAMMATE)

    def render_tool_turn(
        self, renderer: Renderer, agent: Agent, completion: Completion, calls: Sequence[ToolCall]
    ) -> _ToolTurn:
        """Return the template's rendering of tool outputs after the last turn.

        If the template changes earlier parts, return the whole chat instead, rendered again.

        Raises:
            EpisodeFailedError: the template cannot render the tool outputs.
        """
        policy, tools = agent.policy, self.prompt.tools
        prefix_tokens = self.prefix.tokens if len(self._texts) == 1 else NO_TOKENS
        try:
            chat = [*self.chat, *renderer.tool_call_messages(policy, self.text, calls, prefix_tokens)]
            output_ids = renderer.tool_response(policy, completion.tokens, chat, calls, tools)
            if isinstance(output_ids, InexactContinuation):
                return _ToolTurn(chat, renderer.tokenize_prompt(policy, chat, tools), output_ids.reason)
        # a template that renders text from tools can raise any of these
        except (ValueError, TypeError, RecursionError) as error:
            raise EpisodeFailedError("failed", f"{agent.role}: {format_error(error)}") from error
        return _ToolTurn(chat, output_ids)

    def length_with(self, tool_turn: _ToolTurn) -> int:
        """Return the context length for the next turn, in tokens."""
        return len(tool_turn.ids) + (0 if tool_turn.restart_reason else self.length)

    def add_tool_turn(self, tool_turn: _ToolTurn) -> None:
        """Add tool outputs; if the chat was rendered again, a new segment begins."""
        self.chat = tool_turn.messages
        if tool_turn.restart_reason:
            at = sum(map(len, self._tokens))
            self._restarts.append(PromptReset(at, tool_turn.ids, len(self._texts), tool_turn.restart_reason))
            self._context = [tool_turn.ids]
            self._experts.append([])
        else:
            self._append(tool_turn.ids, TokenSource.TOOL)
        self._texts.append("")
        self._turn_start = len(self._tokens)

    def _append(self, ids: TokenIds, mark: TokenSource) -> None:
        self._tokens.append(ids)
        self._marks.append(np.full(len(ids), mark, np.uint8))
        self._context.append(ids)

    def build_action(self, key: ActionKey, agent: Agent, finish: FinishReason) -> Action:
        """Build the action; the caller fills in its position in the episode."""
        tokens, marks = np.concatenate(self._tokens), np.concatenate(self._marks)
        forced = np.flatnonzero(marks == TokenSource.FORCED)
        # an action needs one trained decision: the last forced token takes that role
        if len(forced) and not (marks == TokenSource.SAMPLED).any():
            last = int(forced[-1])
            marks[last] = TokenSource.SAMPLED
            self._masks.append((last, GrammarMasks.from_masks([0], [single_token_mask(int(tokens[last]))])))
        log_probs = np.zeros(len(tokens), np.float32)
        own = np.isin(marks, (TokenSource.SAMPLED, TokenSource.FORCED))
        log_probs[own] = np.concatenate([completion.log_probs for completion in self._completions])
        token_versions = self._token_versions()
        sources: list[Completion | HelperReply] = [*self._completions, *self._helper_replies]
        used = [source.usage for source in sources if source.usage]
        reply_log_probs = [reply.log_probs for reply in self._helper_replies]
        teammate_log_probs = np.concatenate([self.prefix.log_probs, *reply_log_probs])
        prefix = self.prefix.text if len(self._texts) == 1 else ""
        return Action(
            key=key,
            policy=agent.policy,
            profile_version=agent.profile.version,
            index=0,
            sees=(),
            prompt=self.prompt.ids,
            tokens=tokens,
            marks=marks,
            log_probs=log_probs[marks == TokenSource.SAMPLED],
            masks=GrammarMasks.concatenate(self._masks),
            teammate_log_probs=teammate_log_probs if len(self.prefix.tokens) or self._helper_replies else None,
            text=prefix + self._texts[-1],
            response_prefix=len(prefix),
            intermediate_texts=tuple(self._texts[:-1]),
            calls=tuple(self.calls),
            consultations=tuple(reply.record for reply in self._helper_replies if reply.record),
            finish=finish,
            versions=reduce(or_, (completion.versions for completion in self._completions)),
            token_versions=None if token_versions is None else token_versions[marks[own] == TokenSource.SAMPLED],
            usage=sum(used, Usage()) if used else None,
            restarts=tuple(self._restarts),
            experts=self._merge_experts(len(tokens)),
        )

    def _merge_experts(self, size: int) -> tuple[RoutedExperts, ...]:
        """Return the record of each segment for an action with ``size`` tokens; empty without a record."""
        known = next((record for records in self._experts for record in records), None)
        if known is None:
            return ()
        nothing = replace(known, flat=known.flat[:0])
        segments = split_segments(self.prompt.ids, size, self._restarts)
        return tuple(
            RoutedExperts.merge(records or [nothing], len(segment.context) + segment.stop - segment.start - 1)
            for records, segment in zip(self._experts, segments, strict=True)
        )

    def _token_versions(self) -> TokenIds | None:
        """Return the policy version of each sampled or forced token; None if they are equal, or some are unknown."""
        versions = [completion.list_token_versions() for completion in self._completions]
        known = [own for own in versions if own is not None]
        joined = np.concatenate([NO_TOKENS, *known])
        return joined if len(known) == len(versions) and (joined != joined[:1]).any() else None
