"""Conversion from an episode to spans.

::

    invoke_workflow <run>           the episode: task, status, success, reward
    └── step 0                      from the first action to the environment's result
        ├── invoke_agent <role>     an action; a link to each action that it saw
        │   ├── chat <model>        one answer of its model
        │   └── execute_tool <name>
        ├── environment.step        after the last action: the environment, and grading
        └── reward <term>           value of a reward term, for the team or for an agent

Names and attributes follow OpenTelemetry's GenAI conventions (https://github.com/open-telemetry/
semantic-conventions-genai) if defined there, else they start with ``marft.``. ``agent.trajectory.step`` is the
environment step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from marft.common.types import Action, Episode, ToolCall
from marft.common.version import __version__
from marft_serve.tracing.messages import (
    ModelTurn,
    build_call_id,
    build_parts,
    build_prompt_messages,
    build_text_message,
    build_turn_messages,
    split_turns,
    to_json,
)
from marft_serve.tracing.span import AttributeValue, Span, SpanKind, SpanLink, sanitize_text, span_id, trace_id
from marft_serve.tracing.team_metadata import AgentMetadata, TeamMetadata

OPERATION, AGENT = "gen_ai.operation.name", "gen_ai.agent.name"
STEP = "agent.trajectory.step"
MAX_NAME_CHARS = 200  # maximum length of a span name, in characters
Attributes = dict[str, AttributeValue]
# per request: number of spans, total characters; OpenTelemetry's own exporters send 512 spans
MAX_SPANS, MAX_TEXT_CHARS = 512, 2**20


@dataclass(frozen=True, slots=True)
class Tracer:
    """Converter from a run's episodes to spans.

    Args:
        run: identity of the run, for reproducible ids.
        team: metadata about the agents.
        content: True to include prompts, answers, and the arguments and results of tool calls. The conventions omit
            them by default, because they may be confidential.
    """

    run: str
    team: TeamMetadata = TeamMetadata()
    include_content: bool = False

    def build_spans(self, episode: Episode) -> list[Span]:
        """Return an episode's spans, the root first and every parent before its children."""
        actions_by_id = {action.id: action for action in episode.actions}
        return list(_EpisodeSpans(self, episode, trace_id(self.run, episode.name), actions_by_id).iter_spans())


@dataclass(frozen=True, slots=True)
class _EpisodeSpans:
    tracer: Tracer
    episode: Episode
    trace: str
    actions_by_id: Mapping[str, Action]  # by action id

    def iter_spans(self) -> Iterator[Span]:
        """Yield the spans of the episode."""
        yield self._build_root()
        steps = [len(self.episode.transitions), *(action.step + 1 for action in self.episode.actions)]
        begins = 0.0
        for step in range(max(steps)):
            ends = self._get_step_end(step)
            yield from self._iter_step(step, begins, max(begins, ends))
            begins = max(begins, ends)

    def _build_root(self) -> Span:
        episode, content = self.episode, self.tracer.include_content
        attributes: Attributes = {
            OPERATION: "invoke_workflow",
            "gen_ai.workflow.name": sanitize_text(self.tracer.team.name or "marft"),
            "gen_ai.conversation.id": sanitize_text(episode.name),
            "marft.stream": sanitize_text(episode.stream),
            "marft.task": sanitize_text(episode.task.id),
            "marft.sample": episode.sample,
            "marft.status": episode.status,
        }
        if episode.is_scored:
            attributes["marft.reward"] = episode.total_reward
        if episode.success is not None:
            attributes["marft.success"] = episode.success
        for policy in dict.fromkeys(action.policy for action in episode.actions):
            versions = [action.versions for action in episode.actions if action.policy == policy]
            attributes[f"marft.policies.{sanitize_text(policy)}.version_lowest"] = min(
                version.lowest for version in versions
            )
            attributes[f"marft.policies.{sanitize_text(policy)}.version_highest"] = max(
                version.highest for version in versions
            )
        links: tuple[SpanLink, ...] = ()
        if episode.fork:
            origin = trace_id(self.tracer.run, episode.fork.origin)
            attributes |= {
                "marft.fork.origin": sanitize_text(episode.fork.origin),
                "marft.fork.at": sanitize_text(episode.fork.at),
            }
            forked = span_id(origin, "action", episode.fork.at)
            links = (SpanLink(origin, forked, {"marft.link": "fork"}),)
        if not episode.is_scored:
            attributes["error.type"] = episode.status
        if content:
            attributes["gen_ai.input.messages"] = to_json([build_text_message("user", episode.task.prompt)])
            if (answer := self._find_answer()) is not None:
                message = {**build_text_message("assistant", answer.text), "finish_reason": answer.finish}
                attributes["gen_ai.output.messages"] = to_json([message])
        name = f"invoke_workflow {self.tracer.team.name or 'marft'}"
        error = sanitize_text(episode.error) if content else ""
        span = self._build_span((), "", name, (0.0, episode.seconds), attributes)
        return replace(span, links=links, failed=not episode.is_scored, error=error)

    def _find_answer(self) -> Action | None:
        """Return the last action of an answering agent; without an answering agent, the last action."""
        actions, agents = self.episode.actions, self.tracer.team.agents
        candidates = [action for action in actions if action.agent in agents and agents[action.agent].profile.answers]
        return next(iter([*reversed(candidates), *reversed(actions)]), None)

    def _iter_step(self, step: int, begins: float, ends: float) -> Iterator[Span]:
        parent, names = span_id(self.trace), ("step", step)
        attributes: Attributes = {STEP: step}
        has_transition = step < len(self.episode.transitions)
        transition = self.episode.transitions[step] if has_transition else None
        if transition:
            attributes["marft.step.reward"] = transition.reward
            for role, reward in transition.agent_rewards.items():
                attributes[f"marft.step.agent_rewards.{sanitize_text(role)}"] = reward
            if self.tracer.include_content:
                attributes["marft.observation"] = sanitize_text(transition.observation.full_text)
        yield self._build_span(names, parent, f"step {step}", (begins, ends), attributes)
        parent = span_id(self.trace, *names)
        actions = [action for action in self.episode.actions if action.step == step]
        for action in actions:
            yield from self._iter_action(action, parent, begins, ends)
        if transition:
            last_action_end = max((action.ended for action in actions if self._is_fresh(action)), default=begins)
            yield self._build_span(
                ("environment", step), parent, "environment.step", (min(last_action_end, ends), ends), {STEP: step}
            )
            for name, share in transition.terms.items():
                yield self._build_term(step, name, share, parent, ends)

    def _build_term(self, step: int, name: str, share: float, parent: str, ends: float) -> Span:
        """Return the span for a reward term, placed at the end of its step since its time is not recorded."""
        term, _, role = name.partition("/")
        attributes: Attributes = {
            STEP: step,
            "gen_ai.evaluation.name": sanitize_text(term),
            "gen_ai.evaluation.score.value": share,
        }
        if role:
            attributes[AGENT] = sanitize_text(role)
        return self._build_span(("reward", step, name), parent, f"reward {term}", (ends, ends), attributes)

    def _iter_action(self, action: Action, parent: str, begins: float, ends: float) -> Iterator[Span]:
        agent, fresh = self.tracer.team.get_agent(action.agent, action.policy), self._is_fresh(action)
        start_time, end_time = (action.started, action.ended) if fresh else (begins, begins)
        start_time = min(max(start_time, 0.0), ends)
        end_time = min(max(end_time, start_time), max(ends, start_time))
        shared = self._shared_attributes(action, agent)
        attributes: Attributes = {
            OPERATION: "invoke_agent",
            **shared,
            "gen_ai.agent.version": str(action.versions.highest),
            "marft.action": sanitize_text(action.id),
            "marft.action.index": action.index,
            "marft.action.decisions": action.num_decisions,
            "marft.action.truncated_tokens": action.truncated_tokens,
            "marft.policy": sanitize_text(action.policy),
            "marft.policy.version_lowest": action.versions.lowest,
            "marft.policy.version_highest": action.versions.highest,
        }
        if not fresh:
            attributes["marft.replayed"] = True
        if action.restarted:
            attributes["marft.action.restarted"] = sanitize_text(action.restarted)
        links = tuple(
            SpanLink(self.trace, span_id(self.trace, "action", seen), {"marft.link": "sees"})
            for seen in action.sees
            if seen in self.actions_by_id
        )
        names = ("action", action.id)
        span = self._build_span(names, parent, f"invoke_agent {action.agent}", (start_time, end_time), attributes)
        yield replace(span, links=links)
        yield from self._iter_turns(action, agent, shared, split_turns(action, start_time, end_time))

    def _iter_turns(
        self, action: Action, agent: AgentMetadata, shared: Mapping[str, AttributeValue], turns: Sequence[ModelTurn]
    ) -> Iterator[Span]:
        parent = span_id(self.trace, "action", action.id)
        content = self.tracer.include_content
        writes_prompts = self.tracer.team.writes_prompts
        prompt_messages = (
            build_prompt_messages(self.episode, action, self.actions_by_id, self.tracer.team)
            if content and not writes_prompts
            else []
        )
        for number, turn in enumerate(turns):
            last = number == len(turns) - 1
            finish = action.finish if last else "tool_call"
            attributes: Attributes = {OPERATION: "chat", **shared, "gen_ai.response.finish_reasons": [finish]}
            if turn.prompt_tokens is not None and turn.completion_tokens is not None:
                attributes |= {
                    "gen_ai.usage.input_tokens": turn.prompt_tokens,
                    "gen_ai.usage.output_tokens": turn.completion_tokens,
                }
            if len(turns) > 1 or turn.calls:
                attributes["marft.times"] = "estimated"
            if content:
                message = {"role": "assistant", "parts": build_parts(action, turn), "finish_reason": finish}
                attributes["gen_ai.output.messages"] = to_json([message])
                if prompt_messages:
                    attributes["gen_ai.input.messages"] = to_json(prompt_messages)
                    prompt_messages = [*prompt_messages, *build_turn_messages(action, turn)]
                if prompt_messages and agent.profile.instructions:
                    instructions = [{"type": "text", "content": sanitize_text(agent.profile.instructions)}]
                    attributes["gen_ai.system_instructions"] = to_json(instructions)
            times = (turn.start_time, turn.end_time)
            names = ("chat", action.id, number)
            yield replace(
                self._build_span(names, parent, f"chat {agent.model}", times, attributes), kind=SpanKind.CLIENT
            )
            for call in turn.calls:
                if not last or call.seconds or call.output:  # else the client executes the call
                    yield self._build_tool(action, call, parent, turn)

    def _build_tool(self, action: Action, call: ToolCall, parent: str, turn: ModelTurn) -> Span:
        name = sanitize_text(call.name, MAX_NAME_CHARS) or "unreadable"
        attributes: Attributes = {
            OPERATION: "execute_tool",
            STEP: action.step,
            AGENT: sanitize_text(action.agent),
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": sanitize_text(build_call_id(action, call)),
            "marft.times": "estimated",  # the duration is measured, the start is estimated
        }
        if call.error:
            attributes["error.type"] = "tool_error" if call.name else "unreadable_call"
        if self.tracer.include_content:
            attributes["gen_ai.tool.call.arguments"] = sanitize_text(call.arguments)
            attributes["gen_ai.tool.call.result"] = sanitize_text(call.output)
        times = (turn.end_time, min(turn.end_time + call.seconds, turn.tools_end_time))
        names = ("tool", action.id, call.index)
        return replace(self._build_span(names, parent, f"execute_tool {name}", times, attributes), failed=call.error)

    def _shared_attributes(self, action: Action, agent: AgentMetadata) -> Attributes:
        """Return attributes shared by the span of an action and the spans of its turns."""
        return {
            AGENT: sanitize_text(action.agent),
            STEP: action.step,
            "gen_ai.provider.name": agent.provider,
            "gen_ai.request.model": sanitize_text(agent.model),
            "gen_ai.conversation.id": sanitize_text(self.episode.name),
        }

    def _is_fresh(self, action: Action) -> bool:
        """Return False for an action reused from another episode; its times belong to that episode."""
        return (action.key.stream, action.key.sample) == (self.episode.stream, self.episode.sample)

    def _get_step_end(self, step: int) -> float:
        """Return the end of a step, in seconds since the start of the episode.

        A step ends when the next step's first action starts.
        """
        later = [action.started for action in self.episode.actions if action.step > step and self._is_fresh(action)]
        return min([*later, self.episode.seconds])

    def _build_span(
        self, names: tuple[object, ...], parent: str, name: str, times: tuple[float, float], attributes: Attributes
    ) -> Span:
        start_time, end_time = (round((self.episode.start_time + seconds) * 1e9) for seconds in times)
        return Span(
            self.trace,
            span_id(self.trace, *names),
            parent,
            sanitize_text(name, MAX_NAME_CHARS),
            SpanKind.INTERNAL,
            start_time,
            max(start_time, end_time),
            attributes,
        )


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Spans for one request, or for one line in a file.

    Args:
        spans: the spans.
        episodes: number of episodes that this batch completes.
    """

    spans: list[Span]
    episodes: int


def make_batches(episodes: Iterable[Episode], tracer: Tracer) -> Iterator[SpanBatch]:
    """Yield batches with the spans of episodes, in order.

    A batch has whole episodes up to the size limits. A larger episode is split over several batches.
    """
    pending, count, size = list[Span](), 0, 0
    for episode in episodes:
        spans = tracer.build_spans(episode)
        episode_size = sum(map(_estimate_size, spans))
        if pending and (len(pending) + len(spans) > MAX_SPANS or size + episode_size > MAX_TEXT_CHARS):
            yield SpanBatch(pending, count)
            pending, count, size = [], 0, 0
        for span in spans:
            if pending and (len(pending) >= MAX_SPANS or size + _estimate_size(span) > MAX_TEXT_CHARS):
                yield SpanBatch(pending, count)
                pending, count, size = [], 0, 0
            pending.append(span)
            size += _estimate_size(span)
        count += 1
    if pending:
        yield SpanBatch(pending, count)


def build_resource(tracer: Tracer) -> Mapping[str, AttributeValue]:
    """Return the resource attributes for all spans in a run."""
    return {
        "service.name": "marft",
        "service.version": __version__,
        "marft.run": tracer.team.name,
        "marft.run.identity": tracer.run,
    }


def _estimate_size(span: Span) -> int:
    """Return the approximate size of a span, in characters."""
    texts = sum(len(key) + len(str(value)) for key, value in span.attributes.items())
    return 200 + texts + 100 * len(span.links)
