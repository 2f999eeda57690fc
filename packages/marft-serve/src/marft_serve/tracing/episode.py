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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from marft.common.types import Action, Episode, ToolCall
from marft_serve.tracing.cast import Cast, Seat
from marft_serve.tracing.messages import as_json, asked, call_id, exchange, parts, text_message
from marft_serve.tracing.span import Kind, Link, Span, Value, plain, span_id, trace_id
from marft_serve.tracing.turns import Turn, turns_of

OPERATION, AGENT = "gen_ai.operation.name", "gen_ai.agent.name"
STEP = "agent.trajectory.step"
NAMED = 200  # maximum length of a span name, in characters
Attributes = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Tracer:
    """Converter from a run's episodes to spans.

    Args:
        run: identity of the run, for reproducible ids.
        cast: metadata about the agents.
        content: True to include prompts, answers, and the arguments and results of tool calls. The conventions omit
            them by default, because they may be confidential.
    """

    run: str
    cast: Cast = Cast()
    content: bool = False

    def spans(self, episode: Episode) -> list[Span]:
        """Return an episode's spans, the root first and every parent before its children."""
        known = {action.id: action for action in episode.actions}
        return list(_Traced(self, episode, trace_id(self.run, episode.name), known).spans())


@dataclass(frozen=True, slots=True)
class _Traced:
    tracer: Tracer
    episode: Episode
    trace: str
    known: Mapping[str, Action]  # by action id

    def spans(self) -> Iterator[Span]:
        """Yield the spans of the episode."""
        yield self._root()
        steps = [len(self.episode.transitions), *(action.step + 1 for action in self.episode.actions)]
        begins = 0.0
        for step in range(max(steps)):
            ends = self._end_of(step)
            yield from self._step(step, begins, max(begins, ends))
            begins = max(begins, ends)

    def _root(self) -> Span:
        episode, content = self.episode, self.tracer.content
        attributes: Attributes = {
            OPERATION: "invoke_workflow",
            "gen_ai.workflow.name": plain(self.tracer.cast.name or "marft"),
            "gen_ai.conversation.id": plain(episode.name),
            "marft.stream": plain(episode.stream),
            "marft.task": plain(episode.task.id),
            "marft.sample": episode.sample,
            "marft.status": episode.status,
        }
        if episode.scored:
            attributes["marft.reward"] = episode.total_reward
        if episode.success is not None:
            attributes["marft.success"] = episode.success
        for policy in dict.fromkeys(action.policy for action in episode.actions):
            own = [action.versions for action in episode.actions if action.policy == policy]
            attributes[f"marft.policies.{plain(policy)}.version_lowest"] = min(one.lowest for one in own)
            attributes[f"marft.policies.{plain(policy)}.version_highest"] = max(one.highest for one in own)
        links: tuple[Link, ...] = ()
        if episode.fork:
            origin = trace_id(self.tracer.run, episode.fork.origin)
            attributes |= {"marft.fork.origin": plain(episode.fork.origin), "marft.fork.at": plain(episode.fork.at)}
            forked = span_id(origin, "action", episode.fork.at)
            links = (Link(origin, forked, {"marft.link": "fork"}),)
        if not episode.scored:
            attributes["error.type"] = episode.status
        if content:
            attributes["gen_ai.input.messages"] = as_json([text_message("user", episode.task.prompt)])
            if (answer := self._answer()) is not None:
                told = {**text_message("assistant", answer.text), "finish_reason": answer.finish}
                attributes["gen_ai.output.messages"] = as_json([told])
        name = f"invoke_workflow {self.tracer.cast.name or 'marft'}"
        error = plain(episode.error) if content else ""
        return self._span((), "", name, (0.0, episode.seconds), attributes, links, not episode.scored, error)

    def _answer(self) -> Action | None:
        """Return the last action of an answering agent; without an answering agent, the last action."""
        actions, seats = self.episode.actions, self.tracer.cast.seats
        answering = [one for one in actions if one.agent in seats and seats[one.agent].profile.answers]
        return next(iter([*reversed(answering), *reversed(actions)]), None)

    def _step(self, step: int, begins: float, ends: float) -> Iterator[Span]:
        parent, names = span_id(self.trace), ("step", step)
        attributes: Attributes = {STEP: step}
        done = step < len(self.episode.transitions)
        transition = self.episode.transitions[step] if done else None
        if transition:
            attributes["marft.step.reward"] = transition.reward
            for role, reward in transition.agent_rewards.items():
                attributes[f"marft.step.agent_rewards.{plain(role)}"] = reward
            if self.tracer.content:
                attributes["marft.observation"] = plain(transition.observation.whole)
        yield self._span(names, parent, f"step {step}", (begins, ends), attributes)
        parent = span_id(self.trace, *names)
        actions = [action for action in self.episode.actions if action.step == step]
        for action in actions:
            yield from self._action(action, parent, begins, ends)
        if transition:
            acted = max((action.ended for action in actions if self._fresh(action)), default=begins)
            yield self._span(("environment", step), parent, "environment.step", (min(acted, ends), ends), {STEP: step})
            for name, share in transition.terms.items():
                yield self._term(step, name, share, parent, ends)

    def _term(self, step: int, name: str, share: float, parent: str, ends: float) -> Span:
        """Return the span for a reward term, placed at the end of its step since its time is not recorded."""
        term, _, role = name.partition("/")
        attributes: Attributes = {
            STEP: step,
            "gen_ai.evaluation.name": plain(term),
            "gen_ai.evaluation.score.value": share,
        }
        if role:
            attributes[AGENT] = plain(role)
        return self._span(("reward", step, name), parent, f"reward {term}", (ends, ends), attributes)

    def _action(self, action: Action, parent: str, begins: float, ends: float) -> Iterator[Span]:
        seat, fresh = self.tracer.cast.seat(action.agent, action.policy), self._fresh(action)
        started, ended = (action.started, action.ended) if fresh else (begins, begins)
        started = min(max(started, 0.0), ends)
        ended = min(max(ended, started), max(ends, started))
        shared = self._shared(action, seat)
        attributes: Attributes = {
            OPERATION: "invoke_agent",
            **shared,
            "gen_ai.agent.version": str(action.versions.highest),
            "marft.action": plain(action.id),
            "marft.action.index": action.index,
            "marft.action.decisions": action.decisions,
            "marft.action.truncated_tokens": action.truncated_tokens,
            "marft.policy": plain(action.policy),
            "marft.policy.version_lowest": action.versions.lowest,
            "marft.policy.version_highest": action.versions.highest,
        }
        if not fresh:
            attributes["marft.replayed"] = True
        if action.restarted:
            attributes["marft.action.restarted"] = plain(action.restarted)
        links = tuple(
            Link(self.trace, span_id(self.trace, "action", seen), {"marft.link": "sees"})
            for seen in action.sees
            if seen in self.known
        )
        names = ("action", action.id)
        yield self._span(names, parent, f"invoke_agent {action.agent}", (started, ended), attributes, links)
        yield from self._turns(action, seat, shared, turns_of(action, started, ended))

    def _turns(self, action: Action, seat: Seat, shared: Mapping[str, Value], turns: Sequence[Turn]) -> Iterator[Span]:
        parent = span_id(self.trace, "action", action.id)
        content = self.tracer.content
        own_words = self.tracer.cast.own_words
        before = asked(self.episode, action, self.known, self.tracer.cast) if content and not own_words else []
        for number, turn in enumerate(turns):
            last = number == len(turns) - 1
            finish = action.finish if last else "tool_call"
            attributes: Attributes = {OPERATION: "chat", **shared, "gen_ai.response.finish_reasons": [finish]}
            if turn.asked is not None and turn.said is not None:
                attributes |= {"gen_ai.usage.input_tokens": turn.asked, "gen_ai.usage.output_tokens": turn.said}
            if len(turns) > 1 or turn.calls:
                attributes["marft.times"] = "estimated"
            if content:
                told = {"role": "assistant", "parts": parts(action, turn), "finish_reason": finish}
                attributes["gen_ai.output.messages"] = as_json([told])
                if before:
                    attributes["gen_ai.input.messages"] = as_json(before)
                    before = [*before, *exchange(action, turn)]
                if before and seat.profile.instructions:
                    instructions = [{"type": "text", "content": plain(seat.profile.instructions)}]
                    attributes["gen_ai.system_instructions"] = as_json(instructions)
            times = (turn.started, turn.ended)
            names = ("chat", action.id, number)
            yield self._span(names, parent, f"chat {seat.model}", times, attributes, kind=Kind.CLIENT)
            for call in turn.calls:
                if not last or call.seconds or call.output:  # else the client executes the call
                    yield self._tool(action, call, parent, turn)

    def _tool(self, action: Action, call: ToolCall, parent: str, turn: Turn) -> Span:
        name = plain(call.name, NAMED) or "unreadable"
        attributes: Attributes = {
            OPERATION: "execute_tool",
            STEP: action.step,
            AGENT: plain(action.agent),
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": plain(call_id(action, call)),
            "marft.times": "estimated",  # the duration is measured, the start is estimated
        }
        if call.error:
            attributes["error.type"] = "tool_error" if call.name else "unreadable_call"
        if self.tracer.content:
            attributes["gen_ai.tool.call.arguments"] = plain(call.arguments)
            attributes["gen_ai.tool.call.result"] = plain(call.output)
        times = (turn.ended, min(turn.ended + call.seconds, turn.tools_until))
        names = ("tool", action.id, call.index)
        return self._span(names, parent, f"execute_tool {name}", times, attributes, failed=call.error)

    def _shared(self, action: Action, seat: Seat) -> Attributes:
        """Return attributes shared by the span of an action and the spans of its turns."""
        return {
            AGENT: plain(action.agent),
            STEP: action.step,
            "gen_ai.provider.name": seat.provider,
            "gen_ai.request.model": plain(seat.model),
            "gen_ai.conversation.id": plain(self.episode.name),
        }

    def _fresh(self, action: Action) -> bool:
        """Return False for an action reused from another episode; its times belong to that episode."""
        return (action.key.stream, action.key.sample) == (self.episode.stream, self.episode.sample)

    def _end_of(self, step: int) -> float:
        """Return the end of a step, in seconds since the start of the episode.

        A step ends when the next step's first action starts.
        """
        later = [action.started for action in self.episode.actions if action.step > step and self._fresh(action)]
        return min([*later, self.episode.seconds])

    def _span(
        self, names: tuple[object, ...], parent: str, name: str, times: tuple[float, float], attributes: Attributes,
        links: tuple[Link, ...] = (), failed: bool = False, error: str = "", kind: Kind = Kind.INTERNAL,
    ) -> Span:  # fmt: skip
        started, ended = (round((self.episode.began + seconds) * 1e9) for seconds in times)
        return Span(
            self.trace, span_id(self.trace, *names), parent, plain(name, NAMED), kind, started, max(started, ended),
            attributes, links, failed, error,
        )  # fmt: skip
