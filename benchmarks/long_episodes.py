"""Measure the cost of long episodes: prompt tokens computed at each step, with and without reuse, and memory.

    python benchmarks/long_episodes.py

Two agents with their own memory answer a short question at each step, on the bundled tiny model. Every case runs in its
own process. *Computed* counts the prompt tokens computed per step of an episode. With reuse these are only the new
tokens; without reuse, the whole conversation again. Writes results/long_episodes.json and .md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine

from marft.agents.game import Attempt
from marft.common.types import JointAction, Observation, Step, Task
from marft.config import parse_recipe
from marft.config.interfaces.environment import Environment, Split
from marft.config.settings import Count
from marft.rollout.local_runner import LocalRolloutRunner

LENGTHS = (1, 2, 4, 8, 16)
TASKS, SAMPLES = 8, 4
QUESTION = "State the final answer to the following arithmetic problem: {} + {} ="


class Questions(Environment):
    """Environment with a new question at each step."""

    steps: Count = 8

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}/{number}", "Answer each question.", {"first": number}) for number in range(TASKS)]

    def start(self, task: Task, seed: int) -> Asking:  # noqa: ARG002  nothing here is random
        return Asking(task.data["first"], self.steps)


class Asking:
    def __init__(self, first: int, steps: int) -> None:
        self.first, self.steps, self.at = first, steps, 0

    async def reset(self) -> Observation:
        return self._shown()

    async def step(self, actions: JointAction) -> Step:  # noqa: ARG002
        self.at += 1
        return Step(self._shown(), 0.0, terminated=self.at == self.steps, success=False)

    async def close(self) -> None: ...

    def _shown(self) -> Observation:
        return Observation(QUESTION.format(10 + self.first * 7 % 89, 10 + self.at * 11 % 89))


def recipe(steps: int, reuse: bool) -> dict[str, Any]:
    """Return the recipe of two agents with memory."""
    agents = [
        {"role": role, "policy": "solver", "instructions": f"You are the {role}.", "memory": "own",
         "answers": role == "actor", "sampling": {"max_new_tokens": 8}}
        for role in ("reasoner", "actor")
    ]  # fmt: skip
    return {
        "name": "long_episodes",
        "models": {"base": {"path": "tiny"}},
        "policies": {"solver": {"model": "base"}},
        "agents": agents,
        "environment": {"name": "long_episodes:Questions", "steps": steps},
        "engine": {"kind": "local", "prefix_cache_mb": 512 if reuse else 0},
    }


def measured(steps: int, reuse: bool) -> dict[str, float]:
    """Play all episodes of one length in this process, and return the figures."""
    with LocalRolloutRunner(parse_recipe(recipe(steps, reuse))) as rollouts:
        tasks: Any = rollouts.run.environment
        attempts = [Attempt(task, "play", sample) for task in tasks.tasks("train") for sample in range(SAMPLES)]
        before = machine.footprint()["memory_mb"]
        began = time.perf_counter()
        with machine.Watch() as watch:
            episodes = rollouts.play(attempts)
        seconds = time.perf_counter() - began
        usage = rollouts.usage()
    assert all(len(episode.transitions) == steps for episode in episodes)
    return {
        "steps": steps,
        "reuse": reuse,
        "asked": usage["prefill/prompt_tokens"] / len(episodes),
        "computed": usage["prefill/computed_tokens"] / len(episodes),
        "seconds": seconds,
        "memory_mb": watch.most["memory_mb"] - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one case: steps, and 1 with reuse or 0 without, such as 8,1")
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    if arguments.only:
        steps, reuse = map(int, arguments.only.split(","))
        print(json.dumps(measured(steps, bool(reuse))))
        return
    rows = [
        json.loads(
            subprocess.check_output([sys.executable, __file__, "--only", f"{steps},{int(reuse)}"]).splitlines()[-1]
        )
        for reuse in (True, False)
        for steps in LENGTHS
    ]
    lines = table(rows)
    whole = {"machine": machine.describe(), "rows": rows}
    (arguments.results / "long_episodes.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    (arguments.results / "long_episodes.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def table(rows: Sequence[dict[str, float]]) -> list[str]:
    """Return a line per length."""
    with_and_without = [f"{what}, with | without" for what in ("seconds", "MB")]
    heads = ["steps", "prompts' tokens, a step", "computed a step, with reuse | without", *with_and_without]
    lines = [f"| {' | '.join(heads)} |", f"|{' ---: |' * 8}"]
    for steps in LENGTHS:
        reused, plain = (
            next(r for r in rows if r["steps"] == steps and bool(r["reuse"]) is one) for one in (True, False)
        )
        cells = [str(steps), f"{reused['asked'] / steps:.0f}", f"{reused['computed'] / steps:.1f}"]
        cells += [f"{plain['computed'] / steps:.1f}", f"{reused['seconds']:.1f}", f"{plain['seconds']:.1f}"]
        cells += [f"{row['memory_mb']:.0f}" for row in (reused, plain)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
