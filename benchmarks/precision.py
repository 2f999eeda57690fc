"""Measure the effect of half precision on learning: bfloat16 with and without sampler correction, and float32.

    python benchmarks/precision.py                          # creates SmolLM2 first
    python benchmarks/precision.py --model FOLDER --steps 10 --seeds 1 --arms "bfloat16;float32"

One agent learns sums. The table shows how much engine and learner differ on sampled tokens (|log π − log μ| per token,
in nats). It also shows the final distance to the base, and the accuracy. Writes results/precision.json and .md after
every run, and resumes from them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from real_model import smollm2
from recording import CURVES, Job, Row, interval, measure, parser_of, save_rows, stored_rows

from marft.config import parse_recipe

HERE = Path(__file__).parent
ARMS: Mapping[str, Mapping[str, str]] = {
    "bfloat16": {"dtype": "bfloat16", "correction": "none"},
    "bfloat16, corrected": {"dtype": "bfloat16", "correction": "token"},
    "float32": {"dtype": "float32", "correction": "none"},
}
DIFFERENCES = ("log_prob_difference", "log_prob_difference_max", "kl_to_base")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="", help="folder or hub id of a model; default: SmolLM2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", default=";".join(ARMS), help="arms, separated by ;")
    parser.set_defaults(tasks=60)
    arguments = parser.parse_args()
    model = arguments.model or smollm2(arguments.output)
    jobs = [
        job_of(arm, seed, model, arguments.steps, arguments.tasks, arguments.output / "precision")
        for seed in range(arguments.seeds)
        for arm in arguments.arms.split(";")
    ]
    rows = stored_rows(arguments.results, "precision")
    done = {name_of(row) for row in rows}
    for job in jobs:
        if name_of({**job.about, "seed": job.run.seed}) not in done:
            rows += measure([job], arguments.workers, describe)
            save_rows(arguments.results, "precision", rows, table(rows))


def name_of(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what distinguishes a run from other measured runs."""
    return tuple(row[key] for key in ("arm", "seed", "steps", "model"))


def job_of(arm: str, seed: int, model: str, steps: int, tasks: int, output: Path) -> Job:
    """Return a run of the sums' editor as a single agent, on sums up to 9 + 9.

    A step has two attempts at each of 16 tasks.
    """
    table: dict[str, Any] = tomllib.loads((HERE / "real" / "sums.toml").read_text(encoding="utf-8"))
    (alone,) = (agent for agent in table["agents"] if agent.get("answers"))
    table |= {
        "name": f"{arm.replace(', ', '-')}-{seed}",
        "seed": seed,
        "output": str(output),
        "recipe_folder": str(HERE / "real"),
        "agents": [{**alone, "instructions": "Give the sum of the two numbers in one short sentence."}],
        "policies": {alone["policy"]: table["policies"][alone["policy"]]},
        "environment": {"name": "tasks:Sums", "highest": 9},
        "rollout": {"tasks_per_step": 8, "samples_per_task": 4},
        "training": {"steps": steps},
    }
    table["models"]["base"] |= {"path": model, "dtype": ARMS[arm]["dtype"]}
    table["algorithm"] |= {
        "optimizer": {"learning_rate": 1e-3},
        "sampler_correction": {"level": ARMS[arm]["correction"]},
    }
    about = {"arm": arm, "steps": steps, "model": Path(model).name}
    return Job(parse_recipe(table), tasks, about, ("base", "last"), ("sampled",), curves=(*CURVES, *DIFFERENCES))


def describe(row: Row) -> str:
    mean = np.mean(row["curves"]["log_prob_difference"])
    return f"{row['arm']:20s} seed {row['seed']}: {mean:.4f} nats a token; {row['after']['sampled']:.0%} solved"


def table(rows: Sequence[Row]) -> str:
    """Return a line per arm, over its seeds."""
    lines = [
        "| arm | seeds | mean \\|Δ\\| a token, nats | largest of a token | KL to the base at the end | before | after "
        "| 95 % over seeds | seconds a step |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        curves = {name: [row["curves"][name] for row in mine] for name in DIFFERENCES}
        cells = [
            arm, str(len(mine)), f"{np.mean(curves['log_prob_difference']):.2g}",
            f"{np.max(curves['log_prob_difference_max']):.2g}",
            f"{np.mean([curve[-1] for curve in curves['kl_to_base']]):.2g}",
            *(f"{np.mean([row[when]['sampled'] for row in mine]):.1%}" for when in ("before", "after")),
            interval(mine), f"{sum(row['seconds'] for row in mine) / sum(len(row['episodes']) for row in mine):.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
