"""Seconds, memory and utilization of a team of two on Qwen2.5-3B's shape, beside what ``marft plan`` predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from accelerator.stage import Setting, is_out_of_memory, seconds_of
from accelerator.team import ROLES, Team, opened, play
from marft.agents.streaming import Detokenizer
from marft.common.types import SamplingParams
from marft.config import RunSettings
from marft.config.interfaces.schedule import Progress
from marft.inference.decoding import DecodeRequest, RunningBatch
from marft.models.cuda_graphs import CudaGraphs, Graphs
from marft.models.device_specs import DRIVER_NAMES, find_device_spec
from marft.models.devices import device_name
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.local_runner import LocalRolloutRunner
from marft.trainer.gpu_monitor import GpuMonitor
from marft.trainer.learner import Learner

ROWS, STEPS = (1, 16, 64, 256), 24


def team_of(setting: Setting) -> Team:
    """Return the team whose speed is measured."""
    if setting.small:
        return Team("qwen2.5-3b", "qwen2", "bfloat16", 24, 6, 2, 512, small=True)
    return Team("qwen2.5-3b", "qwen2", "bfloat16", 512, 128, 64, 8192)


def measure_speed(setting: Setting, quantization: str = "none") -> None:
    """Measure decoding steps by the number of rows, then whole training steps; save each result at once."""
    if quantization != "none" and find_spec("bitsandbytes") is None:
        setting.save(skipped="bitsandbytes is not installed")
        return
    team = replace(team_of(setting), quantization=quantization)
    setting.save(build_seconds=seconds_of(lambda: team.checkpoint(setting)))
    run = team.recipe(team.checkpoint(setting), setting.torch_device)
    with setting.part("plan"):
        setting.save(plan=predict(run, team, setting))
    with opened(run, team.sizes.vocab_size) as rollouts:
        for rows in ROWS[: 2 if setting.small else None]:
            for mode, graphs in graphs_of(setting).items():
                with setting.part(f"decode_{rows}_{mode}"):
                    found = measure_decoding(rollouts.models, rows, 32 if setting.small else 512, graphs())
                    setting.save(**{f"decode_{rows}_{mode}": {"mode": mode, **found}})
        with setting.part("step"):
            _measure_steps(setting, team, rollouts)


def graphs_of(setting: Setting) -> Mapping[str, Callable[[], Graphs | None]]:
    """Return the ways to decode: operation by operation, and on a GPU as CUDA graphs."""
    ways: dict[str, Callable[[], Graphs | None]] = {"eager": lambda: None}
    if setting.torch_device == "cuda":
        ways["graphs"] = lambda: CudaGraphs(torch.device("cuda", 0))
    return ways


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def decoding(
    models: PolicyRegistry, rows: int, prompt: int, steps: int, graphs: Graphs | None
) -> Iterator[Callable[[], object]]:
    """Prefill ``rows`` random prompts of both policies, and yield the function that runs the next decoding step."""
    base, random = models.base_models["base"], np.random.default_rng(0)
    batch = RunningBatch(base, [], lambda: Detokenizer(lambda _: ""), graphs=graphs)
    adapters = [models.policies[ROLES[row % 2]].adapter for row in range(rows)]
    sampling, vocabulary = SamplingParams(max_new_tokens=steps + 2), len(base.head.weight)
    prompts = random.integers(1, vocabulary, (rows, prompt), np.int32)
    uniforms = random.random((rows, steps + 2), np.float32)
    batch.admit([
        DecodeRequest(adapter, prompts[row], sampling, uniforms[row])
        for row, adapter in enumerate(sorted(adapters, key=str))
    ])  # fmt: skip
    if len(batch) < rows:
        raise RuntimeError(f"{rows - len(batch)} of {rows} rows could not be prefilled: out of memory?")
    try:
        yield batch.step
    finally:
        batch.reset()


def measure_decoding(models: PolicyRegistry, rows: int, prompt: int, graphs: Graphs | None) -> dict[str, float]:
    """Return the median seconds of a decoding step and its tokens per second, after the prompts are cached."""
    with decoding(models, rows, prompt, STEPS, graphs) as step:
        first = seconds_of(step, synchronize)
        seconds = float(np.median([seconds_of(step, synchronize) for _ in range(STEPS)]))
    return {
        "rows": rows, "seconds_per_step": seconds, "tokens_per_second": rows / seconds, "first_step_seconds": first
    }  # fmt: skip


def _measure_steps(setting: Setting, team: Team, rollouts: LocalRolloutRunner) -> None:
    """Play and learn; the first step warms up. If memory is too small, halve the batch and try again."""
    while True:
        try:
            run = team.recipe(team.checkpoint(setting), setting.torch_device)
            learner, rows = Learner(run, rollouts.models), list[dict[str, float]]()
            monitor = GpuMonitor(run, rollouts.models.device)
            for step in range(2 if setting.small else 3):
                monitor.on_step_end(step, {})
                rows.append(_step(team, rollouts, learner, monitor, step))
                setting.save(step={**rows[-1], "episodes": team.tasks, "micro_batch": team.batch, "steps": rows[1:]})
        except Exception as error:
            if not is_out_of_memory(error) or team.tasks == 1:
                raise
        else:
            return
        setting.save(out_of_memory=[*setting.results.get("out_of_memory", []), team.tasks])
        team = team.halved()
        torch.cuda.empty_cache()


def _step(
    team: Team, rollouts: LocalRolloutRunner, learner: Learner, monitor: GpuMonitor, step: int
) -> dict[str, float]:
    """Run one training step; return its seconds, tokens per second, utilization and peak memory."""
    episodes = list[Any]()
    sampling = seconds_of(lambda: episodes.extend(play(rollouts, step, team.tasks)), synchronize)
    metrics: dict[str, float] = {}
    learning = seconds_of(lambda: metrics.update(learner.learn(episodes, Progress(step, 0))), synchronize)
    rollouts.publish(step + 1)
    actions = [action for episode in episodes for action in episode.actions]
    sampled = sum(len(action.tokens) for action in actions)
    read = sum(len(action.prompt) + len(action.tokens) for action in actions)
    return {
        "sampling_seconds": sampling, "learning_seconds": learning, "sampled_tokens_per_second": sampled / sampling,
        "learned_tokens_per_second": read / learning, "prompt_tokens": (read - sampled) / len(actions),
        "gradient_norm": metrics.get("gradient_norm", float("nan")), **monitor.metrics(episodes, learning),
    }  # fmt: skip


def predict(run: RunSettings, team: Team, setting: Setting) -> dict[str, Any]:
    """Return the plan of ``marft plan`` for this card and these lengths: seconds by phase, and bytes on the card."""
    from marft_lab.planning.plan import PlanRequest, make_plan
    from marft_lab.planning.workload import KnownLengths

    name = DRIVER_NAMES.get(device_name(torch.device(setting.torch_device)), "cpu" if setting.small else "h100")
    card = replace(find_device_spec(name), memory=float("inf")) if name == "cpu" else find_device_spec(name)
    prompt = team.prompt + team.action / 2  # the actor also reads the reasoner's action
    plan = make_plan(run, PlanRequest(1, card, KnownLengths(prompt, team.action, team.action, environment_steps=1.0)))
    return {
        "card": name, "bytes": plan.best.processes[0].on_card,
        "sampling_seconds": sum(phase.seconds for phase in plan.best.phases if phase.side == "sampling"),
        "learning_seconds": sum(phase.seconds for phase in plan.best.phases if phase.side == "learning"),
        "phases": {phase.name: phase.seconds for phase in plan.best.phases},
    }  # fmt: skip
