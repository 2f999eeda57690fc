"""How an agent's action comes about: it writes, maybe on from a teammate's text, or chooses from a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from marft.game.agents import Agent, Request
from marft.game.engine import Engine
from marft.game.rendering import Renderer
from marft.types import Action, ActionKey, LogProbs, Mark, Option, Prompt, TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A teammate's text at the beginning of a turn."""

    tokens: TokenIds = field(default_factory=lambda: np.empty(0, np.int32))  # [T]
    marks: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))  # [T]
    log_probs: LogProbs = field(default_factory=lambda: np.empty(0, np.float32))  # [number of teammate tokens]
    text: str = ""


def opening_of(renderer: Renderer, policy: str, begins: Action | None) -> Opening:
    """What a turn begins with: a teammate's tokens, under the marks and log-probs that they have for others."""
    if begins is None:
        return Opening()
    if begins.choice:
        raise ValueError(f"{begins.id} was chosen from a list: no turn can begin with it; pass it on as a message")
    count = renderer.opening(policy, begins)
    log_probs = np.zeros(len(begins.tokens), np.float32)
    log_probs[begins.sampled] = begins.log_probs
    if begins.teammate_log_probs is not None:
        log_probs[begins.by_teammate] = begins.teammate_log_probs
    written = begins.sampled | begins.by_teammate
    marks = np.where(written, np.uint8(Mark.TEAMMATE), begins.marks)[:count]
    return Opening(begins.tokens[:count], marks, log_probs[:count][written[:count]], begins.text)


def options_of(renderer: Renderer, policy: str, request: Request) -> list[Option]:
    """What the agent may choose from, as token ids; nothing when it is to write."""
    options = []
    for text in request.options:
        ids = renderer.option(policy, text)
        sizes = {"none": 1, "tokens": len(ids), "words": len(text.split())}
        options.append(Option(ids, float(max(1, sizes[request.normalisation]))))
    return options


async def write(engine: Engine, agent: Agent, prompt: Prompt, opening: Opening, key: ActionKey) -> Action:
    """Sample a text that goes on from the opening. Where it stands in the episode is filled in by the caller."""
    begun = replace(prompt, ids=np.concatenate([prompt.ids, opening.tokens]))
    completion = await engine.sample(agent.policy, begun, agent.sampling, key)
    return Action(
        key=key,
        policy=agent.policy,
        index=0,
        sees=(),
        prompt=prompt.ids,
        tokens=np.concatenate([opening.tokens, completion.tokens]),
        marks=np.concatenate([opening.marks, np.full(len(completion.tokens), Mark.SAMPLED, np.uint8)]),
        log_probs=completion.log_probs,
        teammate_log_probs=opening.log_probs if len(opening.tokens) else None,
        text=opening.text + completion.text,
        opening=len(opening.text),
        finish=completion.finish,
        version=completion.version,
        usage=completion.usage,
    )


async def choose(
    engine: Engine, agent: Agent, request: Request, prompt: Prompt, options: Sequence[Option], key: ActionKey
) -> Action:
    """Choose one of the options. Where it stands in the episode is filled in by the caller."""
    choice, version = await engine.choose(agent.policy, prompt, options, agent.sampling, key)
    tokens = options[choice.chosen].tokens
    return Action(
        key=key,
        policy=agent.policy,
        index=0,
        sees=(),
        prompt=prompt.ids,
        tokens=tokens,
        marks=np.full(len(tokens), Mark.SAMPLED, np.uint8),
        log_probs=choice.log_probs[[choice.chosen]],
        text=request.options[choice.chosen],
        finish="stop",
        version=version,
        choice=choice,
        usage=choice.usage,
    )
