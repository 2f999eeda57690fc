"""Skipping of nodes without benefit for tasks of a context, if held-out success does not fall.

Skipping is our own method: MANGO's abstract skips updates of good agents instead (flows/rewording.py). Skipped nodes
stay in the network, and can be enabled again.
"""

from __future__ import annotations

from dataclasses import replace

from marft_lab.flows.evaluator import FlowEvaluator, bound_gain, check_known_outcomes
from marft_lab.flows.network import Change, FlowNetwork
from marft_lab.flows.rewording import OnChange


def skip_nodes(
    board: FlowEvaluator, network: FlowNetwork, tolerance: float, on_change: OnChange = lambda *_: None
) -> FlowNetwork:
    """Return the network with accepted skips, and all tried skips in its lineage.

    Each node of a context's likeliest path is left out once, together with earlier accepted skips. The skip is accepted
    if the lower bound of the gain (:func:`marft_lab.flows.evaluator.bound_gain`) is at least ``-tolerance``. The gain
    is relative to the whole path, not to the previous trial. So all skips of a context together cost at most
    ``tolerance``. Without any difference, acceptance needs about ``3 / tolerance`` held-out tasks of the context.

    Args:
        board: evaluator.
        network: flow network.
        tolerance: tolerated loss of success rate.
        on_change: callback for each tried change.

    Raises:
        ValueError: no held-out task has a known outcome.
    """
    contexts = board.tasks_by_context(network)
    baselines = {context: board.task_outcomes(network, tasks) for context, tasks in contexts.items()}
    check_known_outcomes({task: solved for outcomes in baselines.values() for task, solved in outcomes.items()})
    for context, tasks in contexts.items():
        baseline = baselines[context]
        if not baseline:
            continue  # no task of the context has a known outcome
        for name in board.active_nodes(network, context):
            before = network.skips.get(context, ())
            if len(board.active_nodes(network, context)) == 1:
                break  # at least one agent has to act
            candidate = replace(network, skips={**network.skips, context: (*before, name)})
            estimate = bound_gain(baseline, board.task_outcomes(candidate, tasks))
            accepted = estimate.low >= -tolerance
            change = Change(
                "skip", name, context, "", "", accepted, estimate.gain, estimate.low, estimate.high, estimate.tasks
            )
            network = replace(candidate if accepted else network, lineage=(*network.lineage, change))
            on_change(change, network)
    return network
