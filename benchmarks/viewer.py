"""Measure the viewer's response times on a run with many recorded steps: ``python benchmarks/viewer.py``.

The script creates a run of 1,000 recorded steps and 1,000,000 actions (``--at`` keeps it), and starts ``marft view``
with an empty cache. It requests every address several times over HTTP, and writes benchmarks/results/viewer.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
from machine import describe

from marft.common.types import Action, ActionCredit, ActionKey, Episode, Observation, Task, Transition
from marft.config.bundled import bundled_recipe
from marft.runs.credit_files import write_credit
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import MARKER

RESULTS = Path(__file__).parent / "results" / "viewer.md"
ROLES = ("planner", "coder", "tester", "actor")
TASKS, SAMPLES = 2_000, 4  # tasks of the run; attempts per task and step
PROMPT, TOKENS, WORDS = 160, 60, 40  # means per action
VOCABULARY = 4_000  # words
TIMES = 7


def make_run(folder: Path, steps: int, actions: int) -> None:
    """Create a run of a team of four, with this many recorded steps and actions per step."""
    folder.mkdir(parents=True)
    recipe = bundled_recipe("demo").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(recipe, encoding="utf-8")
    (folder / "run.json").write_text(MARKER, encoding="utf-8")
    draw = np.random.default_rng(0)
    names = [
        f"agents/{role}/{metric}" for role in ROLES for metric in ("kl", "entropy", "action_length", "gradient_share")
    ]
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as log:
        for step in range(1, steps + 1):
            values = dict(
                zip([*names, "reward", "accuracy", *(f"more/{n}" for n in range(60))], draw.random(78), strict=True)
            )
            log.write(json.dumps({"step": step, **values}) + "\n")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(_write_step, [(folder, step, actions) for step in range(1, steps + 1)], chunksize=10)


def _write_step(folder: Path, step: int, actions: int) -> None:
    draw = np.random.default_rng(step)
    episodes = [_episode(draw, step, number) for number in range(actions // len(ROLES))]
    name = f"step_{step:06d}.parquet"
    write_episodes(folder / "episodes" / name, episodes)
    write_credit(folder / "credit" / name, list(_credits(draw, episodes)))


def _episode(draw: np.random.Generator, step: int, number: int) -> Episode:
    task, sample = f"rows/{(step * 64 + number // SAMPLES) % TASKS}", number % SAMPLES
    words = _words()
    made: list[Action] = []
    for index, role in enumerate(ROLES):
        size = int(draw.integers(TOKENS // 2, 2 * TOKENS - TOKENS // 2))
        made.append(
            Action(
                key=ActionKey(f"train/{step - 1}", task, sample, 0, role, 0), policy=role, index=index,
                sees=tuple(action.id for action in made), prompt=draw.integers(0, 32_000, PROMPT).astype(np.int32),
                tokens=draw.integers(0, 32_000, size).astype(np.int32), marks=np.zeros(size, np.uint8),
                log_probs=-draw.random(size).astype(np.float32), finish="stop", started=0.1 * index,
                ended=0.1 * index + 0.1,
                text=" ".join(words[n] for n in draw.integers(0, VOCABULARY, WORDS)), message_tokens=(size,) * index,
            )
        )  # fmt: skip
    reward = float(draw.random() < 0.5)
    question = f"What is row {task} of the table? " + " ".join(words[:20])
    transitions = (Transition(Observation(question), reward, terms={"right": reward, "short": 0.1}),)
    return Episode(
        Task(task, question), f"train/{step - 1}", sample, tuple(made), "terminated", transitions, success=reward > 0,
        seconds=0.5,
    )  # fmt: skip


def _credits(draw: np.random.Generator, episodes: list[Episode]) -> Iterator[ActionCredit]:
    for episode in episodes:
        for action in episode.actions:
            size = len(action.tokens)
            yield ActionCredit(
                episode, action, episode.task.id, draw.normal(size=size), draw.normal(size=size), draw.random(size),
                draw.random(size), draw.normal(0, 1e-4, size), float(draw.random()),
            )  # fmt: skip


@cache
def _words() -> list[str]:
    draw = np.random.default_rng(7)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    return ["".join(letters[draw.integers(0, 26, int(draw.integers(2, 9)))]) for _ in range(VOCABULARY)]


def addresses(run: str, step: int) -> dict[str, Callable[[int], str]]:
    """Return the n-th address to request, by name. Searches differ each time, so that none is cached."""
    at, words = f"/api/runs/{quote(run)}", _words()
    one, kl = f"{at}/episodes/{step}/17", ",".join(f"agents/{role}/kl" for role in ROLES)
    filtered = "agent=coder&success=true&reward_min=0.5&status=terminated&sort=tokens"
    return {
        "the page": lambda _: "/",
        "runs": lambda _: "/api/runs",
        "catalogue": lambda _: "/api/catalogue",
        "metrics, 6 curves": lambda _: f"{at}/metrics?names=reward,accuracy,{kl}",
        "team": lambda n: f"{at}/team?step={step - n}",
        "steps": lambda _: f"{at}/steps",
        "episodes, all": lambda _: f"{at}/episodes",
        "episodes, by reward": lambda _: f"{at}/episodes?sort=reward&order=desc",
        "episodes, by task": lambda _: f"{at}/episodes?sort=task&offset=100000",
        "episodes, filtered": lambda _: f"{at}/episodes?{filtered}",
        "episodes of a task": lambda n: f"{at}/episodes?task=rows/{77 + n}",
        "episodes of a step": lambda n: f"{at}/episodes?step={step - n}",
        "search: nowhere": lambda n: f"{at}/episodes?q={quote(f'zzzz never said {n}')}",
        "search: two words": lambda n: f"{at}/episodes?q={quote(f'{words[5 + n]} {words[9]}')}",
        "search: a letter": lambda n: f"{at}/episodes?q={'etaoinshr'[n]}",
        "episode": lambda n: f"{one[:-2]}{17 + n}",
        "its prompt": lambda _: f"{one}/prompt?action=0/actor/0",
        "its tokens": lambda _: f"{one}/tokens?action=0/actor/0",
        "credit": lambda n: f"{at}/credit?step={step - n}",
        "beside": lambda n: f"{at}/beside?a={quote('step 2')}&b={quote(f'step {step - n}')}&task=rows/130",
    }


def measure(folder: Path, cache: Path) -> list[str]:
    """Return the lines of the results."""
    began = time.perf_counter()
    with viewer(folder, cache) as (address, process):
        _get(address, "/api/runs")
        first = time.perf_counter() - began
        _get(address, f"/api/runs/{folder.name}/episodes")
        listing = time.perf_counter() - began
        while (said := _get(address, f"/api/runs/{folder.name}/episodes?limit=1"))["indexed"] < said["files"]:
            time.sleep(0.2)
        lines = [
            f"The first list of runs takes {first:.2f} s, and the first episodes, from the newest steps, "
            f"{listing:.2f} s; all {said['files']:,} steps are indexed after {time.perf_counter() - began:.1f} s, "
            f"with {said['total']:,} episodes.",
            "",
            "| address | first, ms | median, ms | most, ms | its CPU, ms | KB |",
            f"| --- |{' ---: |' * 5}",
        ]
        for name, path in addresses(folder.name, said["files"]).items():
            answers = [_timed(address + path(number), process) for number in range(TIMES)]
            times, most = [answer[0] for answer in answers], max(answers)
            numbers = (times[0], statistics.median(times), most[0], most[1], most[2])
            lines.append(f"| {name} | {' | '.join(f'{number:.0f}' for number in numbers)} |")
        return lines


@contextmanager
def viewer(folder: Path, cache: Path) -> Iterator[tuple[str, int]]:
    """Start ``marft view`` of a run as a user does, and yield its address and process id."""
    command = [sys.executable, "-m", "marft", "view", str(folder), "--port", "0", "--no-token"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().rstrip("/"), process.pid
        finally:
            process.terminate()


def _timed(url: str, process: int) -> tuple[float, float, float]:
    """Return an answer's milliseconds, the viewer's CPU milliseconds for it, and its size in KB."""
    clock = (~process << 3) | 2  # Linux's clock id for the CPU time of a process
    began, worked = time.perf_counter(), time.clock_gettime(clock)
    with urlopen(url) as answer:
        size = len(answer.read())
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.clock_gettime(clock) - worked), size / 1024


def _get(address: str, path: str) -> Any:
    with urlopen(address + path) as answer:
        return json.loads(answer.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--actions", type=int, default=1000, help="actions per step")
    parser.add_argument("--at", type=Path, help="folder to keep the run in, and to reuse it from")
    arguments = parser.parse_args()
    machine = describe()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.at or Path(temporary)) / "large"
        if not folder.exists():
            make_run(folder, arguments.steps, arguments.actions)
        sizes = [sum(file.stat().st_size for file in (folder / it).iterdir()) / 2**20 for it in ("episodes", "credit")]
        lines = [
            "# The viewer on a large run",
            "",
            f"{arguments.steps:,} recorded steps of {arguments.actions:,} actions each, of {PROMPT} prompt tokens, "
            f"{TOKENS} tokens and {WORDS} words on average: {sizes[0]:,.0f} MiB of episodes and {sizes[1]:,.0f} MiB "
            "of credit at token level. Over HTTP on one machine, each address is requested "
            f"{TIMES} times; searches differ each time. {machine['processor']}, {machine['cores']} cores, "
            f"load {os.getloadavg()[1]:.1f} before. Its CPU: CPU time of the viewer for the slowest answer.",
            "(`python benchmarks/viewer.py`)",
            "",
        ]
        for title in ("With nothing in the cache", "Started again"):
            lines += [f"## {title}", "", *measure(folder, Path(temporary) / "cache"), ""]
    RESULTS.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
