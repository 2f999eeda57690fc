"""Measure the cost of the gateway: milliseconds per request over HTTP, compared with a direct call.

    python benchmarks/gateway.py [--requests 8] [--episodes 1 32 256]

The engine answers immediately. So the figures cover everything but sampling: rendering, recording, HTTP, threads. An
episode sends its requests to one agent in sequence, and each request is a new conversation. A time is the seconds of
all concurrent episodes, divided by their requests. Memory is the growth of the process's peak.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np

from marft.agents.agents import Agent
from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.play import play_all
from marft.agents.team import Team
from marft.common.types import (
    ActionKey,
    AgentProfile,
    Choice,
    Completion,
    JointAction,
    Observation,
    Prompt,
    SamplingParams,
    Step,
    Task,
    VersionRange,
)
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.organization import Agents, Organization
from marft.config.models import ModelSettings
from marft.config.python_objects import ObjectPlaceholder
from marft.inference.chat_messages import ChatFormat
from marft.inference.renderer import ChatRenderer
from marft.models.tokenizer_format import load_tokenizer
from marft_serve.gateway.client import Client
from marft_serve.gateway.program import Program


class AtOnce:
    """Engine that returns a fixed answer immediately."""

    def __init__(self, tokens: Sequence[int], text: str) -> None:
        self.tokens, self.text = np.array(tokens, np.int32), text

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:  # noqa: ARG002
        return Completion(self.tokens, np.full(len(self.tokens), -1.0, np.float32), self.text, "stop")

    async def choose(self, *_: object, **__: object) -> tuple[Choice, VersionRange]:
        raise AssertionError("the programs of this benchmark make no choices")

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        yield


class Sums(Environment):
    """Environment and session in one: a single step without grading."""

    def tasks(self, split: str) -> list[Task]:  # noqa: ARG002
        return []

    def start(self, task: Task, seed: int) -> Sums:  # noqa: ARG002
        return self

    async def reset(self) -> Observation:
        return Observation("Solve the following sum: 12 + 34 - 5 =")

    async def step(self, actions: JointAction) -> Step:  # noqa: ARG002
        return Step(Observation(""), 1.0, terminated=True)

    async def close(self) -> None:
        return None


class Here(Organization):
    """Organization that does the same as the program, without HTTP."""

    requests: int = 1

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        for number in range(self.requests):
            await agents.solver(Observation(f"{number}: {observation.text}"))
        return JointAction()


def program(requests: int) -> Program:
    """Return a program with one connection per episode, as real clients have."""

    def solve(task: Task, clients: Mapping[str, Client]) -> None:
        parts = urlsplit(clients["solver"].base_url)
        assert parts.hostname
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
        for number in range(requests):
            body = {"model": "m", "messages": [
                {"role": "system", "content": clients["solver"].instructions},
                {"role": "user", "content": f"{number}: {task.prompt}"},
            ]}  # fmt: skip
            connection.request("POST", f"{parts.path}/chat/completions", json.dumps(body))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        connection.close()

    return Program(call=ObjectPlaceholder(solve))


def seconds(organization: Organization, episodes: int) -> float:
    """Return the seconds of a number of concurrent episodes."""
    tokenizer = load_tokenizer(ModelSettings(path="tiny"))
    assert isinstance(tokenizer.eos_token_id, int)
    ids = tokenizer.encode("The answer is 41.", add_special_tokens=False)
    agent = Agent(AgentProfile("solver", "You are the solver. Work it out.", answers=True), "solver")
    game = Game(
        Sums(), Team((agent,), organization), AtOnce([*ids, tokenizer.eos_token_id], "The answer is 41."),
        ChatRenderer({"solver": ChatFormat(tokenizer, 1024, {}, (tokenizer.eos_token_id,))}), LoopThreadPool(),
    )  # fmt: skip
    attempts = [Attempt(Task(f"t{number}", ""), "bench") for number in range(episodes)]
    try:
        asyncio.run(play_all(game, attempts[:1], 1))  # warm up what is created only once
        began = time.perf_counter()
        played = asyncio.run(play_all(game, attempts, episodes))
        took = time.perf_counter() - began
    finally:
        game.threads.close()
    assert all(episode.status == "terminated" for episode in played), played[0].error
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=8, help="requests per episode, in sequence")
    parser.add_argument("--episodes", type=int, nargs="+", default=[1, 32, 256], help="numbers of concurrent episodes")
    arguments = parser.parse_args()
    print("| episodes at once | here, ms a request | over HTTP, ms a request | grown by, MiB |")
    print("| --- | --- | --- | --- |")
    for episodes in arguments.episodes:
        count = episodes * arguments.requests
        here = 1e3 * seconds(Here(requests=arguments.requests), episodes) / count
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        there = 1e3 * seconds(program(arguments.requests), episodes) / count
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"| {episodes} | {here:.2f} | {there:.2f} | {grown:.0f} |")


if __name__ == "__main__":
    main()
