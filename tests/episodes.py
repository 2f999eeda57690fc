"""Random episodes for property tests: any number of agents, steps, tokens, dependencies; truncated or not."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Episode, Observation, Task, Transition
from marft.config.interfaces.credit import Level, Values, flatten_actions

ROLES = ("a", "b", "c", "d")
FLOATS = st.floats(-3, 3, allow_nan=False, width=32)


def make_action(
    agent: str = "a", *, step: int = 0, call: int = 0, index: int = 0, sees: tuple[str, ...] = (), prompt: tuple[int, ...] = (5, 6, 7),
    tokens: tuple[int, ...] = (8, 9), log_probs: tuple[float, ...] | None = None, policy: str = "", task: str = "t",
    sample: int = 0, text: str = "one two", marks: tuple[int, ...] | None = None,
) -> Action:  # fmt: skip
    kinds = np.array(marks or [TokenSource.SAMPLED] * len(tokens), np.uint8)
    scores = log_probs if log_probs is not None else (-1.0,) * int((kinds == TokenSource.SAMPLED).sum())
    return Action(
        key=ActionKey("train/0", task, sample, step, agent, call), policy=policy or agent, index=index, sees=sees,
        prompt=np.array(prompt, np.int32), tokens=np.array(tokens, np.int32), marks=kinds,
        log_probs=np.array(scores, np.float32), text=text, finish="stop", message_tokens=(0,) * len(sees),
    )  # fmt: skip


@st.composite
def episodes(draw: st.DrawFn, chain: bool = False, sees_nothing: bool = False, max_steps: int = 4) -> Episode:
    """One scored episode. Actions see any of those before them, of their own step and of earlier ones.

    Args:
        chain: every agent acts once a step, seeing all before it.
        sees_nothing: D = 0, every agent acts once a step.
    """
    agents = ROLES[: draw(st.integers(1, 4))]
    steps = draw(st.integers(1, max_steps))
    actions: list[Action] = []
    for step in range(steps):
        calls: dict[str, int] = {}
        here: list[Action] = []
        if chain or sees_nothing:
            speakers = list(agents)
        else:
            speakers = draw(st.lists(st.sampled_from(agents), min_size=0, max_size=5))
        for agent in speakers:
            if chain:
                sees = [a.id for a in here]
            elif sees_nothing:
                sees = []
            else:
                sees = [a.id for a in here if draw(st.booleans())]
                sees += [a.id for a in actions if a.step < step and draw(st.booleans())]
            length = draw(st.integers(1, 4))
            action = make_action(
                agent,
                step=step,
                call=calls.get(agent, 0),
                index=len(actions),
                sees=tuple(sees),
                tokens=tuple(range(10, 10 + length)),
            )
            calls[agent] = calls.get(agent, 0) + 1
            here.append(action)
            actions.append(action)
    transitions = tuple(
        Transition(Observation("o"), draw(FLOATS), {agent: draw(FLOATS) for agent in agents if draw(st.booleans())})
        for _ in range(steps)
    )
    truncated = draw(st.booleans())
    decided = [action.agent for action in sorted(actions, key=lambda action: (-action.step, action.index))]
    return Episode(
        task=Task("t", "o"), stream="train/0", sample=draw(st.integers(0, 3)), actions=tuple(actions),
        status="truncated" if truncated else "terminated", transitions=transitions,
        bootstrap={agent: np.array([1, 2], np.int32) for agent in decided} if truncated else {},
    )  # fmt: skip


@st.composite
def values_for(draw: st.DrawFn, batch: list[Episode], level: Level) -> Values:
    sizes = [1 if level == "action" else len(action.tokens) for action in flatten_actions(batch)]
    return Values(
        [np.array([draw(FLOATS) for _ in range(size)], np.float64) for size in sizes],
        [{agent: draw(FLOATS) for agent in episode.bootstrap} for episode in batch],
    )
