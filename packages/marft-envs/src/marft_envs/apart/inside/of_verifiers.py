"""Environments of ``verifiers``: an episode runs the environment's own rollout, whose model is the team. What the model
is asked with goes out, what is said next comes in. At the end the environment's own rubric scores it."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import time
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from .calls import called, described

MODEL = "team"
FAULTS: ContextVar[list[str]] = ContextVar("FAULTS")  # what reward functions of this episode have raised


class Faults(logging.Handler):
    """Hears of reward functions that have raised: their rubric only logs it, and counts a reward of 0."""

    def emit(self, record: logging.LogRecord) -> None:
        heard, message = FAULTS.get(None), record.getMessage()
        if heard is not None and message.startswith("Error calling"):
            heard.append(message)


class Episode:
    """One rollout, which waits for what the team says."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.shown: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.running: asyncio.Task[None] | None = None

    async def ask(self, messages: list[dict[str, Any]], tools: list[Any]) -> str:
        """Show the team what its model is asked with → what it says."""
        await self.shown.put({"messages": messages, "tools": tools})
        return await self.said.get()

    async def run(self, rollout: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            await self.shown.put({"done": await rollout})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  of somebody's environment: it is told
            await self.shown.put({"error": described(error)})


class Rollouts:
    """Environments that have rollouts of their own: ``verifiers.load_environment``, up to version 0.1."""

    def __init__(self, verifiers: Any, name: str, args: dict[str, Any]) -> None:
        self.env = verifiers.load_environment(name, **args)
        logging.getLogger("verifiers").addHandler(Faults(logging.ERROR))

    def rows(self, held_out: bool) -> list[dict[str, Any]]:
        """Prompts and answers, and what else a row says; of those that are held out, where the environment has such."""
        return [
            {"messages": plain(row["prompt"]), "answer": str(row.get("answer", "")), "about": str(row.get("info", ""))}
            for row in self._rows(held_out)
        ]

    def _rows(self, held_out: bool) -> Any:
        if not held_out:
            return self.env.get_dataset()
        own = getattr(self.env, "eval_dataset", None) is not None or getattr(self.env, "eval_dataset_source", None)
        return self.env.get_eval_dataset() if own else []

    async def play(self, held_out: bool, index: int, episode: Episode) -> dict[str, Any]:
        """A rollout, and its score."""
        row = dict(self._rows(held_out)[index])
        state = await self.env.rollout(row, self._client(episode), MODEL, {})
        if state.get("error") is not None:
            raise RuntimeError(described(state["error"]))
        faults = list[str]()
        FAULTS.set(faults)
        await self.env.rubric.score_rollout(state)
        if faults:
            raise RuntimeError(faults[0])
        reward = state["reward"]  # perhaps one that numpy or a tensor holds
        reward = float(reward) if hasattr(reward, "__float__") else reward
        return {"reward": reward, "metrics": named(state.get("metrics"))}

    def _client(self, episode: Episode) -> Any:
        """A client of the package's own kind whose model is the team."""
        types = importlib.import_module("verifiers.types")

        async def get_response(prompt: Any, model: str, tools: Any = None, **_: Any) -> Any:
            text = await episode.ask(plain(prompt), [plain_tool(tool) for tool in tools or ()])
            said, found = called(text)
            calls = [
                {"id": f"call_{number}", "name": call["name"], "arguments": json.dumps(call["arguments"])}
                for number, call in enumerate(found)
            ]
            message = types.ResponseMessage(
                content=said, tool_calls=[types.ToolCall(**call) for call in calls] or None,
                finish_reason="tool_calls" if calls else "stop", is_truncated=False,
            )  # fmt: skip
            return types.Response(id="team", created=int(time.time()), model=model, message=message)

        base = importlib.import_module("verifiers.clients").Client
        methods = dict.fromkeys(base.__abstractmethods__, _never)
        kind = type("Team", (base,), {**methods, "get_response": staticmethod(get_response)})
        return kind(None)


class Tasks:
    """Task sets, which score what was said: version 0.4. One answer to one prompt."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        config = loaders.taskset_config_type(name)(**{"id": name, **args})
        taskset = loaders.load_taskset(config)
        if not taskset.bounded:
            raise ValueError(f"{name} has tasks without end; give it an argument that bounds them")
        self.tasks = list(taskset)
        self.v1 = importlib.import_module("verifiers.v1")

    def rows(self, held_out: bool) -> list[dict[str, Any]]:
        """Prompts and answers; none are held out."""
        return [] if held_out else [
            {"messages": self._messages(task), "answer": str(getattr(task.data, "answer", "")), "about": ""}
            for task in self.tasks
        ]  # fmt: skip

    def _messages(self, task: Any) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": task.data.system_prompt}] if task.data.system_prompt else []
        return [*system, *plain(task.data.prompt)]

    async def play(self, held_out: bool, index: int, episode: Episode) -> dict[str, Any]:  # noqa: ARG002
        """One answer, and its score."""
        task, v1 = self.tasks[index], self.v1
        text = await episode.ask(self._messages(task), [])
        agent = v1.AgentInfo(config=v1.AgentConfig())
        trace = v1.Trace(task=v1.TraceTask(type=type(task).__name__, data=task.data), agent=agent)
        for message in self._messages(task):
            kind = v1.SystemMessage if message["role"] == "system" else v1.UserMessage
            self._add(trace, kind(content=message["content"]))
        self._add(trace, v1.AssistantMessage(content=text), sampled=True)
        await task.score(trace)
        rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        if not rewards:
            raise RuntimeError("nothing of it could be scored without a machine of its own (a runtime)")
        return {"reward": sum(float(reward.value) for reward in rewards.values()), "metrics": named(trace.metrics)}

    def _add(self, trace: Any, message: Any, sampled: bool = False) -> None:
        parent = len(trace.nodes) - 1 if trace.nodes else None
        trace.nodes.append(self.v1.MessageNode(parent=parent, message=message, sampled=sampled))


def _never(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("the team is asked in words")


def named(metrics: Any) -> dict[str, Any]:
    """Metrics by texts, whatever their names are."""
    return {str(name): value for name, value in (metrics or {}).items()}


def plain(prompt: Any) -> list[dict[str, Any]]:
    """Messages as roles and texts."""
    if prompt is None or isinstance(prompt, str):
        return [{"role": "user", "content": prompt or ""}]
    found = []
    for message in prompt:
        given = message if isinstance(message, dict) else message.model_dump()
        content = given.get("content") or ""
        if not isinstance(content, str):
            content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        found.append({"role": str(given.get("role", "user")), "content": content})
    return found


def plain_tool(tool: Any) -> dict[str, Any]:
    """What is told of a tool."""
    given = tool if isinstance(tool, dict) else tool.model_dump()
    return {key: given.get(key) for key in ("name", "description", "parameters")}


class Environments:
    """One environment, and its rollouts."""

    def __init__(self, played: Rollouts | Tasks) -> None:
        self.played = played
        self.episodes: dict[str, Episode] = {}

    def rows(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        return self.played.rows(asked["held_out"])

    async def begin(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        begun = self.episodes[episode] = Episode()
        rollout = self.played.play(asked["held_out"], asked["row"], begun)
        begun.running = asyncio.ensure_future(begun.run(rollout))
        return await begun.shown.get()

    async def say(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        begun = self.episodes[episode]
        await begun.said.put(asked["text"])
        return await begun.shown.get()

    def drop(self, episode: str) -> None:
        begun = self.episodes.pop(episode, None)
        if begun and begun.running:
            begun.running.cancel()


def open_source(given: dict[str, Any]) -> Environments:
    """Load an environment by its ``name`` with its ``args``."""
    verifiers = importlib.import_module("verifiers")
    name, args = given["name"], given["args"]
    classical = hasattr(verifiers, "load_environment")
    return Environments(Rollouts(verifiers, name, args) if classical else Tasks(name, args))
