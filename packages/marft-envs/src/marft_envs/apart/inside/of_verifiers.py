"""Source of ``verifiers`` environments.

An episode runs the environment's own rollout with the team as its model. Prompts to the model are sent out, and the
team's texts are sent in. At the end the environment's own rubric scores the rollout.
"""

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
FAULTS: ContextVar[list[str]] = ContextVar("FAULTS")  # errors raised by reward functions of the current episode


class Faults(logging.Handler):
    """Log handler that collects errors from reward functions.

    The rubric only logs such an error and counts a reward of 0.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Record the message of a failed reward function."""
        heard, message = FAULTS.get(None), record.getMessage()
        if heard is not None and message.startswith("Error calling"):
            heard.append(message)


class Episode:
    """One rollout, with queues between its model calls and the team."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.shown: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.running: asyncio.Task[None] | None = None

    async def ask(self, messages: list[dict[str, Any]], tools: list[Any]) -> str:
        """Send a model request to the team and return its text."""
        await self.shown.put({"messages": messages, "tools": tools})
        return await self.said.get()

    async def run(self, rollout: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Run a rollout and queue its result or its error."""
        try:
            await self.shown.put({"done": await rollout})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  third-party code; the error is sent back
            await self.shown.put({"error": described(error)})


class Rollouts:
    """Environments with their own rollouts: ``verifiers.load_environment``, up to version 0.1."""

    def __init__(self, verifiers: Any, name: str, args: dict[str, Any]) -> None:
        self.env = verifiers.load_environment(name, **args)
        logging.getLogger("verifiers").addHandler(Faults(logging.ERROR))

    def rows(self, held_out: bool) -> list[dict[str, Any]]:
        """Return prompts, answers and further row data.

        If ``held_out`` is True, the rows come from the evaluation dataset; the list is empty if the environment has
        none.
        """
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
        """Run a rollout and return its reward and metrics.

        Raises:
            RuntimeError: the rollout or a reward function failed.
        """
        row = dict(self._rows(held_out)[index])
        state = await self.env.rollout(row, self._client(episode), MODEL, {})
        if state.get("error") is not None:
            raise RuntimeError(described(state["error"]))
        faults = list[str]()
        FAULTS.set(faults)
        await self.env.rubric.score_rollout(state)
        if faults:
            raise RuntimeError(faults[0])
        reward = state["reward"]  # numpy scalars and tensors are converted
        reward = float(reward) if hasattr(reward, "__float__") else reward
        return {"reward": reward, "metrics": named(state.get("metrics"))}

    def _client(self, episode: Episode) -> Any:
        """Create a client of the package's class, with the team as the model."""
        types = importlib.import_module("verifiers.types")

        async def get_response(prompt: Any, model: str, tools: Any = None, **_: Any) -> Any:
            """Answer a model request with the team's text."""
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
    """Task sets of version 0.4, which score a single answer to a prompt."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        config = loaders.taskset_config_type(name)(**{"id": name, **args})
        taskset = loaders.load_taskset(config)
        if not taskset.bounded:
            raise ValueError(f"{name} has tasks without end; give it an argument that bounds them")
        self.tasks = list(taskset)
        self.v1 = importlib.import_module("verifiers.v1")

    def rows(self, held_out: bool) -> list[dict[str, Any]]:
        """Return prompts and answers; no task is held out."""
        return [] if held_out else [
            {"messages": self._messages(task), "answer": str(getattr(task.data, "answer", "")), "about": ""}
            for task in self.tasks
        ]  # fmt: skip

    def _messages(self, task: Any) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": task.data.system_prompt}] if task.data.system_prompt else []
        return [*system, *plain(task.data.prompt)]

    async def play(self, held_out: bool, index: int, episode: Episode) -> dict[str, Any]:  # noqa: ARG002
        """Request one answer and return its reward and metrics.

        Raises:
            RuntimeError: no part can be scored without a runtime (a separate machine).
        """
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
    """Convert metric names to strings."""
    return {str(name): value for name, value in (metrics or {}).items()}


def plain(prompt: Any) -> list[dict[str, Any]]:
    """Convert messages to dicts with role and text."""
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
    """Keep the name, description and parameters of a tool."""
    given = tool if isinstance(tool, dict) else tool.model_dump()
    return {key: given.get(key) for key in ("name", "description", "parameters")}


class Environments:
    """One environment and its running rollouts."""

    def __init__(self, played: Rollouts | Tasks) -> None:
        self.played = played
        self.episodes: dict[str, Episode] = {}

    def rows(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the available tasks."""
        return self.played.rows(asked["held_out"])

    async def begin(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Start a rollout and return its first request to the team."""
        begun = self.episodes[episode] = Episode()
        rollout = self.played.play(asked["held_out"], asked["row"], begun)
        begun.running = asyncio.ensure_future(begun.run(rollout))
        return await begun.shown.get()

    async def say(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Pass the team's text to a rollout; return the next request or the result."""
        begun = self.episodes[episode]
        await begun.said.put(asked["text"])
        return await begun.shown.get()

    def drop(self, episode: str) -> None:
        """Drop a rollout and cancel its task."""
        begun = self.episodes.pop(episode, None)
        if begun and begun.running:
            begun.running.cancel()


def open_source(given: dict[str, Any]) -> Environments:
    """Load an environment by ``name`` with arguments ``args``."""
    verifiers = importlib.import_module("verifiers")
    name, args = given["name"], given["args"]
    classical = hasattr(verifiers, "load_environment")
    return Environments(Rollouts(verifiers, name, args) if classical else Tasks(name, args))
