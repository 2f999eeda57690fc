"""Train with the paper's entropy settings on a small scale: whether one agent collapses first with an entropy bonus.

The MARFT paper trains with an entropy coefficient of 0.1 (its Table 3, where single-agent PPO collapses after an
entropy surge), 0 (Table 4) and 0.01 (Table 5). This study trains one agent and two with all three, at action and token
level. It uses every setting of those tables, four rollouts per step, and LoRA on queries and values. Only the learning
rates differ: at 1e-6 the bundled model does not change, so both rates are ``FACTOR`` times the paper's. Four short runs
at the published rates show that. Prompts and actions are as short as the demo's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from recording import Job, Row, band, collapsed, interval, smooth, tidy

from marft.config import load_recipe
from marft.config.algorithms import PRESETS

TABLES: Mapping[str, str] = {"0": "marft-paper-table4", "0.01": "marft-paper-table5", "0.1": "marft-paper-table3"}
TEAMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "single": ("demo_single", ("solver",)),
    "dual": ("demo", ("reasoner", "actor")),
}
LEVELS = ("action", "token")
SEEDS = 5
STEPS = 350
PUBLISHED_STEPS = 100
FACTOR = 500  # factor on both learning rates
STEPS_PER_POINT = 10  # 40 episodes


def jobs(tasks: int, output: str) -> list[Job]:
    scaled = [
        job_of(team, level, entropy, seed, FACTOR, tasks, output)
        for seed in range(SEEDS)
        for entropy in TABLES
        for team in TEAMS
        for level in LEVELS
    ]
    return scaled + [job_of(team, level, "0.1", 0, 1, tasks, output) for team in TEAMS for level in LEVELS]


def job_of(team: str, level: str, entropy: str, seed: int, factor: int, tasks: int, output: str) -> Job:
    recipe, policies = TEAMS[team]
    preset = TABLES[entropy]
    rates = {part: factor * PRESETS[preset][part]["learning_rate"] for part in ("optimizer", "critic")}
    algorithm = ", ".join(f"{part} = {{ learning_rate = {rate} }}" for part, rate in rates.items())
    overrides = ["--algorithm", f"{{ name = '{preset}', level = '{level}', {algorithm} }}"]
    for policy in policies:
        overrides += [f"--policies.{policy}.lora", "{ rank = 8, alpha = 16, target_modules = ['q_proj', 'v_proj'] }"]
    overrides += ["--rollout", "{ tasks_per_step = 4, samples_per_task = 1 }", "--seed", str(seed)]
    overrides += ["--training.steps", str(STEPS if factor == FACTOR else PUBLISHED_STEPS)]
    overrides += ["--output", output, "--name", f"{team}-{level}-{entropy}-x{factor}-{seed}"]
    about = {"team": team, "level": level, "entropy": entropy, "factor": factor}
    return Job(load_recipe(recipe, overrides), tasks, about, ("base", "last"), ("sampled",), STEPS_PER_POINT)


def describe(row: Row) -> str:
    gain = f"{row['before']['sampled']:.1%} → {row['after']['sampled']:.1%}"
    fell = "" if fall(row) is None else f", fell by step {fall(row)}"
    case = f"{row['team']} {row['level']}, entropy {row['entropy']}, rates × {row['factor']}"
    return f"{case:44s} seed {row['seed']}: {gain}{fell}"


def fall(row: Row) -> int | None:
    """Return the training step at which accuracy over 30 steps was 20 points below its best so far; None if never."""
    curve = smooth(row["curves"]["accuracy"])
    below = np.flatnonzero(curve < np.maximum.accumulate(curve) - 0.2)
    return STEPS_PER_POINT * (int(below[0]) + 3) if len(below) else None


def surge(row: Row) -> float:
    """Return the largest rise of entropy, over 30 steps, above its lowest so far, in nats per token."""
    curve = smooth(row["curves"]["entropy"])
    return float(np.max(curve - np.minimum.accumulate(curve)))


def table(rows: Sequence[Row]) -> str:
    titles = ["team", "level", "entropy", "sampled, after: mean", "95 % interval over seeds", "worst seed"]
    titles += ["fell 20 points", "first fall, step", "down at the end", "entropy, nats: first 30 steps", "lowest"]
    titles += ["last 30 steps", "largest rise"]
    lines = [f"| {' | '.join(titles)} |", "| --- | --- | ---: | ---: | --- |" + " ---: |" * 8]
    scaled = [row for row in rows if row["factor"] == FACTOR]
    for entropy in TABLES:
        for team in TEAMS:
            for level in LEVELS:
                mine = [r for r in scaled if (r["entropy"], r["team"], r["level"]) == (entropy, team, level)]
                if mine:
                    lines.append(_line(mine))
    lines += ["", verdict(scaled), "", published([row for row in rows if row["factor"] == 1])]
    return "\n".join(lines) + "\n"


def _line(rows: Sequence[Row]) -> str:
    after = [row["after"]["sampled"] for row in rows]
    falls = [step for row in rows if (step := fall(row)) is not None]
    curves = [smooth(row["curves"]["entropy"]) for row in rows]
    ends = [np.mean([curve[place] for curve in curves]) for place in (0, -1)]
    cells = [rows[0]["team"], rows[0]["level"], rows[0]["entropy"], f"{np.mean(after):.1%}", interval(rows)]
    cells += [f"{min(after):.1%}", f"{len(falls)} of {len(rows)}", f"{min(falls)}" if falls else "never"]
    cells += [f"{sum(map(collapsed, rows))} of {len(rows)}", f"{ends[0]:.3f}"]
    cells += [f"{np.mean([curve.min() for curve in curves]):.3f}", f"{ends[1]:.3f}", f"{max(map(surge, rows)):.3f}"]
    return f"| {' | '.join(cells)} |"


def verdict(rows: Sequence[Row]) -> str:
    """Return what the runs show about the paper's claim, in words."""
    said = []
    for entropy in TABLES:
        parts = []
        for team in TEAMS:
            mine = [row for row in rows if (row["entropy"], row["team"]) == (entropy, team)]
            falls = [step for row in mine if (step := fall(row)) is not None]
            when = f", at steps {_listed(falls)}" if falls else ""
            parts.append(f"{team} {len(falls)} of {len(mine)}{when}")
        said.append(f"- entropy {entropy}: {'; '.join(parts)}")
    fallen = [(step, row) for row in rows if (step := fall(row)) is not None]
    if not fallen:
        answer = "No run falls, so the runs do not show the paper's collapse."
    else:
        earliest = min(step for step, _ in fallen)
        first = [row for step, row in fallen if step == earliest]
        named = {f"{row['team']} at {row['level']} level with entropy {row['entropy']}" for row in first}
        holds = all((row["team"], row["entropy"]) == ("single", "0.1") for row in first)
        answer = (
            f"The first to fall, at step {earliest}: {'; '.join(sorted(named))}. In the paper it is the single agent "
            f"with 0.1, {'as here' if holds else 'alone'}."
        )
    return "\n".join(["Runs that fell 20 points below their best:", *said, "", answer])


def published(rows: Sequence[Row]) -> str:
    """Return the effect of the published learning rates on the bundled model."""
    cells = [
        f"{row['team']} {row['level']} {row['before']['sampled']:.1%} → {row['after']['sampled']:.1%}" for row in rows
    ]
    return f"At the published rates, {PUBLISHED_STEPS} steps, entropy 0.1, one seed: {'; '.join(cells)}."


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(steps)))


def plot(rows: Sequence[Row]) -> Figure:
    """Plot accuracy above and entropy below: a column per team and level, a line per entropy coefficient."""
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    grid = figure.subplots(2, 4, sharex=True, sharey="row")
    columns = [(team, level) for team in TEAMS for level in LEVELS]
    for column, (team, level) in enumerate(columns):
        for line, metric in enumerate(("accuracy", "entropy")):
            axes = grid[line][column]
            for entropy in TABLES:
                curves = [
                    row["curves"][metric] for row in rows
                    if (row["team"], row["level"], row["entropy"], row["factor"]) == (team, level, entropy, FACTOR)
                ]  # fmt: skip
                if curves:
                    band(axes, curves, f"entropy {entropy}", STEPS_PER_POINT)
            axes.tick_params(labelsize=8)
            tidy(axes)
        grid[0][column].set_title(f"{team}, {level}", fontsize=10, loc="left")
        grid[1][column].set_xlabel("training step (4 episodes each)", fontsize=8)
    grid[0][0].set_ylabel("accuracy", fontsize=9)
    grid[1][0].set_ylabel("entropy (nats a token)", fontsize=9)
    grid[0][0].legend(frameon=False, fontsize=8)
    return figure
