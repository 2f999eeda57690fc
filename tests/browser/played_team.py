"""A small run that nobody trained, with all that the viewer shows: four agents that act side by side, tools, a choice, terms,
declared progress, credit; and texts that would like to be markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.common.types import (
    Action,
    ActionCredit,
    Choice,
    Episode,
    Observation,
    Option,
    StepInfo,
    Task,
    ToolCall,
    Transition,
)
from marft.runs.credit_files import write_credit
from marft.runs.episode_files import write_episodes
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft_lab.team_evaluation.counterfactual import ActionContribution
from marft_lab.team_evaluation.report import build_timeline
from tests.episodes import make_action
from tests.helpers import settings, write_evaluation

ROLES = ("planner", "coder", "critic", "actor")
HOSTILE = (
    """<script>window.hacked = 1</script><img src="x" onerror="window.hacked = 2"><a href="javascript:hacked=3">"""
)
TEXTS = {
    "planner": "Add 23 and 45 first: 23 + 45 = 68. What is left is 68 - 12.",
    "coder": "print(23 + 45 - 12)\nIt prints 56.",
    "critic": f"The sum is right. {HOSTILE}",
    "actor": r"68 - 12 = 56, so the answer is \boxed{56}.",
}
CALLS = (ToolCall("python", '{"code": "print(56)"}', HOSTILE, seconds=0.2), ToolCall("", '{"bad', "unreadable", True))
WHEN = {"planner": (0.0, 1.0), "coder": (1.1, 2.6), "critic": (1.1, 2.0), "actor": (2.7, 3.4)}
SEES = {"planner": (), "coder": ("planner",), "critic": ("planner",), "actor": ("planner", "coder", "critic")}
STEPS, ATTEMPTS = 3, 4


def make_run(output: Path, tokenizer: PreTrainedTokenizerBase, name: str = "team", many: int = 0) -> RunFolder:
    """A run of three recorded steps.

    Args:
        many: episodes of one action that the first step has as well.
    """
    agents = [
        {"role": role, "policy": role, "instructions": f"You are the {role}.", "answers": role == "actor"}
        for role in ROLES
    ]
    policies = {role: {"model": "base"} for role in ROLES}
    run = settings("tiny", output, name=name, agents=agents, policies=policies, training={"steps": STEPS})
    folder = RunFolder.create(run)
    for step in range(1, STEPS + 1):
        log_step(folder, step)
        tasks = [f"<b>sum</b>/{step}", "sum/always"]
        episodes = [_episode(tokenizer, task, step, sample) for task in tasks for sample in range(ATTEMPTS)]
        if step == 1:
            episodes += [_short(n) for n in range(many)]
        folder.episodes.mkdir(exist_ok=True)
        write_episodes(folder.episodes / f"step_{step:06d}.parquet", episodes)
        (folder.path / "credit").mkdir(exist_ok=True)
        write_credit(folder.path / "credit" / f"step_{step:06d}.parquet", _credits(episodes[:8], step))
    return folder


def evaluate(folder: RunFolder, tokenizer: PreTrainedTokenizerBase) -> None:
    """An evaluation of two attempts with its episodes, one without, and what the team was found to be worth."""
    table = {
        "checkpoint": "base", "mode": "sampled", "shuffled_messages": False, "tasks": 20, "accuracy": 0.275,
        "interval": [0.144, 0.461], "reward": 0.3, "reward_interval": [0.1, 0.5], "passes": {"pass@2": [0.4, [0.2, 0.6]]},
        "measured": {"t": {"cost_tokens": [175.0, 1.0], "agents/planner/cost_tokens": [100.0, 1.0]}},
        "fields": {"level": {"t": "hard"}},
    }  # fmt: skip
    write_evaluation(folder, table, "base-sampled")
    write_evaluation(folder, {**table, "checkpoint": "last", "passes": {}, "accuracy": None}, "last-sampled")
    write_episodes(folder.evaluations / "base-sampled.parquet", [_episode(tokenizer, "sum/always", 1, 0)])
    folder.worth.mkdir()
    (folder.worth / "worth.json").write_text(json.dumps(_found(_episode(tokenizer, "sum/always", 1, 0))))


def _found(episode: Episode) -> dict[str, object]:
    """What ``marft worth`` writes: the actions of the last agent were not sampled again."""
    again = [ActionContribution(one.id, one.agent, 0.0, [1.0, 0.5]) for one in episode.actions if one.agent != "actor"]
    one = {"value": 0.2, "interval": [0.1, 0.3], "difference": -0.3, "difference_interval": [-0.5, -0.1]}
    row = {"part": "single", "name": f"actor alone {HOSTILE}", "tokens": 40.0, "seconds": None}
    return {
        "headline": f"the team is better {HOSTILE}", "measure": "accuracy",
        "rows": [{**row, "values": {"accuracy": one}}, {**row, "name": "silence", "values": {}}],
        "contributions": [{"agent": "planner", "actions": 8, "contribution": one, "variance": one}],
        "shown": [build_timeline(episode, again), build_timeline(replace(episode, task=Task("other", "?")), ())],
    }  # fmt: skip


def log_step(folder: RunFolder, step: int) -> None:
    """One more line of metrics."""
    log = MetricsLog(folder.metrics_path)
    mine = {
        f"agents/{role}/{name}": 0.01 * step + 0.1 * n for n, role in enumerate(ROLES) for name in ("kl", "entropy")
    }
    log.append({"step": step, "reward": 0.2 * step, "accuracy": 0.25 * step, "seconds": 1.5, **mine})
    log.close()


def _episode(tokenizer: PreTrainedTokenizerBase, task: str, step: int, sample: int) -> Episode:
    actions: list[Action] = []
    for turn in range(2):
        for role in ROLES:
            actions.append(_action(tokenizer, role, turn, len(actions), task, step, sample))
    reward = 0.0 if task == "sum/always" else 0.25 * sample
    transitions = tuple(
        Transition(
            Observation(f"What is 23 + 45 - 12? {HOSTILE}"),
            reward,
            {"planner": 0.1},
            {"completion": reward + 0.1, "tool_errors": -0.1},
            StepInfo(progress=0.5 + 0.5 * turn),
        )
        for turn in range(2)
    )
    prompt = f"What is 23 + 45 - 12? {HOSTILE}"
    return Episode(
        Task(task, prompt), f"train/{step}", sample, tuple(actions), "terminated", transitions, sample == 3, seconds=6.8
    )


def _action(
    tokenizer: PreTrainedTokenizerBase, role: str, turn: int, index: int, task: str, step: int, sample: int
) -> Action:
    text = TEXTS[role]
    ids = tuple(tokenizer.encode(text))
    sees = tuple(f"{turn}/{other}/0" for other in SEES[role])
    prompt = tuple(tokenizer.encode("You see: " + " ".join(TEXTS[other] for other in SEES[role])))
    log_probs = tuple(-0.1 * (n % 7) for n in range(len(ids)))
    made = make_action(
        role, step=turn, index=index, sees=sees, prompt=prompt, tokens=ids, log_probs=log_probs, text=text
    )
    started, ended = (3.4 * turn + at for at in WHEN[role])
    calls = CALLS if role == "coder" and turn else CALLS[:1] if role == "coder" else ()
    key = made.key._replace(stream=f"train/{step}", task=task, sample=sample)
    made = replace(made, key=key, started=started, ended=ended, calls=calls)
    return _chosen(made) if role == "critic" and turn else made


def _chosen(action: Action) -> Action:
    options = tuple(Option(np.array(ids, np.int32)) for ids in ([5, 6], [7, 8]))
    log_probs = np.log(np.array([0.75, 0.25], np.float32))
    return replace(
        action,
        choice=Choice(options, 0, log_probs),
        log_probs=log_probs[:1],
        tokens=options[0].tokens,
        marks=np.zeros(2, np.uint8),
    )


def _short(n: int) -> Episode:
    action = make_action("actor", text=f"short {n}", task=f"short/{n}", sample=0)
    action = replace(action, key=action.key._replace(stream="train/1"))
    return Episode(
        Task(f"short/{n}", "?"), "train/1", 0, (action,), "terminated", (Transition(Observation("?"), n / 1000),), False
    )


def _credits(episodes: Sequence[Episode], seed: int) -> list[ActionCredit]:
    rng = np.random.default_rng(seed)
    rows = []
    for episode in episodes:
        for action in episode.actions:
            size = action.num_decisions
            advantages = rng.normal(0.3 * episode.sample - 0.5, 0.5, size)
            rows.append(
                ActionCredit(
                    episode=episode,
                    action=action,
                    group=episode.task.id,
                    raw_advantages=advantages,
                    advantages=advantages,
                    values=rng.uniform(0, 1, size),
                    entropy=rng.exponential(0.5, size),
                    log_prob_diff=rng.normal(0, 0.01, size),
                    gradient_size=float(abs(advantages).sum()),
                )
            )
    return rows
