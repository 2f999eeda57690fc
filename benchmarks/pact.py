"""Compare six ways of passing messages on, in two teams, before and after training.

    python benchmarks/pact.py                                    # three seeds of twelve arms: 2.5 hours of one core
    python benchmarks/pact.py --seeds 1 --strategies raw rules
    python benchmarks/pact.py --only-table                       # from stored results, with a flawless team

Readers tell an answerer what happened to a thing and where people are (`whereabouts.py`). The answerer has seen
nothing itself. Readers act in a pipeline, or with split evidence. There are six strategies:

- *raw*: the message as it is.
- *last*: only the newest message.
- *summary*: a scribe's summary.
- *structured*: what was done, without the resulting state.
- *rules*: PACT's record of both (arXiv:2606.05304), which rules extract from the text.
- *model*: the same record, written by a scribe.

Scribes are agents of the team: their tokens count, and they are trained. Writes results/pact.json, .md and .svg.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recording import parser_of, save_plot, save_rows, stored_rows, tidy
from warm_up import BATCH, Turn, digest, warm_up
from whereabouts import ANSWERER, DID, FIELDS, INSTRUCTIONS, READERS, SCRIBES, Reading

from marft.cli.handlers import silence_transformers
from marft.common import atomic
from marft.config.load import parse_recipe
from marft.config.models import ModelSettings
from marft.config.run import RunSettings
from marft.evaluation.intervals import wilson_interval
from marft.evaluation.session import BASE, EvaluationPlan, evaluate_checkpoints
from marft.evaluation.trajectory_metrics import aggregate_ratios
from marft.evaluation.trajectory_metrics import compute_ratios as of_episode
from marft.inference.renderer import ChatRenderer
from marft.models.tokenizer_format import load_format
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_lab.scripted_team import ScriptedTeam, ScriptedTurn

BASE_MODEL = "tiny-memory"
WARM_UP, FLAWLESS, SKILL, EPISODES = 3000, 0.7, 0.65, 600  # steps; flawless share; then skill; episodes per team
ANSWERS = 3  # repetitions of an answerer's turn, which is the shortest and the hardest
STEPS = 20
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "raw": {"name": "raw"},
    "last": {"name": "last"},
    "summary": {"name": "raw"},
    "structured": {"name": "record", "fields": {DID: FIELDS[DID]}, "fallback": "none"},
    "rules": {"name": "record", "fields": FIELDS, "fallback": "none"},
    "model": {"name": "raw"},
}
WRITTEN = {"summary": "summary", "model": "record"}  # strategies with a scribe, and its instructions
WHEN = ("before", "after")
KINDS = {"Where is": "where it is", "Who bought": "who bought it"}


def recipe(topology: str, strategy: str, seed: int, model: str, output: Path) -> RunSettings:
    """Return the recipe of one arm."""
    readers, scribed = READERS[topology], strategy in WRITTEN
    heard = [SCRIBES[reader] if scribed else reader for reader in readers]
    sees = {ANSWERER: heard} | ({readers[1]: heard[:1]} if topology == "pipeline" else {})
    told = dict.fromkeys(readers, ("reader", INSTRUCTIONS["reader"], 112))
    if scribed:
        sees |= {SCRIBES[reader]: [reader] for reader in readers}
        told |= {SCRIBES[reader]: ("scribe", INSTRUCTIONS[WRITTEN[strategy]], 64) for reader in readers}
    told[ANSWERER] = ("answerer", INSTRUCTIONS["answerer"], 32)
    return parse_recipe(
        {
            "name": f"{topology}-{strategy}-{seed}", "seed": seed, "output": str(output),
            "models": {"base": {"path": model}},
            "policies": {
                policy: {"model": "base", "lora": {"rank": 8, "alpha": 16}}
                for policy in dict.fromkeys(policy for policy, _, _ in told.values())
            },
            "agents": [
                {
                    "role": role, "policy": policy, "instructions": text, "answers": role == ANSWERER,
                    "sampling": {"max_new_tokens": longest, "temperature": 0.5},
                }
                for role, (policy, text, longest) in told.items()
            ],
            "team": {"organization": "graph", "visible": sees}, "channel": STRATEGIES[strategy],
            "environment": {"name": "whereabouts:Whereabouts", "topology": topology},
            "algorithm": {"name": "marft", "level": "action", "optimizer": {"learning_rate": 5e-4}},
            "rollout": {"tasks_per_step": 16, "samples_per_task": 4}, "training": {"steps": STEPS},
        }
    )  # fmt: skip


def demonstrations(renderer: ChatRenderer) -> Callable[[], Turn]:
    """Return a sampler of scripted turns of all twelve teams, first without slips."""
    flawless, mixed = ([*turns(renderer, skill)] for skill in (1.0, SKILL))
    random, made = Random(0), 0

    def one() -> Turn:
        nonlocal made
        made += 1
        return random.choice(flawless if made <= FLAWLESS * WARM_UP * BATCH else mixed)

    return one


def turns(renderer: ChatRenderer, skill: float) -> Iterator[Turn]:
    """Yield the turns of some episodes of each team, on tasks outside all splits."""
    format = load_format(ModelSettings(path=BASE_MODEL))
    for topology, strategy in product(READERS, STRATEGIES):
        spoken: list[ScriptedTurn] = []
        run = recipe(topology, strategy, 0, BASE_MODEL, Path())
        world: Any = run.environment
        with ScriptedTeam(run, Reading(skill), {"base": format}, on_turn=spoken.append) as team:
            tasks = list(islice(world.demonstrations(), EPISODES))
            assert all(episode.is_scored for episode in team.play(tasks))
        for one in spoken:
            yield from [Turn.of(one, renderer)] * (ANSWERS if one.key.agent == ANSWERER else 1)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--only-table", action="store_true", help="only write the table, from finished runs")
    arguments = parser.parse_args()
    output = arguments.output / "pact"
    model = output / "model"
    if not model.exists() and not arguments.only_table:
        output.mkdir(parents=True, exist_ok=True)
        warm_up(model, ModelSettings(path=BASE_MODEL), demonstrations, WARM_UP)
    silence_transformers()
    rows = []
    stored = {(row["topology"], row["strategy"], row["seed"]): row for row in stored_rows(arguments.results, "pact")}
    for seed, topology, strategy in product(range(arguments.seeds), READERS, arguments.strategies):
        path = output / f"{topology}-{strategy}-{seed}.json"
        if path.is_file():
            rows.append(atomic.read_json(path))
        elif known := stored.get((topology, strategy, seed)):
            if model.exists() and known["checkpoint"] != digest(model):
                raise SystemExit(f"{arguments.results}: the stored rows are of another model; use another --results")
            rows.append(known)
        elif not arguments.only_table:
            run = recipe(topology, strategy, seed, str(model), output)
            rows.append({"topology": topology, "strategy": strategy, **measured(run, arguments.tasks, digest(model))})
            atomic.write_file(path, json.dumps(rows[-1]) + "\n")
            shares = ", ".join(f"{when} {share(rows[-1][when], KINDS):.1%}" for when in WHEN)
            print(f"{run.name}: {shares} ({rows[-1]['wall_seconds']:.0f} s)", flush=True)
    asked = {(row["topology"], row["strategy"], row["seed"]) for row in rows}
    rows += [row for arm, row in stored.items() if arm not in asked]
    tables = [*ceilings(), *(("", *table(rows), "", *by_kind(rows)) if rows else ())]
    save_rows(arguments.results, "pact", rows, "\n".join(tables) + "\n")
    if rows:
        save_plot(arguments.results, "pact", front(rows))


def measured(run: RunSettings, tasks: int, checkpoint: str) -> dict[str, Any]:
    """Train a run to its end; return the held-out tasks solved by kind of question, before and after."""
    began, folder = time.perf_counter(), RunFolder(Path(run.output) / run.name)
    started = folder.is_run()
    train(run, folder if started else RunFolder.create(run), resume=started)
    seconds = time.perf_counter() - began
    evaluations = evaluate_checkpoints(
        run, folder, EvaluationPlan((BASE, "last"), ("sampled",), tasks), lambda _=None: None
    )
    world: Any = run.environment
    kinds = {task.id: task.data["kind"] for task in world.tasks("test")}
    row: dict[str, Any] = {"seed": run.seed, "checkpoint": checkpoint, "wall_seconds": seconds}
    for one in evaluations:
        of = Counter(kinds[task] for task in one.outcomes)
        right = Counter(kinds[task] for task, outcome in one.outcomes.items() if outcome)
        row[WHEN[one.checkpoint != BASE]] = {
            "kinds": {kind: [right[kind], of[kind]] for kind in KINDS},
            **{name: one.metrics[name] for name in ("cost_tokens", "message_tokens")},
        }
    return row


def share(found: Mapping[str, Any], kinds: Iterable[str]) -> float:
    """Return the share of solved tasks among tasks of these kinds."""
    right, of = (sum(found["kinds"][kind][place] for kind in kinds) for place in (0, 1))
    return float(right / of)


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line per arm: solved tasks and their cost, before and after."""
    yield "| team | messages | could solve, % | before, % | after, % | each seed, % | tokens an episode | of messages |"
    yield "| --- | --- | ---: | ---: | --- | --- | --- | --- |"
    for topology, strategy, mine in arms(rows):
        right, of = (sum(row["after"]["kinds"][kind][n] for row in mine for kind in KINDS) for n in (0, 1))
        low, high = wilson_interval(right, of)
        before, after = (100 * np.mean([share(row[when], KINDS) for row in mine]) for when in WHEN)
        each = ", ".join(f"{100 * share(row['after'], KINDS):.0f}" for row in mine)
        spent = [
            " → ".join(f"{np.mean([row[when][name] for row in mine]):.0f}" for when in WHEN)
            for name in ("cost_tokens", "message_tokens")
        ]
        can = 100 * share(ceiling(topology, strategy), KINDS)
        cells = [
            topology,
            strategy,
            f"{can:.0f}",
            f"{before:.1f}",
            f"{after:.1f} ({100 * low:.1f} to {100 * high:.1f})",
        ]
        yield f"| {' | '.join([*cells, each, *spent])} |"


def ceilings() -> Iterator[str]:
    """Yield a line per arm: the tasks of each kind that a flawless team solves, as the limit of its messages."""
    heads = ["team", "messages", *(f"{name}, %" for name in KINDS.values()), "tokens an episode", "of messages"]
    yield f"| {' | '.join(heads)} |"
    yield "| --- | --- |" + " ---: |" * (len(KINDS) + 2)
    for topology, strategy in product(READERS, STRATEGIES):
        found = ceiling(topology, strategy)
        cells = [f"{100 * share(found, [kind]):.0f}" for kind in KINDS]
        cells += [f"{found[name]:.0f}" for name in ("cost_tokens", "message_tokens")]
        yield f"| {' | '.join([topology, strategy, *cells])} |"


def by_kind(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line per arm: the tasks of each kind solved before and after training, and by a flawless team."""
    yield f"| team | messages | {' | '.join(f'{name}, %' for name in KINDS.values())} |"
    yield "| --- | --- |" + " --- |" * len(KINDS)
    for topology, strategy, mine in arms(rows):
        cells = []
        for kind in KINDS:
            before, after = (100 * np.mean([share(row[when], [kind]) for row in mine]) for when in WHEN)
            cells.append(f"{before:.0f} → {after:.0f} of {100 * share(ceiling(topology, strategy), [kind]):.0f}")
        yield f"| {' | '.join([topology, strategy, *cells])} |"


def arms(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Yield each arm with its rows."""
    for topology, strategy in product(READERS, STRATEGIES):
        mine = [row for row in rows if (row["topology"], row["strategy"]) == (topology, strategy)]
        if mine:
            yield topology, strategy, mine


@cache
def ceiling(topology: str, strategy: str, tasks: int = 500) -> dict[str, Any]:
    """Return the tasks solved by a script without slips, which is the limit of what the messages carry."""
    run = recipe(topology, strategy, 0, BASE_MODEL, Path())
    world: Any = run.environment
    kinds = {kind: [0, 0] for kind in KINDS}
    with ScriptedTeam(run, Reading(1.0), {"base": load_format(ModelSettings(path=BASE_MODEL))}) as team:
        episodes = list(team.play(world.tasks("test")[:tasks]))
    for episode in episodes:
        kinds[episode.task.data["kind"]][0] += bool(episode.success)
        kinds[episode.task.data["kind"]][1] += 1
    return {
        "kinds": kinds,
        **aggregate_ratios(of_episode(episode, [agent.role for agent in run.agents]) for episode in episodes),
    }


def front(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot accuracy over tokens: a color per strategy, from before to after, and the front of the best."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, topology in zip(figure.subplots(1, len(READERS), sharey=True), READERS, strict=True):
        reached = []
        for number, strategy in enumerate(STRATEGIES):
            mine = [row for row in rows if (row["topology"], row["strategy"]) == (topology, strategy)]
            if not mine:
                continue
            ends = [
                (
                    np.mean([row[when]["cost_tokens"] for row in mine]),
                    np.mean([share(row[when], KINDS) for row in mine]),
                )
                for when in WHEN
            ]
            reached.append(ends[1])
            axes.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": "->", "color": f"C{number}", "alpha": 0.5})
            axes.plot(*ends[0], "o", color=f"C{number}", fillstyle="none")
            axes.plot(*ends[1], "o", color=f"C{number}", label=strategy)
            seeds = [(row["after"]["cost_tokens"], share(row["after"], KINDS)) for row in mine]
            axes.plot(*zip(*seeds, strict=True), ".", color=f"C{number}", alpha=0.5)
        best = [one for one in sorted(reached) if all(one[1] > other[1] for other in reached if other[0] < one[0])]
        axes.plot(*zip(*best, strict=True), color="0.6", lw=1, ls="--", zorder=0)
        axes.set_title(topology, fontsize=10, loc="left")
        axes.set_xlabel("tokens read and written in an episode")
        axes.set_ylim(0, 1)
        tidy(axes)
    figure.axes[0].set_ylabel("questions answered, held out")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
