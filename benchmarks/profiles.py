"""Start with wrong instructions, and recover accuracy by learned instructions, by weights, or by both.

    python benchmarks/profiles.py                  # three seeds of three arms; resumes
    python benchmarks/profiles.py --seeds 1 --tokens 200000
    python benchmarks/profiles.py --start swapped  # each agent has the other one's instructions

The demo team starts with uninformative instructions. *profile*: rounds of `edits` over a pool of ten sentences, without
weight updates. *weights*: MARFT only. *both*: MARFT, with rounds in its first steps. Each arm ends with the first step
or round after the same number of tokens, including prompts and candidates' episodes. The arms play 500 test tasks. The
table also has the hand-written and the wrong instructions with untrained weights. Writes results/profiles.json, .md
and .svg.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recording import parser_of, save_plot, save_rows, tidy

from marft.agents.game import Attempt
from marft.cli.handlers import silence_transformers
from marft.common import atomic
from marft.common.callbacks import Callback
from marft.common.prompt_history import PromptHistory, PromptVersion
from marft.common.types import Episode, Task
from marft.config import RunSettings, load_recipe
from marft.config.bundled import bundled_recipe
from marft.envs.tasks import read_tasks
from marft.evaluation.session import load_checkpoint
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.run_folder import RunFolder
from marft.runs.state import LINEAGE_ADAPTER
from marft.trainer.train import train
from marft_lab.prompt_optimization.search import PromptSearch, count_tokens
from marft_lab.prompt_optimization.settings import PromptOptimizerSettings

REASONER = ("You are the reasoner.", "Work out the first step and pass on what is left.")
ACTOR = ("You are the actor.", r"Finish the work with the help of the message and put the answer in \boxed{}.")
EMPTY = "You are a helpful assistant."
POOL = (
    *REASONER, *ACTOR, EMPTY, "Be brief.", "Think before you answer.", "Answer politely.", "Check your work.",
    "Never guess.",
)  # fmt: skip
HAND = {"reasoner": " ".join(REASONER), "actor": " ".join(ACTOR)}
STARTS = {
    "empty": {"reasoner": EMPTY, "actor": EMPTY},
    "swapped": {"reasoner": HAND["actor"], "actor": HAND["reasoner"]},
}
ARMS = ("profile", "weights", "both")
PROFILES = {
    "every": 5, "last_step": 20, "candidates": 8, "tasks": 64, "accept": "no_worse",
    "proposer": {"name": "edits", "sentences": list(POOL), "max_sentences": 3},
}  # fmt: skip
Row = dict[str, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--start", choices=tuple(STARTS), default="empty")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens per arm")
    arguments = parser.parse_args()
    silence_transformers()
    bench = Bench(arguments.start, arguments.tokens, arguments.tasks, arguments.output)
    rows = [bench.measured(arm, seed) for seed in range(arguments.seeds) for arm in ("untrained", *ARMS)]
    name = "profiles" if arguments.start == "empty" else f"profiles_{arguments.start}"
    save_rows(arguments.results, name, rows, table(rows, arguments.start))
    save_plot(arguments.results, name, picture(rows))


@dataclass(slots=True)
class Counting(Callback):
    """Callback that counts a run's tokens, and stops it at a limit."""

    limit: int
    tokens: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)

    def on_episode(self, episode: Episode) -> None:
        self.tokens += count_tokens([episode])

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        self.tokens += int(metrics.get("prompt_optimization/tokens", 0))
        self.curve.append((self.tokens, metrics["accuracy"]))

    def wants_stop(self) -> bool:
        return self.tokens >= self.limit


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings that all arms share."""

    start: str
    tokens: int
    tasks: int
    output: Path

    def measured(self, arm: str, seed: int) -> Row:
        """Return an arm's row; measure and store it if it is missing."""
        name = f"profiles-{self.start}-{arm}-{seed}"
        path, settings = self.output / f"{name}.json", self.digest()
        if path.is_file():
            kept = json.loads(path.read_text())
            if kept["settings"] != settings:
                raise SystemExit(f"{path} was measured with other settings; delete it, or use another --output")
            return dict(kept["row"])
        began = time.perf_counter()
        row = {"arm": arm, "seed": seed, **self._row(arm, seed, name)}
        row["wall_seconds"] = time.perf_counter() - began
        atomic.write_file(path, json.dumps({"settings": settings, "row": row}) + "\n")
        print(f"{name}: {row['success']:.1%} ({row['wall_seconds']:.0f} s)", flush=True)
        return row

    def digest(self) -> str:
        """Return a digest of the settings that the figures depend on."""
        settings = (self.tokens, self.tasks, STARTS[self.start], PROFILES)
        return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]

    def recipe(self, seed: int, name: str, profiles: bool) -> RunSettings:
        overrides = ["--name", name, "--output", str(self.output), "--seed", str(seed), "--training.steps", "100000"]
        overrides += ["--sinks", "[]", "--training.record_episodes_every", "0", "--checkpoints.every", "100000"]
        for number, text in enumerate(STARTS[self.start].values()):
            overrides += [f"--agents.{number}.instructions", json.dumps(text)]
        with_profiles = ["--prompt_optimization", _toml(PROFILES)] if profiles else []
        return load_recipe(Path(str(bundled_recipe("demo"))), [*overrides, *with_profiles])

    def _row(self, arm: str, seed: int, name: str) -> Row:
        run = self.recipe(seed, name, profiles=arm in ("profile", "both"))
        if arm == "untrained":
            with LocalRolloutRunner(run) as rollouts:
                rollouts.publish(0)
                wrong = self._success(rollouts)
                rollouts.set_prompt_versions([PromptVersion(role, 1, text) for role, text in HAND.items()])
                return {"success": wrong, "hand": self._success(rollouts)}
        if arm == "profile":
            return self._by_rounds(run)
        counting, folder = Counting(self.tokens), RunFolder(Path(run.output) / run.name)
        train(run, folder, overwrite=folder.is_run(), callbacks=[counting])
        with LocalRolloutRunner(run) as rollouts:
            load_checkpoint(rollouts, folder.saved_steps()[-1])
            rollouts.publish(1)
            found = {"success": self._success(rollouts), "tokens": counting.tokens, "curve": counting.curve}
        written = folder.path / "profiles.json"
        return {**found, "lineage": json.loads(written.read_text()) if written.is_file() else None}

    def _by_rounds(self, run: RunSettings) -> Row:
        """Optimize prompts only, without training weights."""
        settings = run.section(PromptOptimizerSettings)
        assert settings is not None
        with LocalRolloutRunner(run) as rollouts:
            rollouts.publish(0)
            tuner = PromptSearch(rollouts, settings, read_tasks(run.environment, settings.split))
            lineage, curve = tuner.initial_lineage(), list[tuple[int, float]]()
            while lineage.tokens < self.tokens:
                lineage, _ = tuner.play_round(lineage, lineage.rounds + 1, ())
                curve.append((lineage.tokens, self._now(lineage)))
            rollouts.set_prompt_versions(lineage.current_versions())
            success = self._success(rollouts)
        return {
            "success": success,
            "tokens": lineage.tokens,
            "curve": curve,
            "lineage": json.loads(LINEAGE_ADAPTER.dump_json(lineage)),
        }

    @staticmethod
    def _now(lineage: PromptHistory) -> float:
        """Return the measured success of the last accepted version; 0 before the first."""
        accepted = [version for version in lineage.versions if version.accepted and version.worth]
        return accepted[-1].worth.success if accepted and accepted[-1].worth else 0.0

    def _success(self, rollouts: LocalRolloutRunner) -> float:
        """Return the share of test tasks that the team solves, sampled."""
        tasks: Sequence[Task] = read_tasks(rollouts.run.environment, "test")[: self.tasks]
        episodes = rollouts.play([Attempt(task, "test/sampled") for task in tasks])
        return float(np.mean([bool(episode.success) for episode in episodes]))


def _toml(value: object) -> str:
    """Return a value as inline TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def table(rows: Sequence[Row], start: str) -> str:
    hand = float(np.mean([row["hand"] for row in rows if row["arm"] == "untrained"]))
    lines = [
        "# A wrong profile",
        "",
        f"The demo team with `{start}` instructions, over {len({row['seed'] for row in rows})} seed(s): success on "
        f"held-out tasks, sampled. Hand-written instructions, untrained: {hand:.1%}.",
        "",
        "| arm | success, mean | by seed | share of the hand-written | tokens |",
        "| --- | --- | --- | --- | --- |",
    ]
    for arm in ("untrained", *ARMS):
        of_arm = [row for row in rows if row["arm"] == arm]
        success = [row["success"] for row in of_arm]
        tokens = np.mean([row.get("tokens", 0) for row in of_arm])
        by_seed = ", ".join(f"{one:.1%}" for one in success)
        mean = float(np.mean(success))
        lines.append(f"| {arm} | {mean:.1%} | {by_seed} | {mean / hand:.0%} | {tokens / 1e6:.2f} M |")
    return "\n".join([*lines, "", *lineages(rows)]) + "\n"


def lineages(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the versions that the first seed's `profile` arm accepted, in order."""
    found = next(row["lineage"] for row in rows if row["arm"] == "profile")
    yield "Accepted versions of the first seed, without training of weights:"
    yield ""
    yield "| version | of | how | round | success | gain, with its interval | instructions |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for one in found["versions"]:
        worth = one["worth"]
        if not one["accepted"]:
            continue
        of = ", ".join(f"v{number}" for number in one["parents"])
        told = (
            worth
            and f"{worth['success']:.1%} | {worth['gain']:+.1%} ({worth['gain_low']:+.1%} to {worth['gain_high']:+.1%})"
        )
        text = one["instructions"].replace("|", "\\|")
        yield (
            f"| {one['role']} v{one['number']} | {of} | {one['how']} | {one['step']} | {told if worth else ' | '} "
            f"| {text} |"
        )


def picture(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for number, arm in enumerate(ARMS):
        for row in (row for row in rows if row["arm"] == arm):
            tokens, success = zip(*row["curve"], strict=True)
            label = arm if row["seed"] == 0 else None
            axes.plot(np.array(tokens) / 1e6, success, color=f"C{number}", label=label, linewidth=1.2, alpha=0.8)
    hand = float(np.mean([row["hand"] for row in rows if row["arm"] == "untrained"]))
    axes.axhline(hand, color="0.4", linestyle=":", label="hand-written, untrained")
    axes.set(xlabel="tokens taken, million", ylabel="success", ylim=(0, 1))
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return figure


if __name__ == "__main__":
    main()
