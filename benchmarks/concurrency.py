r"""Measure how a team's actions overlap, the cost of many concurrent episodes, and the cost of an action by team size.

    python benchmarks/concurrency.py                    # everything
    python benchmarks/concurrency.py --case branches    # one case in this process, as JSON

The bundled model runs without its end-of-turn token, so every action has exactly ``max_new_tokens`` tokens. Each agent
has its own LoRA.

- *branches*: four independent branches of two agents, compared with a single branch, one episode at a time. Actions
  have 64 tokens, or 64 and 16 alternately.
- *crowd*: many concurrent episodes of a chain of four agents. The engine decodes 256 rows at a time, or all.
- *populations*: teams of 1 to 12 agents with prompts of equal length. A chain plays 32 episodes and learns from them.
  A parallel team plays enough episodes for 96 concurrent actions.
- *teams*: the untrained teams of ``paper.py --studies populations``, whose turns end by themselves.

Each case runs in its own process (Linux). Figures of *branches* are medians. Other figures are from the fastest of
several passes, because other load on the machine can only add time. Writes results/concurrency.json and .md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import machine
import numpy as np
from studies import populations

from marft.agents.game import Attempt
from marft.agents.prompt_messages import format_message
from marft.cli.handlers import silence_transformers
from marft.common.types import Action, Episode
from marft.config import RunSettings
from marft.config.interfaces.channel import Channel, Message
from marft.config.interfaces.credit import flatten_actions
from marft.config.interfaces.schedule import Progress
from marft.config.load import parse_recipe
from marft.rollout.local_runner import LocalRolloutRunner
from marft.trainer.learner import Learner

ACTION, SHORT = 64, 16  # tokens
BRANCHES = 4
CROWD = 4  # agents of each episode in a crowd
SIZES = (1, 2, 4, 8, 12)
EPISODES, AT_ONCE = 32, 96  # episodes of a chain; concurrent actions of a parallel team
ROLES = [f"agent_{letter}" for letter in "abcdefghijkl"]
SAID = "7" * ACTION  # every digit is a token
CHAIN = {"organization": "chain", "visible": "previous"}
Row = dict[str, Any]


class Even(Channel):
    """Channel that replaces every message by the same text, so that all prompts have the same length."""

    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        return [Message(message.role, SAID) for message in messages]


def recipe(lengths: Mapping[str, int], team: Row, unheard: Sequence[str] = (), **more: Any) -> RunSettings:
    """Return the recipe of a team on three-term sums.

    Args:
        lengths: tokens per action, by role.
        unheard: roles that see no messages, and get guidance of the same length instead.
    """
    agents = [
        {
            "role": role, "policy": role, "instructions": "Add up.", "answers": role == list(lengths)[-1],
            "guidance": format_message(Message(role, SAID)) if role in unheard else "",
            "sampling": {"max_new_tokens": length},
        }
        for role, length in lengths.items()
    ]  # fmt: skip
    sums = {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 2}
    return parse_recipe(
        {
            "name": "concurrency",
            "models": {"base": {"path": "tiny"}},
            "policies": {role: {"model": "base", "lora": {"rank": 8, "alpha": 16.0}} for role in lengths},
            "agents": agents,
            "team": team,
            "environment": {"name": "reasoning_gym", "dataset": "chain_sum", "params": sums},
            "algorithm": {"name": "marft", "critic": {"kind": "independent"}},  # reads only the prompt
            **more,
        }
    )


def play(rollouts: LocalRolloutRunner, episodes: int, stream: str = "0") -> tuple[float, list[Episode]]:
    """Play one episode of each of the first tasks; return the seconds and the episodes."""
    tasks = rollouts.run.environment.tasks("train")[:episodes]
    attempts = [Attempt(task, f"train/{stream}", record_critic_states=True) for task in tasks]
    began = time.perf_counter()
    played = rollouts.play(attempts)
    seconds = time.perf_counter() - began
    assert len(played) == episodes
    assert all(episode.is_scored for episode in played), [episode.error for episode in played]
    return seconds, played


def branches(repetitions: int = 21) -> Row:
    """Return medians over pairs of episodes: one with every branch, then one with a single branch."""
    return {
        "64 tokens each": _branches([(ACTION, ACTION)] * BRANCHES, repetitions),
        "64 and 16 in turn": _branches([(ACTION, SHORT), (SHORT, ACTION)] * (BRANCHES // 2), repetitions),
    }


def _branches(lengths: Sequence[tuple[int, int]], repetitions: int) -> Row:
    def team(count: int) -> RunSettings:
        of = {f"{part}_{n}": length for n in range(count) for part, length in zip("ab", lengths[n], strict=True)}
        return recipe(of, {"organization": "graph", "visible": {f"b_{n}": [f"a_{n}"] for n in range(count)}})

    with LocalRolloutRunner(team(len(lengths))) as whole, LocalRolloutRunner(team(1)) as alone:
        rows = []
        for number in range(-3, repetitions):  # negative numbers warm up
            seconds, (episode,) = play(whole, 1, str(number))
            path, _ = play(alone, 1, str(number))
            if number >= 0:
                rows.append((seconds, path, *_spans(episode.actions)))
    whole_s, path_s, elapsed, longest, work = np.median(rows, axis=0).tolist()
    return {
        "seconds": whole_s, "alone": path_s, "ratio": float(np.median([row[0] / row[1] for row in rows])),
        "recorded_ratio": elapsed / longest, "at_once": work / elapsed,
    }  # fmt: skip


def _spans(actions: Sequence[Action]) -> tuple[float, float, float]:
    """Return seconds from the first start to the last end, of the longest branch, and of all actions in sequence."""
    spans: dict[str, float] = {}
    for action in actions:
        branch = action.agent.rpartition("_")[2]
        spans[branch] = spans.get(branch, 0.0) + action.ended - action.started
    elapsed = max(action.ended for action in actions) - min(action.started for action in actions)
    return elapsed, max(spans.values()), sum(spans.values())


def crowd(episodes: int, rows: int) -> Row:
    lengths = dict.fromkeys(ROLES[:CROWD], ACTION)
    run = recipe(lengths, CHAIN, rollout={"max_concurrent_episodes": episodes}, engine={"max_batch_size": rows})
    with LocalRolloutRunner(run) as rollouts:
        play(rollouts, 8, "warm-up")
        before = machine.footprint()
        with machine.Watch() as watch:
            passes = [play(rollouts, episodes, str(number)) for number in range(2)]
    time.sleep(1)  # wait until idle threads exit
    seconds, played = min(passes, key=lambda one: one[0])
    tokens = sum(len(action.tokens) for action in flatten_actions(played))
    return {
        "episodes": episodes, "rows": rows, "seconds": seconds, "actions_per_second": episodes * CROWD / seconds,
        "tokens_per_second": tokens / seconds, "before": before, "peak": watch.most, "closed": machine.footprint(),
    }  # fmt: skip


def population(repetitions: int = 5) -> list[Row]:
    """Return milliseconds per action by team size.

    Teams alternate, so that noise on the machine affects all of them.
    """
    even = {"channel": {"name": "concurrency:Even"}}
    seconds: list[list[tuple[float, float, float]]] = []
    with ExitStack() as opened:
        teams = []
        for size in SIZES:
            lengths = dict.fromkeys(ROLES[:size], ACTION)
            chain = opened.enter_context(LocalRolloutRunner(recipe(lengths, CHAIN, ROLES[:1], **even)))
            parallel = opened.enter_context(
                LocalRolloutRunner(recipe(lengths, {"organization": "parallel"}, ROLES, **even))
            )
            teams.append((chain, Learner(chain.run, chain.models), parallel))
        for number in range(repetitions + 1):
            seconds.append([_turn(*team, number) for team in teams])
    best = 1000 * np.min(seconds[1:], axis=0)  # the first pass warms up
    names = ("chain, playing", "chain, learning", "parallel, playing")
    return [
        {"agents": size, **dict(zip(names, row.tolist(), strict=True))} for size, row in zip(SIZES, best, strict=True)
    ]


def _turn(
    chain: LocalRolloutRunner, learner: Learner, parallel: LocalRolloutRunner, number: int
) -> tuple[float, float, float]:
    """Return seconds per action: a chain playing, the chain learning, and a parallel team playing."""
    size = len(chain.run.agents)
    seconds, episodes = play(chain, EPISODES, str(number))
    began = time.perf_counter()
    learner.learn(episodes, Progress(number, 0))
    chain.publish(number + 1)
    learned = time.perf_counter() - began
    at_once, others = play(parallel, AT_ONCE // size, str(number))
    lengths = {(len(action.prompt), len(action.tokens)) for action in flatten_actions([*episodes, *others])}
    assert len(lengths) == 1, lengths
    return seconds / (size * EPISODES), learned / (size * EPISODES), at_once / AT_ONCE


def teams(repetitions: int = 5) -> list[Row]:
    """Return the cost of an untrained episode in the populations study: seconds, tokens read, tokens written."""
    rows = []
    for size in populations.SIZES:
        with LocalRolloutRunner(populations.team_of(size, ())) as rollouts:
            passes = [play(rollouts, EPISODES, str(number)) for number in range(repetitions + 1)][1:]
        actions = flatten_actions([episode for _, episodes in passes for episode in episodes])
        episodes = EPISODES * len(passes)
        rows.append(
            {
                "agents": size,
                "seconds": min(seconds for seconds, _ in passes) / EPISODES,
                "tokens_read": sum(len(action.prompt) for action in actions) / episodes,
                "tokens_written": sum(len(action.tokens) for action in actions) / episodes,
            }
        )
    return rows


CASES: dict[str, Callable[[], Any]] = {
    "branches": branches,
    **{f"crowd of {count}": partial(crowd, count, 256) for count in (250, 500, 1000)},
    "crowd of 1000, all rows at once": partial(crowd, 1000, 1000),
    "populations": population,
    "teams": teams,
}


def tables(cases: Mapping[str, Any]) -> str:
    crowds = [row for name, row in cases.items() if name.startswith("crowd")]
    parts = [
        _table(
            ["branches", "one episode", "one branch alone", "ratio", "by recorded times", "actions at once"],
            [
                [name, f"{r['seconds']:.3f} s", f"{r['alone']:.3f} s", f"{r['ratio']:.2f}",
                 f"{r['recorded_ratio']:.2f}", f"{r['at_once']:.2f} of {BRANCHES}"]
                for name, r in cases["branches"].items()
            ],
        ),
        _table(
            ["episodes at once", "rows", "seconds", "actions/s", "tokens/s", "memory before", "peak", "threads at peak",
             "closed", "open files at peak"],
            [
                [r["episodes"], r["rows"], f"{r['seconds']:.1f}", f"{r['actions_per_second']:.0f}",
                 f"{r['tokens_per_second']:.0f}", f"{r['before']['memory_mb']} MB", f"{r['peak']['memory_mb']} MB",
                 r["peak"]["threads"], r["closed"]["threads"], r["peak"]["files"]]
                for r in crowds
            ],
        ),
        _table(
            ["agents", "chain: ms an action, playing", "learning", "parallel team: ms an action, playing"],
            [[r["agents"], *(f"{value:.2f}" for value in list(r.values())[1:])] for r in cases["populations"]],
        ),
        _table(
            ["agents", "ms an episode, playing", "tokens read", "tokens written"],
            [
                [r["agents"], f"{1000 * r['seconds']:.0f}", f"{r['tokens_read']:.0f}", f"{r['tokens_written']:.0f}"]
                for r in cases["teams"]
            ],
        ),
    ]  # fmt: skip
    return "\n".join(parts)


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [titles, ["---:"] * len(titles), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), help="measure one case in this process and print JSON")
    case = parser.parse_args().case
    if case:
        silence_transformers()
        endless = patch("marft.models.policy_registry._stop_ids", lambda *_: ())
        with nullcontext() if case == "teams" else endless:
            print(json.dumps(CASES[case]()))
        return
    results = {}
    for case in CASES:
        done = subprocess.run([sys.executable, __file__, "--case", case], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        results[case] = json.loads(done.stdout.splitlines()[-1])
        print(f"{case}: measured", flush=True)
    path = machine.save("concurrency", {"machine": machine.describe(), "cases": results})
    path.with_suffix(".md").write_text(tables(results))
    print(f"\n{tables(results)}\nsaved {path}")


if __name__ == "__main__":
    main()
