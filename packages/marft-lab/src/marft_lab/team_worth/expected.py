"""Estimated number of episodes before a comparison."""

from __future__ import annotations

from collections.abc import Mapping

from marft.config.run import RunSettings
from marft_lab.team_worth.options import Options
from marft_lab.team_worth.single import arms_of, problem_of
from marft_lab.team_worth.swaps import orders, swappable


def expected(
    run: RunSettings, options: Options, weights: Mapping[str, str], crossed: int, tasks: int
) -> dict[str, int]:  # fmt: skip
    """Return the estimated number of episodes, by part.

    The number for a single agent is the maximum. The other numbers assume that every agent acts once with visible
    messages.

    Args:
        run: settings of the run.
        options: options of the comparison.
        weights: checkpoint of each trained policy.
        crossed: number of checkpoints for cross-play.
        tasks: number of tasks.
    """
    each, agents, trained = tasks * options.samples, len(run.agents), len(weights)
    found = {"team": each}
    if "single" in options.parts and agents > 1 and not problem_of(run):
        most = tasks * max(options.attempts, options.samples)
        found |= {f"single {name}": most for name in arms_of(run, weights)}
    if options.single is not None:
        found[f"single {options.single}"] = tasks * max(options.attempts, options.samples)
    if "swap" in options.parts:
        found["swap"] = each * sum(len(orders(policies)) for policies in swappable(run))
        matrices = 0 if trained < 2 or crossed < 2 else 1 if trained == 2 else trained
        found["cross-play"] = each * crossed**2 * matrices
    talking = 0 if run.team.own_words else agents - 1
    if "leave-out" in options.parts:
        found["leave-out"] = each * (talking + trained)
    if "ablation" in options.parts and talking:
        found["ablation"] = each * (2 + (talking if talking > 1 else 0) + (talking if options.paraphrase else 0))
    if "counterfactual" in options.parts:
        found["counterfactual"] = tasks * agents * options.resamples
    return {name: count for name, count in found.items() if count}


def sentence(found: Mapping[str, int], tasks: int) -> str:
    """Format the estimate: ``about 480 episodes of 24 tasks: team 24, …``."""
    parts = ", ".join(f"{name} {count:,}" for name, count in found.items())
    return f"about {sum(found.values()):,} episodes of {tasks:,} held-out tasks ({parts}); single agents': at most"
