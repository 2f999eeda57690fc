"""Episode transcripts for critics and proposers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marft.common.texts import cut
from marft.common.types import Action, Episode

ENVIRONMENT, OUTCOME = "environment", "outcome"
MOST = 1_000  # maximum characters of a tool result or an observation


def transcript(episode: Episode, names: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return an episode's messages in order, as pairs of author and text.

    The messages are agents' turns, tool calls with results, observations after each step, and the reward with the
    success.

    Args:
        episode: episode.
        names: author name per action; () for the agents' roles.
    """
    called = dict(zip((action.id for action in episode.actions), names, strict=True)) if names else {}
    return tuple(part for part in _parts(episode, called) if part[1])


def _parts(episode: Episode, called: dict[str, str]) -> Iterator[tuple[str, str]]:
    for step, transition in enumerate(episode.transitions):
        shown = transition.observation.whole
        if step or shown != episode.task.prompt:
            yield ENVIRONMENT, cut(shown, MOST)
        for action in episode.actions:
            if action.step == step:
                yield from _turns(action, called.get(action.id, action.agent))
    for action in episode.actions:
        if action.step >= len(episode.transitions):
            yield from _turns(action, called.get(action.id, action.agent))
    solved = {True: ", solved", False: ", not solved", None: ""}[episode.success]
    yield OUTCOME, f"reward {episode.total_reward:g}{solved}"


def _turns(action: Action, name: str) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(action.own_texts):
        yield name, text
        for call in action.calls:
            if call.round == number:
                failed = ", which failed" if call.error else ""
                yield f"{call.name or 'no tool'} of {name}", f"{call.arguments} → {cut(call.output, MOST)}{failed}"
