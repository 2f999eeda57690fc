"""The program that runs environments of ``verifiers``, on a Python that has them: nothing of MARFT is imported here.

It is asked in lines of JSON on the socket that it is given, and answers in lines with the same ``id``. An episode runs
the environment's own rollout, whose model is the team: what the model is asked with goes out, what is said next
comes in. At the end the environment's own rubric scores it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

LARGEST = 2**26  # bytes of a line
MODEL = "team"
OPENS, CLOSES = "<tool_call>", "</tool_call>"
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
            said, calls = called(text)
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


def called(text: str) -> tuple[str, list[dict[str, str]]]:
    """A text without the calls in it, ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, and the calls. What is
    opened there and is none stays as it is."""
    said, calls, at = list[str](), list[dict[str, str]](), 0
    while (opened := text.find(OPENS, at)) >= 0:
        closed = text.find(CLOSES, opened)
        inside = text[opened + len(OPENS) : closed if closed >= 0 else len(text)]
        said.append(text[at:opened])
        at = closed + len(CLOSES) if closed >= 0 else len(text)
        try:
            call = json.loads(inside)
            arguments = json.dumps(call.get("arguments") or {})
            calls.append({"id": f"call_{len(calls)}", "name": str(call["name"]), "arguments": arguments})
        except (ValueError, KeyError, AttributeError, RecursionError):
            said.append(text[opened:at])
    return "".join((*said, text[at:])), calls


def described(error: object) -> str:
    """An error, and what it came of."""
    cause = getattr(error, "__cause__", None)
    return f"{type(error).__name__}: {error}"[:2000] + (f" ({described(cause)})" if cause else "")


class Bridge:
    """Answers lines."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.source: Rollouts | Tasks | None = None
        self.episodes: dict[str, Episode] = {}
        self.asked: set[asyncio.Task[None]] = set()

    def answer(self, line: bytes) -> None:
        """Answer a line in its own time."""
        task = asyncio.ensure_future(self._answered(json.loads(line)))
        self.asked.add(task)
        task.add_done_callback(self.asked.discard)

    async def _answered(self, asked: dict[str, Any]) -> None:
        do: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]] = getattr(self, f"_{asked['do']}")
        try:
            line = json.dumps({"id": asked["id"], **await do(asked)}, default=str)
        except Exception as error:  # noqa: BLE001  of somebody's environment: it is told
            line = json.dumps({"id": asked["id"], "error": described(error)})
        self.writer.write(line.encode() + b"\n")

    async def _open(self, asked: dict[str, Any]) -> dict[str, Any]:
        verifiers = importlib.import_module("verifiers")
        name, args = asked["name"], asked["args"]
        classical = hasattr(verifiers, "load_environment")
        self.source = Rollouts(verifiers, name, args) if classical else Tasks(name, args)
        return {"version": str(getattr(verifiers, "__version__", "?"))}

    async def _rows(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self.source, "nothing is opened"
        return {"rows": self.source.rows(asked["held_out"])}

    async def _begin(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self.source, "nothing is opened"
        episode = self.episodes[asked["episode"]] = Episode()
        rollout = self.source.play(asked["held_out"], asked["row"], episode)
        episode.running = asyncio.ensure_future(episode.run(rollout))
        return await episode.shown.get()

    async def _say(self, asked: dict[str, Any]) -> dict[str, Any]:
        episode = self.episodes[asked["episode"]]
        await episode.said.put(asked["text"])
        return await episode.shown.get()

    async def _drop(self, asked: dict[str, Any]) -> dict[str, Any]:
        episode = self.episodes.pop(asked["episode"], None)
        if episode and episode.running:
            episode.running.cancel()
        return {}


async def serve(descriptor: int) -> None:
    """Answer until the other end is gone."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=LARGEST)
    bridge = Bridge(writer)
    while line := await reader.readline():
        bridge.answer(line)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[-1])))
