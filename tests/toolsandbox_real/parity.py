"""Whether conversations with ``tool_sandbox`` end as when the package plays them itself, with the same agent.

PYTHONPATH=… python tests/toolsandbox_real/parity.py 60      # on a Python that has the package
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

INSIDE = Path(__file__).parents[2] / "packages/marft-envs/src/marft_envs/env_process/worker"
GOOD = {
    "get_cellular_service_status": {}, "get_current_timestamp": {}, "get_wifi_status": {}, "search_messages": {},
    "search_reminder": {}, "search_contacts": {"name": "Homer S"}, "set_cellular_service_status": {"on": True},
    "set_location_service_status": {"on": True}, "set_low_battery_mode_status": {"on": False},
    "set_wifi_status": {"on": False},
}  # fmt: skip
LAST = ("Wifi is turned off", "Cellular service is on", "I cannot help.", "Your message was sent.")
SEED = 3


def load() -> Any:
    spec = importlib.util.spec_from_file_location("marft_inside", INSIDE / "__init__.py")
    assert spec
    sys.modules["marft_inside"] = importlib.util.module_from_spec(spec)
    own_search = importlib.import_module("tool_sandbox.common.evaluation").MilestoneMatcher._dfs
    source = importlib.import_module("marft_inside.of_toolsandbox").open_source({"web": False, "seconds": 30.0})
    source.own_search = own_search
    return source


def drawn(source: Any, name: str, draw: random.Random) -> tuple[list[list[tuple[str, Any]]], str]:
    """Calls, a few at a time, and last words."""
    context = source.scenarios[name].starting_context
    source.sandbox.contexts.set_current_context(context)
    tools = list(source.sandbox.agent.get_available_tools())
    turns = [draw.choices(tools, k=draw.randint(1, 2)) for _ in range(draw.randint(0, 4))]
    real = context.get_execution_facing_tool_name
    return [[(tool, GOOD.get(real(tool), {})) for tool in turn] for turn in turns], draw.choice(LAST)


async def through_us(source: Any, name: str, turns: list[list[tuple[str, Any]]], last: str) -> tuple[float, float]:
    await source.begin("one", {"name": name, "seed": SEED})
    shown: dict[str, Any] = {}
    lines = [
        "".join(f"<tool_call>{json.dumps({'name': t, 'arguments': a})}</tool_call>" for t, a in turn) for turn in turns
    ]
    for line in [*lines, last]:
        asked = {"speaker": "agent", "text": line, "answered": False, "ends": False}
        shown = await source.say("one", asked)
    return shown["done"]["reward"], shown["done"]["metrics"]["turns"]


def by_itself(source: Any, name: str, turns: list[list[tuple[str, Any]]], last: str) -> tuple[float, float]:
    conversion = importlib.import_module("tool_sandbox.common.message_conversion")
    base = importlib.import_module("tool_sandbox.roles.base_role").BaseRole
    scenario, contexts, roles = source.scenarios[name], source.sandbox.contexts, source.sandbox.roles
    left = list(enumerate(turns))

    def code(call_id: str, tool: str, arguments: Any, available: set[str]) -> Any:
        function = SimpleNamespace(name=tool, arguments=json.dumps(arguments))
        real = contexts.get_current_context().get_execution_facing_tool_name(tool)
        made = conversion.openai_tool_call_to_python_code(
            SimpleNamespace(id=call_id, function=function), available, execution_facing_tool_name=real
        )
        return conversion.Message(
            sender=roles.AGENT, recipient=roles.EXECUTION_ENVIRONMENT, content=made, openai_tool_call_id=call_id,
            openai_function_name=tool,
        )  # fmt: skip

    class Agent(base):  # type: ignore[misc]
        role_type = roles.AGENT

        def respond(self, ending_index: int | None = None) -> None:
            if not left:
                self.add_messages([conversion.Message(sender=roles.AGENT, recipient=roles.USER, content=last)])
                return
            turn, calls = left.pop(0)
            known = set(self.get_available_tools())
            self.add_messages([code(f"call_{turn}_{n}", tool, given, known) for n, (tool, given) in enumerate(calls)])

    class User(base):  # type: ignore[misc]
        role_type = roles.USER

        def respond(self, ending_index: int | None = None) -> None:
            recipient, content = roles.EXECUTION_ENVIRONMENT, "end_conversation()"
            self.add_messages([conversion.Message(sender=roles.USER, recipient=recipient, content=content)])

    matcher = importlib.import_module("tool_sandbox.common.evaluation").MilestoneMatcher
    ours, matcher._dfs = matcher._dfs, source.own_search
    importlib.import_module("marft_inside.still").Identifiers.random = random.Random(SEED)
    players = {roles.AGENT: Agent(), roles.USER: User(), roles.EXECUTION_ENVIRONMENT: source.sandbox.console}
    result = scenario.evaluation.evaluate(scenario.play(players, name), scenario.max_messages)
    matcher._dfs = ours
    return result.similarity, result.turn_count


def main() -> None:
    source, draw = load(), random.Random(1)
    names = draw.sample(sorted(source.scenarios), int(sys.argv[1]))
    different, rewards = 0, set()
    for name in names:
        turns, last = drawn(source, name, draw)
        ours, theirs = asyncio.run(through_us(source, name, turns, last)), by_itself(source, name, turns, last)
        different += ours != theirs
        rewards.add(round(theirs[0], 2))
    sys.stdout.write(json.dumps({"played": len(names), "different": different, "rewards": sorted(rewards)}) + "\n")


if __name__ == "__main__":
    main()
