"""Train agents as a chain, and play them in other organizations and with fewer or more agents.

    python benchmarks/reorganization.py                   # runs what is missing; resumes
    python benchmarks/reorganization.py --only-table      # from stored results

Teams of n agents add sums of n terms (studies/populations.py). They train as a chain in which each agent sees the
previous message. The preset is ``marft-team`` with 60 steps of 32 episodes, as in large_teams.py. Then the same
weights, and the untuned base, play in these forms:

- star: the actor sees every reasoner, and reasoners see only the task.
- tree: each reasoner sees two others, and the actor sees the root.
- debate: the actor judges.
- mixture of agents.
- one reasoner fewer, one more, and chains of 1 to 24 agents. The trained reasoners take the additional seats in turn.

Teams of the same size are also trained as a tree and as a debate from the beginning. All teams play the same held-out
tasks, sampled as in training. Differences are paired by task over all seeds (evaluation/ratios.py), and the table also
has the range over seeds. Writes results/reorganization.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import machine
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from recording import tidy
from studies.populations import team_of

from marft.cli.handlers import silence_transformers
from marft.common import atomic
from marft.config import RunSettings, to_toml
from marft.config.team_changes import TeamChange, apply_team_change, describe_team_change
from marft.evaluation.ratios import PairedDifference, Ratio, compare_ratios
from marft.evaluation.session import BASE, EvaluationPlan, StorageOptions, evaluate_checkpoints
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

NAME = "reorganization"
SIZES = (4, 2)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # numbers of agents in a chain
CHAIN = "chain"
THERE = ("tree", "debate")  # forms that are also trained from the beginning
Runs = Mapping[str, Mapping[str, Any]]


@cache
def roles_of(size: int) -> tuple[str, ...]:
    return tuple(agent.role for agent in team_of(size, []).agents)


def reasoners(size: int, count: int) -> list[dict[str, str]]:
    """Return ``count`` reasoners for a team of ``size``: the trained ones, then copies of them in turn."""
    trained = roles_of(size)[:-1]
    return [
        {"role": trained[n]} if n < len(trained) else {"role": f"more_{n + 1}", "like": trained[n % len(trained)]}
        for n in range(count)
    ]


def forms(size: int) -> dict[str, dict[str, Any]]:
    """Return the other teams' tables by form, for a chain of ``size``. With two agents, star and tree are chains."""
    names = [seat["role"] for seat in reasoners(size, size - 1)]
    children = {one: names[2 * n + 1 : 2 * n + 3] for n, one in enumerate(names)}
    graphs = {"star": {"actor": names}, "tree": {**children, "actor": names[:1]}} if len(names) > 1 else {}
    found: dict[str, dict[str, Any]] = {
        **{name: {"team": {"organization": "graph", "visible": sees}} for name, sees in graphs.items()},
        "debate": {"team": {"organization": "debate", "judge": "actor"}},
        "mixture": {"team": {"organization": "mixture-of-agents"}},
    }
    for count in COUNTS:
        if count != size:
            found[f"{count} agents"] = {"agents": [*reasoners(size, count - 1), {"role": "actor"}]}
    return found


def run_of(form: str, size: int, seed: int, arguments: argparse.Namespace) -> RunSettings:
    """Return the recipe of a team that trains in a form."""
    words = ["--algorithm.name", "marft-team", "--training.steps", str(arguments.steps), "--seed", str(seed)]
    words += ["--output", str(arguments.output / NAME), "--name", f"{form}-{size}-{seed}"]
    run = team_of(size, words)
    return run if form == CHAIN else apply_team_change(run, TeamChange(form, forms(size)[form]))


def trained(run: RunSettings) -> RunFolder:
    """Train the run to its end, resuming it."""
    folder = RunFolder(Path(run.output) / run.name)
    started = folder.config_path.exists()
    if started and folder.config_path.read_text(encoding="utf-8") != to_toml(run):
        raise SystemExit(f"{folder.path} was trained with other settings; delete it, or use another --output")
    train(run, folder if started else RunFolder.create(run), resume=started)
    return folder


def played(run: RunSettings, folder: RunFolder, into: TeamChange | None, tasks: int) -> dict[str, dict[str, float]]:
    """Return which tasks the base and the last checkpoint solve, in their own team or in another one."""
    team = apply_team_change(run, into) if into else run
    found = evaluate_checkpoints(
        team,
        folder,
        EvaluationPlan((BASE, "last"), ("sampled",), tasks, reorganized=describe_team_change(run, team, into)),
        lambda _=None: None,
        storage=StorageOptions(folder.evaluations),
    )
    return {
        "untuned" if one.checkpoint == BASE else "trained": {task: float(won) for task, won in one.outcomes.items()}
        for one in found
    }


def measured(size: int, seed: int, runs: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Measure everything that is missing for a size and a seed, and store each result at once."""

    def keep(key: str, found: Mapping[str, Any]) -> None:
        runs[key] = {"steps": arguments.steps, "tasks": arguments.tasks, **found}
        whole = {"machine": machine.describe(), "runs": dict(sorted(runs.items()))}
        atomic.write_file(arguments.results / f"{NAME}.json", json.dumps(whole, indent=1) + "\n")
        print(f"{key}: {mean(runs[key].get('untuned', {})):.1%} → {mean(runs[key]['trained']):.1%}", flush=True)

    run = run_of(CHAIN, size, seed, arguments)
    for form, tables in {CHAIN: {}, **forms(size)}.items():
        if form_key(form, size, seed) not in runs:
            into = TeamChange(form, tables) if tables else None
            keep(form_key(form, size, seed), played(run, trained(run), into, arguments.tasks))
    for form in [form for form in THERE if form in forms(size)] if arguments.there else ():
        key = form_key(form, size, seed, there=True)
        if key not in runs:
            own = run_of(form, size, seed, arguments)
            keep(key, played(own, trained(own), None, arguments.tasks))


def form_key(form: str, size: int, seed: int, there: bool = False) -> str:
    return f"{size}/{form}{' from the beginning' if there else ''}/{seed}"


def mean(outcomes: Mapping[str, float]) -> float:
    return float(np.mean([*outcomes.values()])) if outcomes else float("nan")


def pooled(runs: Runs, keys: Sequence[str], when: str) -> dict[str, Ratio]:
    """Return how many of the seeds' teams solved each task."""
    found: dict[str, list[float]] = {}
    for key in keys:
        for task, won in runs[key][when].items():
            found.setdefault(task, []).append(won)
    return {task: Ratio(sum(each), float(len(each))) for task, each in found.items()}


def against(runs: Runs, after: Sequence[str], before: Sequence[str], when: str) -> PairedDifference | None:
    """Return the difference between two teams on the same tasks, over the seeds of both."""
    return compare_ratios(pooled(runs, before, when), pooled(runs, after, "trained"))


def points(difference: PairedDifference | None) -> str:
    """Format a difference in points: ``+12.0 (+8.1 to +15.9)``."""
    if difference is None:
        return ""
    ends = difference.interval
    return f"{100 * difference.gain:+.1f}" + (f" ({100 * ends[0]:+.1f} to {100 * ends[1]:+.1f})" if ends else "")


def seeds_of(runs: Runs, form: str, size: int, there: bool = False) -> list[int]:
    return [seed for seed in range(100) if form_key(form, size, seed, there) in runs]


def line(runs: Runs, form: str, size: int) -> str:
    """Return a form's row: the share that the trained chain's agents solve, compared with three other teams."""
    seeds = [seed for seed in seeds_of(runs, form, size) if form_key(CHAIN, size, seed) in runs]
    here = [form_key(form, size, seed) for seed in seeds]
    chain = [form_key(CHAIN, size, seed) for seed in seeds]
    after, untuned = (float(np.mean([mean(runs[key][when]) for key in here])) for when in ("trained", "untuned"))
    kept = after / float(np.mean([mean(runs[key]["trained"]) for key in chain]))
    each = [mean(runs[key]["trained"]) for key in here]
    both = [seed for seed in seeds_of(runs, form, size, there=True) if seed in seeds]
    there = against(
        runs, [form_key(form, size, seed) for seed in both], [form_key(form, size, seed, True) for seed in both],
        "trained",
    )  # fmt: skip
    cells = [
        f"{size}", form, f"{len(seeds)}", f"{untuned:.1%}", f"{after:.1%}", f"{min(each):.1%} to {max(each):.1%}",
        f"{kept:.0%}", points(against(runs, here, chain, "trained")) if form != CHAIN else "",
        points(against(runs, here, here, "untuned")), points(there),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def table(runs: Runs) -> str:
    titles = [
        "trained as a chain of", "used as", "seeds", "untuned, used so", "trained, used so", "seeds from … to", "kept",
        "against the chain, points (95 %)", "against untuned", "against trained so from the beginning",
    ]  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "| ---: | --- |" + " ---: |" * (len(titles) - 2)]
    for size in SIZES:
        lines += [line(runs, form, size) for form in (CHAIN, *forms(size)) if seeds_of(runs, form, size)]
    steps = sorted({(run["steps"], run["tasks"]) for run in runs.values()})
    said = "; ".join(f"{some} steps of training, {tasks} held-out tasks" for some, tasks in steps)
    return "\n".join(lines) + f"\n\n{said}.\n"


def plot(runs: Runs) -> Figure:
    """Plot the solved share by number of agents in the chain, trained and untuned, and by form."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    chains, others = figure.subplots(1, 2, sharey=True)
    for colour, size in zip(("C0", "C1"), SIZES, strict=True):
        for when, style in (("trained", "-o"), ("untuned", "--")):
            found = {n: shares(runs, CHAIN if n == size else f"{n} agents", size, when) for n in COUNTS}
            some = {n: shares_ for n, shares_ in found.items() if shares_}
            label = f"chain of {size}, {when}"
            chains.plot([*some], [np.mean(each) for each in some.values()], style, color=colour, label=label, ms=3)
        names = [CHAIN, "star", "tree", "debate", "mixture"]
        for place, form in enumerate(names):
            each = shares(runs, form, size, "trained")
            others.plot([place] * len(each), each, "o", color=colour, alpha=0.7)
    chains.set_xscale("log", base=2)
    chains.set_xticks(COUNTS, [str(n) for n in COUNTS])
    chains.set_xlabel("agents that play", fontsize=9)
    others.set_xticks(range(5), names)
    others.set_xlabel("what the trained chain is used as, a dot a seed", fontsize=9)
    chains.set_ylabel("held-out tasks solved", fontsize=9)
    chains.legend(frameon=False, fontsize=8)
    tidy(chains)
    tidy(others)
    return figure


def shares(runs: Runs, form: str, size: int, when: str) -> list[float]:
    return [mean(runs[form_key(form, size, seed)][when]) for seed in seeds_of(runs, form, size)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks per evaluation")
    parser.add_argument("--no-there", dest="there", action="store_false", help="train only chains")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--only-table", action="store_true", help="only write the table, from stored results")
    arguments = parser.parse_args()
    path = arguments.results / f"{NAME}.json"
    runs: dict[str, Any] = dict(json.loads(path.read_text())["runs"]) if path.is_file() else {}
    others = [k for k, one in runs.items() if (one["steps"], one["tasks"]) != (arguments.steps, arguments.tasks)]
    if others and not arguments.only_table:
        raise SystemExit(f"{path} holds {others[0]} with other steps or tasks; delete it, or use another --results")
    silence_transformers()
    for seed in arguments.seeds if not arguments.only_table else ():
        for size in arguments.sizes:
            measured(size, seed, runs, arguments)
    path.with_suffix(".md").write_text(table(runs), encoding="utf-8")
    with rc_context({"svg.hashsalt": NAME}):
        plot(runs).savefig(path.with_suffix(".svg"), metadata={"Date": None})
    print(table(runs))


if __name__ == "__main__":
    main()
