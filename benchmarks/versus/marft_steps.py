"""Time steps of MARFT: ``python -m versus.marft_steps SETTING.json STEPS WARM_UP`` prints the figures as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from marft.common.types import Episode, Task
from marft.config import parse_recipe
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.schedule import Progress
from marft.config.run import RunSettings
from marft.envs.graded_sessions import Grade, SingleTurn
from marft.models import tokenizer_format
from marft.models.tokenizer_format import TokenizerFormat
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import sample_attempts
from marft.trainer.learner import Learner
from versus.setting import INSTRUCTIONS, TARGETS, Setting, coin, questions, right


class Coins(Environment):
    """Questions of both sides. The reward is a coin flip, or 1 for the right sum."""

    setting: dict[str, Any]

    def tasks(self, split: str) -> list[Task]:  # noqa: ARG002
        return [Task(str(number), question) for number, question in enumerate(questions(Setting(**self.setting)))]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002
        return SingleTurn(
            task, lambda text: Grade(right(task.prompt, text) if self.setting["ends"] else coin(text), None)
        )


def recipe(setting: Setting) -> RunSettings:
    """Return the recipe: GRPO with one update of all completions, without KL to the base, as in TRL."""
    lora = {"rank": setting.rank, "alpha": 16.0, "target_modules": TARGETS}
    return parse_recipe(
        {
            "name": "versus",
            "threads": setting.threads,
            "device": "cpu",
            "models": {"base": {"path": setting.model, "dtype": setting.dtype}},
            "policies": {"solver": {"model": "base", "lora": lora}},
            "agents": [
                {
                    "role": "solver",
                    "policy": "solver",
                    "instructions": "" if setting.words else INSTRUCTIONS,
                    "answers": True,
                    "sampling": {"max_new_tokens": setting.tokens},
                }
            ],
            "environment": {"name": "versus.marft_steps:Coins", "setting": asdict(setting)},
            "guards": {"probes": setting.probes},
            "rollout": {"tasks_per_step": setting.tasks, "samples_per_task": setting.samples},
            "algorithm": {
                "name": "grpo",
                "minibatches": 1,
                "epochs": 1,
                "kl": {"coefficient": 0.0},
                "optimizer": {"learning_rate": setting.learning_rate},
            },
        }
    )


class Steps:
    """Training steps of a setting, in sequence."""

    def __init__(self, setting: Setting, rollouts: LocalRolloutRunner) -> None:
        self.setting, self.rollouts, self.number = setting, rollouts, 0
        self.learner = Learner(rollouts.run, rollouts.models)
        self.tasks = rollouts.run.environment.tasks("train")

    def play(self) -> list[Episode]:
        wanted = self.setting.tasks
        return self.rollouts.play(
            sample_attempts(self.rollouts.run, self.tasks, self.number, self.number * wanted, wanted)
        )

    def learn(self, episodes: list[Episode]) -> None:
        self.learner.learn(episodes, Progress(self.number, 0))
        self.number += 1
        self.rollouts.publish(self.number)


@contextmanager
def opened(setting: Setting) -> Iterator[Steps]:
    """Open the model, the engine and the learner. Unless completions end, no token ends a turn."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with ExitStack() as stack:
        if setting.words:  # else transformers would split words as for Qwen2
            words = PreTrainedTokenizerFast.from_pretrained(setting.model)
            stack.enter_context(patch("marft.models.tokenizer_format.load_tokenizer", lambda _: words))
        if not setting.ends:
            stack.enter_context(patch("marft.models.policy_registry.load_tokenizer_formats", endless_formats))
        yield Steps(setting, stack.enter_context(LocalRolloutRunner(recipe(setting))))


def endless_formats(run: RunSettings) -> dict[str, TokenizerFormat]:
    """Return a run's tokenizer formats without end-of-turn tokens."""
    return {name: replace(one, stop_ids=()) for name, one in tokenizer_format.load_tokenizer_formats(run).items()}


def measure(setting: Setting, count: int, warm_up: int) -> dict[str, Any]:
    """Return ``count`` steps after the warm-up steps, the prompts of all, and the peak memory of the process."""
    prompts: dict[str, list[int]] = {}
    with opened(setting) as steps:
        rows = [_step(steps, prompts) for _ in range(count + warm_up)][warm_up:]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"steps": rows, "prompts": list(prompts.values()), "peak_memory_mb": memory}


def _step(steps: Steps, prompts: dict[str, list[int]]) -> dict[str, float]:
    began = time.perf_counter()
    episodes = steps.play()
    played = time.perf_counter()
    steps.learn(episodes)
    learned = time.perf_counter()
    actions = [action for episode in episodes for action in episode.actions]
    lengths = [len(action.tokens) for action in actions]
    assert steps.setting.ends or lengths == [steps.setting.tokens] * steps.setting.completions
    prompts |= {action.key.task: action.prompt.tolist() for action in actions}
    reward = sum(episode.total_reward for episode in episodes) / len(episodes)
    return {"generating": played - began, "learning": learned - played, "reward": reward, "tokens": sum(lengths)}


if __name__ == "__main__":
    print(json.dumps(measure(Setting.read(Path(sys.argv[1])), *map(int, sys.argv[2:]))))
