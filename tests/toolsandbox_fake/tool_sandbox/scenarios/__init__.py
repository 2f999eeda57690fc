from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tool_sandbox.common.execution_context import ExecutionContext, RoleType, ScenarioCategories
from tool_sandbox.common.message_conversion import Message
from tool_sandbox.common.tool_discovery import ToolBackend

IMPORTS = (
    "from tool_sandbox.tools.phone import *\nfrom tool_sandbox.tools.rapid_api_search_tools import *\n"
)  # fmt: skip
WORDS = "the last words"  # to a user, by which half of what is asked for is done


@dataclass
class Evaluation:
    done: Callable[[ExecutionContext], bool]

    def evaluate(self, execution_context: ExecutionContext, max_turn_count: int) -> Any:
        if execution_context.messages[-1].content == "end_conversation()":
            raise RuntimeError("nobody has ended it")
        seen = [one for one in execution_context.messages if RoleType.AGENT in one.visible_to]
        said = [one.content for one in seen if one.sender == RoleType.AGENT]
        if said and said[-1] == "break":
            raise RuntimeError("the evaluation is broken")
        number = float("nan") if said and said[-1] == "no number" else 0.0
        share = (self.done(execution_context) + bool(said and WORDS in said[-1])) / 2 + number
        return SimpleNamespace(
            similarity=share, milestone_similarity=share, minefield_similarity=0.0, turn_count=len(said)
        )  # fmt: skip


@dataclass
class Scenario:
    starting_context: ExecutionContext
    evaluation: Evaluation
    max_messages: int = 12
    categories: list[Any] = field(default_factory=list)


def talk(sender: RoleType, recipient: RoleType, content: str, visible: list[RoleType] | None = None) -> Message:
    return Message(sender, recipient, content, visible_to=visible or [sender, recipient])


def made(asks: str, wants: str, tools: list[str], done: Callable[[ExecutionContext], bool], category: Any) -> Scenario:
    context = ExecutionContext()
    example = [
        talk(RoleType.SYSTEM, RoleType.USER, "You want tea.", [RoleType.USER]),
        talk(RoleType.USER, RoleType.AGENT, "Tea!", [RoleType.USER]),
        talk(RoleType.AGENT, RoleType.USER, "Here.", [RoleType.USER]),
        talk(RoleType.USER, RoleType.EXECUTION_ENVIRONMENT, "end_conversation()", [RoleType.USER]),
    ]
    context.messages = [
        talk(RoleType.SYSTEM, RoleType.EXECUTION_ENVIRONMENT, IMPORTS),
        talk(RoleType.SYSTEM, RoleType.AGENT, "Assume nothing."),
        *example, *copy.deepcopy(example),
        talk(RoleType.SYSTEM, RoleType.USER, wants), talk(RoleType.USER, RoleType.AGENT, asks),
    ]  # fmt: skip
    context.tool_allow_list = ["end_conversation", *tools]
    return Scenario(context, Evaluation(done), categories=[category])


def named_scenarios(preferred_tool_backend: ToolBackend) -> dict[str, Scenario]:
    one, more = ScenarioCategories.SINGLE_USER_TURN, ScenarioCategories.MULTIPLE_USER_TURN
    tools = ["set_lamp", "what_time", "misbehave"]
    found = {
        "lamp_on": made("Light, please", "You want the lamp on.", tools, lambda context: context.lamp, one),
        "lamp_on_slowly": made("Do something", "You want the lamp on.", tools, lambda context: context.lamp, more),
        "lamp_on_at_night": made("It is dark", "You want to see.", tools, lambda context: context.lamp, one),
        "bulb": made("A bulb, please", "You want the lamp on.", tools, lambda context: context.lamp, one),
        "shine": made("light,  PLEASE", "You want it to shine.", tools, lambda context: context.lamp, one),
        "web": made("What is new?", "You want news.", ["search_web"], lambda _: True, one),
    }
    for name in ("Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida"):
        asks = f"Add {name}"
        found[f"add_{name}"] = made(
            asks, f"You want {name} added.", ["add_person"], lambda context, name=name: name in context.book, one
        )
    for name in list(found):
        scrambled = copy.deepcopy(found[name])
        scrambled.starting_context.scrambled = True
        scrambled.categories.append(ScenarioCategories.TOOL_NAME_SCRAMBLED)
        found[f"{name}_scrambled"] = scrambled
    found["lamp_on_more_tools"] = more_tools = copy.deepcopy(found["lamp_on"])
    assert more_tools.starting_context.tool_allow_list
    more_tools.starting_context.tool_allow_list.append("search_web")
    for scenario in found.values():
        random.shuffle(scenario.starting_context.tool_allow_list or [])
    return found
