"""Compare a memory team trained with joint credit, independent credit, team credit, and untrained.

    python benchmarks/comam.py --threads 1                   # runs what is missing; resumes
    python benchmarks/comam.py --only-table                  # from stored results

The question is whether it pays to share the reward for answers. The recipe is ``memory`` with CoMAM's credit
(arXiv:2603.12631). The arms differ in one key:

- *joint*: each agent's own reward, plus an adaptive share of the team's reward.
- *independent*: writer and retriever learn only from their own rewards, coverage and retrieval. The answerer has no
  own reward, and learns from answers.
- *team*: no agent has a reward of its own.

There are two settings, called grounds:

- *said*: the writer earns the share of all facts that its notes hold, and the notes have room for a third of the
  facts. All questions are about events. The model continues the bundled one, on turns of scripted teams whose writers
  note everything or only events, so the model can learn either. Noting everything earns as much as noting events, and
  leads to half as many right answers.
- *asked*: the recipe as it ships. The writer earns the share of the facts that will be asked.

All teams are evaluated on the same held-out conversations, sampled as in training. Differences are paired by
conversation over all seeds (evaluation/ratios.py), and by seed (Student's t). The weights of the global reward come
from training. Other measures of consistency are computed on the episodes of the joint runs. The world's script plays
both aims without a model, to show how far apart they are. Writes results/comam.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import machine
import numpy as np
from environments import World, trained
from matplotlib.figure import Figure
from warm_up import Turn, warm_up

from marft.config import load_recipe
from marft.config.interfaces.credit import CreditInputs
from marft.config.models import ModelSettings
from marft.config.run import RunSettings
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy, ScriptedReply
from marft.evaluation.intervals import student_interval
from marft.evaluation.ratios import Ratio, compare_ratios
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.inference.renderer import ChatRenderer
from marft.models.tokenizer_format import load_format
from marft.rewards.shaping import local_rewards
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.credit.comam import CoMAM
from marft.trainer.credit.consistency import CONSISTENCY_FUNCTIONS
from marft_lab.scripted_team import ScriptedTeam, ScriptedTurn

GROUNDS: Mapping[str, tuple[str, ...]] = {
    "said": (
        "--environment.coverage", "all", "--environment.kinds", '["temporal"]', "--environment.budget", "52",
        "--environment.days", "6", "--environment.facts", "1",
        "--training.steps", "20", "--algorithm.optimizer.learning_rate", "1e-3", "--algorithm.epochs", "4",
    ),
    "asked": (),
}  # fmt: skip
ARMS: Mapping[str, tuple[str, ...]] = {
    "joint": (),
    "independent": ("--algorithm.credit.fixed_weights", "{ writer = 0, retriever = 0 }"),
    "team": ("--environment.local_weight", "0"),
}
BASE_MODEL = "tiny-memory"
WARM_UP, SKILL, EPISODES = 1200, 0.4, 3000  # steps; skill of retriever and answerer; conversations
HABITS: Mapping[str, Callable[[str], bool]] = {  # writer's habit → True for the possible notes that it makes
    "everything": lambda note: True,  # noqa: ARG005
    "events alone": lambda note: "bought" in note,
}
UNTUNED = "untuned"
FEW = 5  # steps at the start and at the end of training
COLOURS = {"joint": "C0", "independent": "C1", "team": "C2"}
AGENTS = ("writer", "retriever")  # agents with rewards of their own
WEIGHTS = ("global_weight", "fallback_fraction")
MEASURES = {"answers": "right answers", "conversations": "all of a conversation's"}
LABELS = {"environment/coverage": "coverage", "reward": "right answers"}
CURVES = ("reward", "environment/coverage", "environment/retrieval_recall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--grounds", nargs="+", choices=GROUNDS, default=list(GROUNDS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--tasks", type=int, default=200, help="held-out conversations per evaluation")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 uses all cores")
    parser.add_argument("--output", type=Path, default=Path("runs/comam"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--only-table", action="store_true", help="only write the table, from stored results")
    arguments = parser.parse_args()
    path = arguments.results / "comam.json"
    for ground in arguments.grounds if not arguments.only_table else ():
        for seed in arguments.seeds:
            for arm in arguments.arms:
                runs = read(path)
                if f"{ground}/{arm}-{seed}" not in runs:
                    runs |= measured(ground, arm, seed, arguments)
                    whole = {"machine": machine.describe(), "runs": dict(sorted(runs.items()))}
                    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    runs = read(path)
    lines = [*table(runs), "", *differences(runs), "", *weights(runs), "", *moved(runs), "", *aims()]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plot(runs).savefig(path.with_suffix(".svg"))
    print("\n".join(lines))


def measured(ground: str, arm: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one arm with one seed. The first arm also evaluates the untuned team."""
    model = model_of(ground, arguments.output)
    world = World("memory", changes=(*GROUNDS[ground], *ARMS[arm], "--models.base.path", model))
    folder = trained(f"{ground}-{arm}", world, "team", seed, arguments)
    names = ["base", "last"] if arm == "joint" else ["last"]
    found = evaluate_checkpoints(
        load_recipe(folder.config_path), folder, EvaluationPlan(names, ("sampled",), arguments.tasks), lambda *_: None
    )
    rows = folder.read_metrics()
    wanted = [*CURVES, *(f"agents/{agent}/{name}" for agent in AGENTS for name in WEIGHTS)]
    told: dict[str, Any] = {
        "seconds": sum(row["seconds"] for row in rows),
        "steps": {name: [row.get(name) for row in rows] for name in wanted},
    }
    results = {f"{ground}/{arm}-{seed}": {**_held_out(found[-1]), **told}}
    if arm == "joint":
        results[f"{ground}/{UNTUNED}-{seed}"] = _held_out(found[0])
        results[f"{ground}/{arm}-{seed}"]["measures"] = other_measures(folder)
    return results


def model_of(ground: str, output: Path) -> str:
    """Return the base model of a ground: the bundled one, or one trained further on writers of all habits."""
    if ground != "said":
        return BASE_MODEL
    folder = output.absolute() / f"writers-{WARM_UP}-{SKILL:g}-{EPISODES}"
    if not folder.exists():
        output.mkdir(parents=True, exist_ok=True)
        warm_up(folder, ModelSettings(path=BASE_MODEL), demonstrations, WARM_UP)
    return str(folder)


def demonstrations(renderer: ChatRenderer) -> Callable[[], Turn]:
    """Return a sampler of turns by scripted teams, on conversations outside all splits.

    The writer has a random habit in each conversation.
    """
    run = load_recipe("memory", GROUNDS["said"])
    world: Any = run.environment
    random = Random(0)
    noted, whole = writer(run, lambda task: Random(task).choice([*HABITS])), world.script(SKILL)

    def script(cue: PolicyInput) -> str | ScriptedReply:
        return noted(cue) if cue.role == "writer" else whole(cue)

    spoken: list[ScriptedTurn] = []
    form = load_format(ModelSettings(path=BASE_MODEL))
    with ScriptedTeam(run, script, dict.fromkeys(run.models, form), on_turn=spoken.append) as team:
        assert all(episode.is_scored for episode in team.play(islice(world.demonstrations(), EPISODES)))
    turns = [Turn.of(one, renderer) for one in spoken]
    return lambda: random.choice(turns)


def writer(run: RunSettings, habit: Callable[[str], str]) -> ScriptedPolicy:
    """Return the world's script with a writer that keeps only the notes of its habit at a task."""
    world: Any = run.environment
    whole: ScriptedPolicy = world.script()

    def script(cue: PolicyInput) -> str | ScriptedReply:
        said = whole(cue)
        if cue.role != "writer":
            return said
        keeps = HABITS[habit(cue.task.id)]
        return "\n".join(note for note in str(said).splitlines() if keeps(note)) or "nothing"

    return script


def _held_out(evaluation: Any) -> dict[str, dict[str, float]]:
    """Return the share of right answers by conversation, and whether all answers were right."""
    return {
        "answers": dict(sorted(evaluation.rewards.items())),
        "conversations": {task: float(solved) for task, solved in sorted(evaluation.outcomes.items())},
    }


def other_measures(folder: RunFolder) -> dict[str, dict[str, float]]:
    """Return the weights of a run's recorded episodes by measure of consistency, averaged over steps."""
    found: dict[str, dict[str, list[float]]] = {name: {agent: [] for agent in AGENTS} for name in CONSISTENCY_FUNCTIONS}
    for path in folder.recorded_steps():
        episodes = [episode for episode in read_episodes(path) if episode.is_scored and episode.actions]
        for name in CONSISTENCY_FUNCTIONS:
            metrics = CoMAM(consistency=name).assign(CreditInputs(episodes, "action")).metrics
            for agent in AGENTS:
                found[name][agent].append(metrics[f"agents/{agent}/global_weight"])
    return {name: {agent: float(np.mean(some)) for agent, some in agents.items()} for name, agents in found.items()}


def table(runs: Mapping[str, Any]) -> list[str]:
    """Return a line per arm: means over its seeds, and each seed's share of right answers."""
    labels = [f"{label}, %" for label in MEASURES.values()]
    head = ["ground", "arm", "seeds", *labels, "of each seed", "minutes"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | ---: | ---: | ---: | --- | ---: |"]
    for ground, arm in product(GROUNDS, (UNTUNED, *ARMS)):
        mine = _of(runs, ground, arm)
        if mine:
            shares = [f"{100 * np.mean([_share(run, name) for run in mine.values()]):.1f}" for name in MEASURES]
            each = ", ".join(f"{100 * _share(run, 'answers'):.1f}" for run in mine.values())
            minutes = [run["seconds"] / 60 for run in mine.values() if "seconds" in run]
            cells = [ground, arm, str(len(mine)), *shares, each, f"{np.mean(minutes):.1f}" if minutes else ""]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def differences(runs: Mapping[str, Any]) -> list[str]:
    """Return a line per pair of arms and measure: the gain, with intervals over conversations and over seeds."""
    lines = [
        "| ground | difference | of | points | 95 %, over conversations | 95 %, over seeds | seeds ahead |",
        "| --- | --- | --- | ---: | --- | --- | ---: |",
    ]
    pairs = [("independent", "joint"), ("team", "joint"), ("team", "independent"), *((UNTUNED, arm) for arm in ARMS)]
    for ground, (before, after) in product(GROUNDS, pairs):
        one, two = _of(runs, ground, before), _of(runs, ground, after)
        seeds = sorted(one.keys() & two.keys())
        for name, label in MEASURES.items() if seeds else ():
            difference = compare_ratios(*(_by_conversation(side, seeds, name) for side in (one, two)))
            assert difference is not None
            gains = [_share(two[seed], name) - _share(one[seed], name) for seed in seeds]
            over = [_points(difference.interval), _points(_over_seeds(gains))]
            ahead = f"{sum(gain > 0 for gain in gains)} of {len(seeds)}"
            cells = [ground, f"{after} − {before}", label, f"{100 * difference.gain:+.1f}", *over, ahead]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _by_conversation(runs: Mapping[str, Any], seeds: Sequence[str], name: str) -> dict[str, Ratio]:
    """Return a measure by conversation, over seeds."""
    tasks = runs[seeds[0]][name]
    return {task: Ratio(sum(runs[seed][name][task] for seed in seeds), float(len(seeds))) for task in tasks}


def weights(runs: Mapping[str, Any]) -> list[str]:
    """Return a line per measure of consistency: its weights on the episodes of the joint runs."""
    lines = [f"| ground | consistency | {' | '.join(AGENTS)} |", "| --- | --- |" + " ---: |" * len(AGENTS)]
    for ground, name in product(GROUNDS, CONSISTENCY_FUNCTIONS):
        joint = _of(runs, ground, "joint").values()
        if joint:
            means = [np.mean([run["measures"][name][agent] for run in joint]) for agent in AGENTS]
            lines.append(f"| {ground} | {name} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    return lines


def moved(runs: Mapping[str, Any]) -> list[str]:
    """Return a line per arm: coverage, retrieval and right answers in the first and the last training steps."""
    names = ("coverage", "retrieval", "right answers")
    lines = [
        f"| ground | arm | {' | '.join(f'{name}, %' for name in names)} |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for ground, arm in product(GROUNDS, ARMS):
        mine = _of(runs, ground, arm).values()
        if mine:
            cells = []
            for name in ("environment/coverage", "environment/retrieval_recall", "reward"):
                curves = 100 * np.array([run["steps"][name] for run in mine])
                cells.append(f"{curves[:, :FEW].mean():.0f} → {curves[:, -FEW:].mean():.0f}")
            lines.append(f"| {ground} | {arm} | {' | '.join(cells)} |")
    return lines


def aims(tasks: int = 200) -> list[str]:
    """Return a line per ground and habit: the writer's own reward, and the team's right answers."""
    lines = ["| ground | the writer notes | its own reward, % | right answers, % |", "| --- | --- | ---: | ---: |"]
    for ground, changes in GROUNDS.items():
        run = load_recipe("memory", changes)
        world: Any = run.environment
        form = load_format(ModelSettings(path=BASE_MODEL))
        for name in HABITS:
            with ScriptedTeam(run, writer(run, partial(_always, name)), dict.fromkeys(run.models, form)) as team:
                episodes = list(team.play(world.tasks("train")[:tasks]))
            own = np.mean([local_rewards(episode)["writer"] for episode in episodes])
            right = np.mean([episode.total_reward for episode in episodes])
            lines.append(f"| {ground} | {name} | {100 * own:.0f} | {100 * right:.0f} |")
    return lines


def _always(habit: str, task: str) -> str:  # noqa: ARG001
    return habit


def plot(runs: Mapping[str, Any]) -> Figure:
    """Plot a row of panels per ground.

    Four panels show training by step, as means over seeds: weights of the global reward, share of groups that rank
    nothing, coverage, and right answers. The fifth shows right answers on held-out conversations.
    """
    figure = Figure(figsize=(17, 6.4), layout="constrained")
    for ground, row in zip(GROUNDS, figure.subplots(len(GROUNDS), 5), strict=True):
        titles = ("weight of the global reward", "fell back")
        for axes, name, title in zip(row, WEIGHTS, titles, strict=False):
            for agent, colour in zip(AGENTS, ("C3", "C4"), strict=True):
                curves = [run["steps"][f"agents/{agent}/{name}"] for run in _of(runs, ground, "joint").values()]
                _draw(axes, curves, colour, agent)
            axes.set(title=f"{ground}: {title}", ylim=(0, 1))
        for axes, name in zip(row[2:], ("environment/coverage", "reward"), strict=False):
            for arm in ARMS:
                _draw(axes, [run["steps"][name] for run in _of(runs, ground, arm).values()], COLOURS[arm], arm)
            axes.set(title=f"{LABELS[name]}, in training")
        for place, arm in enumerate((UNTUNED, *ARMS)):
            shares = [_share(run, "answers") for run in _of(runs, ground, arm).values()]
            row[4].plot([place] * len(shares), shares, "o", color=COLOURS.get(arm, "C7"))
        row[4].set(title="right answers, held out", xticks=range(1 + len(ARMS)), xticklabels=(UNTUNED, *ARMS))
        for axes in row:
            axes.grid(alpha=0.3)
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
    return figure


def _draw(axes: Any, curves: Sequence[Sequence[float | None]], colour: str, label: str) -> None:
    """Plot each seed as a thin line, and their mean."""
    if not curves:
        return
    values = np.array(curves, np.float64)
    steps = np.arange(1, values.shape[1] + 1)
    for row in values:
        axes.plot(steps, row, color=colour, lw=0.5, alpha=0.35)
    axes.plot(steps, np.nanmean(values, 0), color=colour, lw=1.8, label=label)


def _of(runs: Mapping[str, Any], ground: str, arm: str) -> dict[str, Any]:
    """Return an arm's runs by seed."""
    begins = f"{ground}/{arm}-"
    return {key.removeprefix(begins): run for key, run in sorted(runs.items()) if key.startswith(begins)}


def _share(run: Mapping[str, Any], name: str) -> float:
    return float(np.mean(list(run[name].values())))


def _over_seeds(gains: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's interval of a mean over seeds; None for fewer than three seeds."""
    return student_interval(gains) if len(gains) > 2 else None


def _points(interval: tuple[float, float] | None) -> str:
    """Format an interval in percentage points.

    >>> _points((-0.01, 0.125))
    '-1.0 to +12.5'
    """
    return f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}" if interval else ""


def read(path: Path) -> dict[str, Any]:
    """Return the stored runs, by arm and seed."""
    return dict(json.loads(path.read_text(encoding="utf-8"))["runs"]) if path.is_file() else {}


if __name__ == "__main__":
    main()
