"""Conversations of the environment ``tool_use``, played without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft.config.load import load_recipe
from marft.config.models import ModelSettings
from marft.models.tokenizer_format import load_format
from marft_envs.tool_use.environment import ToolUse, ToolUseSession
from marft_lab.scripted_team import ScriptedTeam
from tests.episodes import make_action

LONG = 1_000_000  # tokens that nothing is cut at


def environment(**keys: Any) -> ToolUse:
    """The environment, under the name that its tasks go by."""
    made = ToolUse.model_validate(keys)
    made._name = "tool_use"
    return made


def said(text: str, *, role: str = "agent", **others: str) -> JointAction:
    """What a team does whose agent says this, after what others say."""
    answer = make_action(role, text=text)
    return JointAction(answer, (*(make_action(name, text=words) for name, words in others.items()), answer))


class Played:
    """One conversation, step by step."""

    def __init__(self, made: ToolUse, task: Task) -> None:
        self.session: ToolUseSession = made.start(task, 0)
        self.first: Observation = asyncio.run(self.session.reset())

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Use a tool."""
        return getattr(self.session.toolbox, name)(**arguments)

    def say(self, text: str, **others: str) -> Step:
        """Say something to the user."""
        return asyncio.run(self.session.step(said(text, **others)))


def wants(made: ToolUse, **kinds: Any) -> Iterable[Task]:
    """Tasks whose only goal has such a beginning of its aim, and whether something is to be written."""
    for task in made.demonstrations():
        (goal,) = task.data["goals"]
        writes = kinds.get("writes", bool(goal["writes"]))
        withheld = kinds.get("withheld", bool(goal["withheld"]))
        fits = (bool(goal["writes"]), bool(goal["withheld"])) == (writes, withheld)
        if fits and goal["aim"].startswith(kinds.get("aim", "")):
            yield task


def scripted(
    recipe: str, skill: float, count: int, tasks: Iterable[Task] | None = None, **changes: Any
) -> list[Episode]:
    """Episodes that the script plays, on demonstrations where no tasks are given; nothing is cut short."""
    run = load_recipe(recipe, changes={"models.base.path": "tiny-tools", "models.base.context_length": 1024, **changes})
    agents = tuple(
        one.model_copy(update={"sampling": one.sampling.model_copy(update={"max_new_tokens": LONG // 50})})
        for one in run.agents
    )
    run = run.model_copy(update={"agents": agents})
    form = replace(load_format(ModelSettings(path="tiny-tools")), context=LONG)
    with ScriptedTeam(run, run.environment.script(skill), dict.fromkeys(run.models, form)) as team:  # type: ignore[arg-type]
        return list(team.play(islice(tasks or run.environment.demonstrations(), count)))  # type: ignore[attr-defined]
