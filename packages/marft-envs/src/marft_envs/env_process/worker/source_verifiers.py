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

from .server import JsonObject, format_error, split_tool_calls

MODEL = "team"
REWARD_ERRORS: ContextVar[list[str]] = ContextVar("FAULTS")  # errors raised by reward functions of the current episode


class RewardErrorHandler(logging.Handler):
    """Log handler that collects errors from reward functions.

    The rubric only logs such an error and counts a reward of 0.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Record the message of a failed reward function."""
        errors, message = REWARD_ERRORS.get(None), record.getMessage()
        if errors is not None and message.startswith("Error calling"):
            errors.append(message)


class Episode:
    """One rollout, with queues between its model calls and the team."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[str] = asyncio.Queue()
        self.outputs: asyncio.Queue[JsonObject] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def request_text(self, messages: list[JsonObject], tools: list[Any]) -> str:
        """Send a model request to the team and return its text."""
        await self.outputs.put({"messages": messages, "tools": tools})
        return await self.replies.get()

    async def run(self, rollout: Coroutine[Any, Any, JsonObject]) -> None:
        """Run a rollout and queue its result or its error."""
        try:
            await self.outputs.put({"done": await rollout})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  third-party code; the error is sent back
            await self.outputs.put({"error": format_error(error)})


class RolloutEnvironment:
    """Environments with their own rollouts: ``verifiers.load_environment``, up to version 0.1."""

    def __init__(self, verifiers: Any, name: str, args: JsonObject) -> None:
        self.env = verifiers.load_environment(name, **args)
        logging.getLogger("verifiers").addHandler(RewardErrorHandler(logging.ERROR))

    def list_rows(self, held_out: bool) -> list[JsonObject]:
        """Return prompts, answers and further row data.

        If ``held_out`` is True, the rows come from the evaluation dataset; the list is empty if the environment has
        none.
        """
        return [
            {
                "messages": to_messages(row["prompt"]),
                "answer": str(row.get("answer", "")),
                "about": str(row.get("info", "")),
            }
            for row in self._dataset(held_out)
        ]

    def _dataset(self, held_out: bool) -> Any:
        if not held_out:
            return self.env.get_dataset()
        has_eval_dataset = getattr(self.env, "eval_dataset", None) is not None or getattr(
            self.env, "eval_dataset_source", None
        )
        return self.env.get_eval_dataset() if has_eval_dataset else []

    async def run_episode(self, held_out: bool, index: int, episode: Episode) -> JsonObject:
        """Run a rollout and return its reward and metrics.

        Raises:
            RuntimeError: the rollout or a reward function failed.
        """
        row = dict(self._dataset(held_out)[index])
        state = await self.env.rollout(row, self._make_client(episode), MODEL, {})
        if state.get("error") is not None:
            raise RuntimeError(format_error(state["error"]))
        errors = list[str]()
        REWARD_ERRORS.set(errors)
        await self.env.rubric.score_rollout(state)
        if errors:
            raise RuntimeError(errors[0])
        reward = state["reward"]  # numpy scalars and tensors are converted
        reward = float(reward) if hasattr(reward, "__float__") else reward
        return {"reward": reward, "metrics": stringify_keys(state.get("metrics"))}

    def _make_client(self, episode: Episode) -> Any:
        """Create a client of the package's class, with the team as the model."""
        types = importlib.import_module("verifiers.types")

        async def get_response(prompt: Any, model: str, tools: Any = None, **_: Any) -> Any:
            """Answer a model request with the team's text."""
            text = await episode.request_text(to_messages(prompt), [tool_to_dict(tool) for tool in tools or ()])
            content, parsed_calls = split_tool_calls(text)
            calls = [
                {"id": f"call_{number}", "name": call["name"], "arguments": json.dumps(call["arguments"])}
                for number, call in enumerate(parsed_calls)
            ]
            message = types.ResponseMessage(
                content=content,
                tool_calls=[types.ToolCall(**call) for call in calls] or None,
                finish_reason="tool_calls" if calls else "stop",
                is_truncated=False,
            )
            return types.Response(id="team", created=int(time.time()), model=model, message=message)

        base = importlib.import_module("verifiers.clients").Client
        methods = dict.fromkeys(base.__abstractmethods__, _not_supported)
        kind = type("Team", (base,), {**methods, "get_response": staticmethod(get_response)})
        return kind(None)


class TasksetEnvironment:
    """Task sets of version 0.4, which score a single answer to a prompt."""

    def __init__(self, name: str, args: JsonObject) -> None:
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        config = loaders.taskset_config_type(name)(**{"id": name, **args})
        taskset = loaders.load_taskset(config)
        if not taskset.bounded:
            raise ValueError(f"{name} has tasks without end; give it an argument that bounds them")
        self.tasks = list(taskset)
        self.v1 = importlib.import_module("verifiers.v1")

    def list_rows(self, held_out: bool) -> list[JsonObject]:
        """Return prompts and answers; no task is held out."""
        return (
            []
            if held_out
            else [
                {"messages": self._task_messages(task), "answer": str(getattr(task.data, "answer", "")), "about": ""}
                for task in self.tasks
            ]
        )

    def _task_messages(self, task: Any) -> list[JsonObject]:
        system = [{"role": "system", "content": task.data.system_prompt}] if task.data.system_prompt else []
        return [*system, *to_messages(task.data.prompt)]

    async def run_episode(self, held_out: bool, index: int, episode: Episode) -> JsonObject:  # noqa: ARG002
        """Request one answer and return its reward and metrics.

        Raises:
            RuntimeError: no part can be scored without a runtime (a separate machine).
        """
        task, v1 = self.tasks[index], self.v1
        text = await episode.request_text(self._task_messages(task), [])
        agent = v1.AgentInfo(config=v1.AgentConfig())
        trace = v1.Trace(task=v1.TraceTask(type=type(task).__name__, data=task.data), agent=agent)
        for message in self._task_messages(task):
            kind = v1.SystemMessage if message["role"] == "system" else v1.UserMessage
            self._add_to_trace(trace, kind(content=message["content"]))
        self._add_to_trace(trace, v1.AssistantMessage(content=text), sampled=True)
        await task.score(trace)
        rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        if not rewards:
            raise RuntimeError("nothing of it could be scored without a machine of its own (a runtime)")
        return {
            "reward": sum(float(reward.value) for reward in rewards.values()),
            "metrics": stringify_keys(trace.metrics),
        }

    def _add_to_trace(self, trace: Any, message: Any, sampled: bool = False) -> None:
        parent = len(trace.nodes) - 1 if trace.nodes else None
        trace.nodes.append(self.v1.MessageNode(parent=parent, message=message, sampled=sampled))


def _not_supported(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("the team is asked in words")


def stringify_keys(metrics: Any) -> JsonObject:
    """Convert metric names to strings."""
    return {str(name): value for name, value in (metrics or {}).items()}


def to_messages(prompt: Any) -> list[JsonObject]:
    """Convert messages to dicts with role and text."""
    if prompt is None or isinstance(prompt, str):
        return [{"role": "user", "content": prompt or ""}]
    messages = []
    for message in prompt:
        data = message if isinstance(message, dict) else message.model_dump()
        content = data.get("content") or ""
        if not isinstance(content, str):
            content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        messages.append({"role": str(data.get("role", "user")), "content": content})
    return messages


def tool_to_dict(tool: Any) -> JsonObject:
    """Keep the name, description and parameters of a tool."""
    data = tool if isinstance(tool, dict) else tool.model_dump()
    return {key: data.get(key) for key in ("name", "description", "parameters")}


class VerifiersSource:
    """One environment and its running rollouts."""

    def __init__(self, environment: RolloutEnvironment | TasksetEnvironment) -> None:
        self.environment = environment
        self.episodes: dict[str, Episode] = {}

    def list_rows(self, request: JsonObject) -> list[JsonObject]:
        """Return the available tasks."""
        return self.environment.list_rows(request["held_out"])

    async def start_episode(self, episode: str, request: JsonObject) -> JsonObject:
        """Start a rollout and return its first request to the team."""
        running = self.episodes[episode] = Episode()
        rollout = self.environment.run_episode(request["held_out"], request["row"], running)
        running.task = asyncio.ensure_future(running.run(rollout))
        return await running.outputs.get()

    async def send_text(self, episode: str, request: JsonObject) -> JsonObject:
        """Pass the team's text to a rollout; return the next request or the result."""
        running = self.episodes[episode]
        await running.replies.put(request["text"])
        return await running.outputs.get()

    def drop_episode(self, episode: str) -> None:
        """Drop a rollout and cancel its task."""
        running = self.episodes.pop(episode, None)
        if running and running.task:
            running.task.cancel()


def open_source(settings: JsonObject) -> VerifiersSource:
    """Load an environment by ``name`` with arguments ``args``."""
    verifiers = importlib.import_module("verifiers")
    name, args = settings["name"], settings["args"]
    has_rollouts = hasattr(verifiers, "load_environment")
    return VerifiersSource(
        RolloutEnvironment(verifiers, name, args) if has_rollouts else TasksetEnvironment(name, args)
    )
