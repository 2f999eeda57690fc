"""Episode transcripts for critics and proposers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marft.common.texts import truncate
from marft.common.types import Action, Episode

ENVIRONMENT, OUTCOME = "environment", "outcome"
MAX_CHARACTERS = 1_000  # maximum characters of a tool result or an observation


def build_transcript(episode: Episode, names: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return an episode's messages in order, as pairs of author and text.

    The messages are agents' turns, tool calls with results, observations after each step, and the reward with the
    success.

    Args:
        episode: episode.
        names: author name per action; () for the agents' roles.
    """
    author_by_action = dict(zip((action.id for action in episode.actions), names, strict=True)) if names else {}
    return tuple(part for part in _messages(episode, author_by_action) if part[1])


def _messages(episode: Episode, author_by_action: dict[str, str]) -> Iterator[tuple[str, str]]:
    for step, transition in enumerate(episode.transitions):
        observation = transition.observation.full_text
        if step or observation != episode.task.prompt:
            yield ENVIRONMENT, truncate(observation, MAX_CHARACTERS)
        for action in episode.actions:
            if action.step == step:
                yield from _action_messages(action, author_by_action.get(action.id, action.agent))
    for action in episode.actions:
        if action.step >= len(episode.transitions):
            yield from _action_messages(action, author_by_action.get(action.id, action.agent))
    solved = {True: ", solved", False: ", not solved", None: ""}[episode.success]
    yield OUTCOME, f"reward {episode.total_reward:g}{solved}"


def _action_messages(action: Action, name: str) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(action.agent_texts):
        yield name, text
        for call in action.calls:
            if call.round == number:
                failed = ", which failed" if call.error else ""
                yield (
                    f"{call.name or 'no tool'} of {name}",
                    f"{call.arguments} → {truncate(call.output, MAX_CHARACTERS)}{failed}",
                )
