"""Simulate runs on 8 to 4,096 GPUs: where the bottleneck moves, and what a lag gains.

    python benchmarks/simulation.py             # seconds; reads results/simulation_measured.json
    python benchmarks/simulation.py --record    # first trains some steps of the playbook on this machine: minutes

Episodes are drawn from those of a recorded run: numbers of actions, relative lengths, and pauses for tools and
environment relative to writing. They are scaled to Qwen2.5-7B on H100s, with actions of 1,024 tokens on average; pauses
keep their share. An engine is one GPU. The plan's arithmetic gives its speed by rows, the seconds of a
learning step, and those of publishing. An eighth to a half of the GPUs sample, whichever share is fastest. Tasks grow
with the GPUs (weak scaling: 4 groups of 8 per GPU), or stay at 512 groups (strong).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import matplotlib as mpl
import numpy as np
from training_simulator import SimulationConfig, SimulationResult, Turn, simulate

from marft.models.device_specs import DEVICE_SPECS
from marft.models.model_sizes import COMMON_MODELS, forward_flops
from marft_lab.planning.timing import Efficiencies, EngineSpeed, training_operations
from marft_lab.planning.workload import Lengths, PolicyWorkload

mpl.use("Agg")
import matplotlib.pyplot as plt

GPUS = (8, 32, 128, 512, 1024, 2048, 4096)
LAGS = (0, 1, 2, 4)
SHARES = (0.125, 0.25, 0.5)
TOKENS, PROMPT, SLOTS, GROUP, STEPS = 1024.0, 1024.0, 128, 8, 12
PER_GPU, STRONG = 4, 512  # groups per step
MEASURED = machine.RESULTS / "simulation_measured.json"
SHAPE, CARD, REACHED = COMMON_MODELS["qwen2.5-7b"], DEVICE_SPECS["h100"], Efficiencies()
CUT = 32  # with more GPUs, one simulated GPU stands for several alike


def record() -> dict[str, Any]:
    """Train a few steps of the playbook, and return each episode's actions: tokens, seconds, and the pause after it."""
    from marft.config import load_recipe
    from marft.runs.episode_files import read_episodes
    from marft.runs.run_folder import RunFolder
    from marft.trainer.train import train

    with tempfile.TemporaryDirectory() as output:
        run = load_recipe(
            "playbook", ["--output", output, "--training.steps", "4", "--algorithm.critic.warmup_steps", "1"]
        )
        folder = RunFolder(Path(output) / run.name)
        train(run, folder)
        episodes = [e for file in sorted(folder.episodes.glob("*.parquet")) for e in read_episodes(file) if e.actions]
    return {"machine": machine.describe(), "recipe": "playbook", "episodes": [turns_of(e) for e in episodes]}


def turns_of(episode: Any) -> list[tuple[int, float, float]]:
    """Return the tokens, writing seconds and pause of each action, in the order started.

    The pause has the seconds of its tools, and those until the next action began or the episode ended.
    """
    actions = sorted(episode.actions, key=lambda action: action.started)
    ends = [*(action.started for action in actions[1:]), episode.seconds]
    turns = []
    for action, end in zip(actions, ends, strict=True):
        tools = sum(call.seconds for call in action.calls)
        turns.append((len(action.tokens), action.ended - action.started - tools, tools + max(0.0, end - action.ended)))
    return turns


def drawn(measured: Sequence[Sequence[Sequence[float]]], token: float) -> Any:
    """Return a sampler of recorded episodes, with actions scaled to a mean of ``TOKENS``.

    Pauses grow by the same factor as the time to write an action.
    """
    flat = [turn for episode in measured for turn in episode]
    length = float(np.mean([turn[0] for turn in flat]))
    pace = TOKENS * token / float(np.mean([turn[1] for turn in flat]))
    made = [[Turn(max(1.0, t[0] / length * TOKENS), t[2] * pace) for t in episode] for episode in measured]
    return lambda random: made[int(random.integers(len(made)))]


def scene(measured: Any, gpus: int, groups: int, share: float, lag: int) -> SimulationConfig:
    """Return the simulation of a run on a number of GPUs.

    With many GPUs, one simulated GPU stands for several, because they share only the learner.
    """
    cut = max(1, gpus // CUT)
    sampling = max(1, round(gpus * share))
    learning = max(1, gpus - sampling)
    engine = EngineSpeed(
        SHAPE, 2.0 * SHAPE.parameters, 2.0 * SHAPE.cache_elements(), CARD.flops, CARD.bandwidth, REACHED.captured,
        REACHED.iteration,
    )  # fmt: skip
    one = PolicyWorkload("p", "base", "lora", 16, ("q_proj", "v_proj"), 1, Lengths(PROMPT, TOKENS, TOKENS), True)
    rate = REACHED.rate(CARD.flops, CARD.bandwidth)
    actions = float(np.mean([len(episode) for episode in measured])) * groups * GROUP
    operations = (
        actions
        * (PROMPT + TOKENS)
        * (training_operations(SHAPE, one, True, True) + forward_flops(SHAPE, PROMPT + TOKENS, 0.5))
    )
    gathered = 2 * 2.0 * SHAPE.parameters / (CARD.link_bandwidth * REACHED.link)
    adapters = 4.0 * SHAPE.adapter_parameters(16, ("q_proj", "v_proj")) / (CARD.link_bandwidth * REACHED.link)
    rounds = np.ceil(np.log2(max(2, learning)))  # a tree of messages between all ranks, once per gradient
    return SimulationConfig(
        engines=max(1, sampling // cut),
        slots=SLOTS,
        seconds_per_token=lambda rows: engine.step(rows, PROMPT + TOKENS / 2, REACHED),
        sample_turns=drawn(measured, engine.step(SLOTS / 2, PROMPT + TOKENS / 2, REACHED)),
        groups_per_step=max(1, groups // cut),
        episodes_per_group=GROUP,
        learning_seconds=float(operations / learning / rate + gathered + rounds * adapters),
        publishing_seconds=0.5 + adapters,
        lag=lag,
        steps=STEPS,
    )


def best(measured: Any, gpus: int, groups: int, lag: int) -> tuple[float, SimulationConfig, SimulationResult]:
    """Return the share of sampling GPUs with the shortest step, its configuration and its result."""
    tried = [(share, made := scene(measured, gpus, groups, share, lag), simulate(made)) for share in SHARES]
    return min(tried, key=lambda one: step_seconds(one[2], lag))


def step_seconds(out: SimulationResult, lag: int) -> float:
    """Return the seconds of a step, without the first steps, which have nothing played ahead."""
    first = lag + 1
    return (out.ends[-1] - out.ends[first]) / (len(out.ends) - 1 - first)


def measure(measured: Any) -> list[dict[str, Any]]:
    rows = []
    for kind in ("weak", "strong"):
        for gpus in GPUS:
            groups = PER_GPU * gpus if kind == "weak" else STRONG
            for lag in LAGS:
                share, made, out = best(measured, gpus, groups, lag)
                steps = step_seconds(out, lag)
                rows.append({
                    "kind": kind, "gpus": gpus, "lag": lag, "share": share, "seconds": steps,
                    "episodes_per_second_and_gpu": groups * GROUP / steps / gpus,
                    "engines_busy": out.engine_utilization(made), "slots_busy": out.slot_utilization(made),
                    "learner_busy": out.learner_utilization(), "age": float(np.mean(out.ages)),
                })  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def draw_picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "marft"
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    for axis, kind in zip(axes[:2], ("weak", "strong"), strict=True):
        for lag in LAGS:
            mine = [row for row in rows if row["kind"] == kind and row["lag"] == lag]
            axis.plot(
                [r["gpus"] for r in mine],
                [r["episodes_per_second_and_gpu"] for r in mine],
                marker="o",
                label=f"lag {lag}",
            )
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("GPUs")
        axis.set_title("4 groups a GPU and step" if kind == "weak" else f"{STRONG} groups a step")
    axes[0].set_ylabel("episodes a second and GPU")
    axes[0].legend(frameon=False)
    for name, words, style in (("slots_busy", "rows in use", "-"), ("learner_busy", "learner", "--")):
        for lag, colour in ((0, "C0"), (2, "C2")):
            mine = [row for row in rows if row["kind"] == "strong" and row["lag"] == lag]
            label = f"{words}, lag {lag}"
            axes[2].plot([r["gpus"] for r in mine], [r[name] for r in mine], style, color=colour, label=label)
    axes[2].set_xscale("log", base=2)
    axes[2].set_ylim(0, 1.05)
    axes[2].set_xlabel("GPUs")
    axes[2].set_title(f"at work, {STRONG} groups a step")
    axes[2].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| groups a step | GPUs | lag | sample | s a step | episodes a second and GPU | rows in use | learner | age |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in rows:
        groups = f"{PER_GPU} a GPU" if r["kind"] == "weak" else str(STRONG)
        lines.append(
            f"| {groups} | {r['gpus']:,} | {r['lag']} | {r['share']:.0%} | {r['seconds']:,.1f} | "
            f"{r['episodes_per_second_and_gpu']:.3f} | {r['slots_busy']:.0%} | {r['learner_busy']:.0%} | "
            f"{r['age']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="first train and measure some steps of the playbook")
    arguments = parser.parse_args()
    if arguments.record:
        machine.save("simulation_measured", record())
    measured = json.loads(MEASURED.read_text())["episodes"]
    rows = measure(measured)
    path = machine.save("simulation", rows)
    path.with_suffix(".md").write_text(table(rows))
    draw_picture(rows, path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
