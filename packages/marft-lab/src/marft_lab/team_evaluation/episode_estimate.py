"""Estimated number of episodes before a comparison."""

from __future__ import annotations

from collections.abc import Mapping

from marft.config.run import RunSettings
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.policy_swaps import policy_permutations, swappable_policies
from marft_lab.team_evaluation.single_agent import build_variants, find_problem


def estimate_episodes(
    run: RunSettings, options: ComparisonOptions, weights: Mapping[str, str], checkpoint_count: int, tasks: int
) -> dict[str, int]:
    """Return the estimated number of episodes, by part.

    The number for a single agent is the maximum. The other numbers assume that every agent acts once with visible
    messages.

    Args:
        run: settings of the run.
        options: options of the comparison.
        weights: checkpoint of each trained policy.
        checkpoint_count: number of checkpoints for cross-play.
        tasks: number of tasks.
    """
    per_variant, agents, trained = tasks * options.samples, len(run.agents), len(weights)
    counts = {"team": per_variant}
    if "single" in options.parts and agents > 1 and not find_problem(run):
        max_attempts = tasks * max(options.attempts, options.samples)
        counts |= {f"single {name}": max_attempts for name in build_variants(run, weights)}
    if options.single is not None:
        counts[f"single {options.single}"] = tasks * max(options.attempts, options.samples)
    if "swap" in options.parts:
        counts["swap"] = per_variant * sum(len(policy_permutations(policies)) for policies in swappable_policies(run))
        matrices = 0 if trained < 2 or checkpoint_count < 2 else 1 if trained == 2 else trained
        counts["cross-play"] = per_variant * checkpoint_count**2 * matrices
    sender_count = 0 if run.team.writes_prompts else agents - 1
    if "leave-out" in options.parts:
        counts["leave-out"] = per_variant * (sender_count + trained)
    if "ablation" in options.parts and sender_count:
        counts["ablation"] = per_variant * (
            2 + (sender_count if sender_count > 1 else 0) + (sender_count if options.paraphrase else 0)
        )
    if "counterfactual" in options.parts:
        counts["counterfactual"] = tasks * agents * options.resamples
    return {name: count for name, count in counts.items() if count}


def format_estimate(counts: Mapping[str, int], tasks: int) -> str:
    """Format the estimate: ``about 480 episodes of 24 tasks: team 24, …``."""
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"about {sum(counts.values()):,} episodes of {tasks:,} held-out tasks ({parts}); single agents': at most"
