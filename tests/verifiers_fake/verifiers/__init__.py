"""A stand-in for the package ``verifiers`` with its classical face: what our process of it is tried with."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import Any

__version__ = "0.0-fake"
NAP = 0.5  # seconds that others can use


class Message(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__


class Rubric:
    async def score_rollout(self, state: dict[str, Any]) -> None:
        last = state["completion"][-1]["content"]
        if last == "swallow":
            logging.getLogger("verifiers.rubrics.Rubric").error("Error calling reward function right: KeyError")
        state["reward"] = {"nan": float("nan"), "none": None}.get(last, float(state["answer"] in last))
        state["metrics"] = {"turns": len(state["completion"]), "is long?": 0.0, "text": "x", ("a", 1): float("inf")}
        state["metrics"]["kind"] = type(self)
        if last == "round":
            state["metrics"]["itself"] = itself = list[Any]()
            itself.append(itself)


class Environment:
    """Sums; ``turns`` answers of one episode, after each of which it says what was said. What is ``secret`` is asked
    in the same words for all sums."""

    def __init__(self, turns: int = 1, held_out: bool = False, tools: bool = False, secret: bool = False) -> None:
        self.turns, self.rubric, self.tools, self.secret = turns, Rubric(), tools, secret
        self.eval_dataset = self._rows(100, 105) if held_out else None

    def _rows(self, first: int, end: int) -> list[dict[str, Any]]:
        return [
            {
                "prompt": [{"role": "user", "content": "Guess." if self.secret else f"{n} + 1 ="}],
                "answer": str(n + 1),
                "info": {},
            }
            for n in range(first, end)
        ]

    def get_dataset(self) -> list[dict[str, Any]]:
        return [*self._rows(0, 40), *self._rows(0, 1), *self._rows(100, 101)]

    def get_eval_dataset(self) -> list[dict[str, Any]]:
        assert self.eval_dataset
        return self.eval_dataset

    async def rollout(
        self, row: dict[str, Any], client: Any, model: str, sampling_args: dict[str, Any]
    ) -> dict[str, Any]:
        messages, completion = list(row["prompt"]), list[dict[str, Any]]()
        for turn in range(self.turns):
            schema = {"type": "object", "properties": {"a": {"type": "number"}}}
            tools = [{"name": "add", "description": "Adds.", "parameters": schema}] if self.tools else None
            response = await client.get_response(prompt=messages, model=model, sampling_args=sampling_args, tools=tools)
            text = response.message.content
            self._misbehave(text)
            await asyncio.sleep(NAP if text == "nap" else 0.0)
            completion.append({"role": "assistant", "content": text})
            calls = [f"{call.name}({call.arguments})" for call in response.message.tool_calls or ()]
            more = [{"role": "user", "content": f"Turn {turn + 1}: {text} {calls}"}] if turn + 1 < self.turns else []
            messages = [*messages, completion[-1], *more]
        return {**row, "completion": completion, "error": None, "reward": None}

    def _misbehave(self, text: str) -> None:
        if text == "raise":
            raise RuntimeError("the environment is broken")
        if text == "hang":
            time.sleep(3600)
        if text == "die":
            sys.stderr.write("going down\n")
            os._exit(3)
        if text.startswith("lie"):
            os.write(int(sys.argv[-1]), f"{text[3:] or 'no JSON at all'}\n".encode())


def load_environment(name: str, **args: Any) -> Environment:
    if name != "sums":
        raise ModuleNotFoundError(f"No module named {name!r}")
    return Environment(**args)
