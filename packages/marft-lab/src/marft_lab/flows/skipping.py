"""Skipping of nodes without benefit for tasks of a context, if held-out success does not fall.

Skipping is our own method: MANGO's abstract skips updates of good agents instead (flows/improving.py). Skipped nodes
stay in the network, and can be enabled again.
"""

from __future__ import annotations

from dataclasses import replace

from marft_lab.flows.board import Board, bounded, refuse_unknown
from marft_lab.flows.improving import Tell
from marft_lab.flows.network import Change, FlowNetwork


def skipped(board: Board, network: FlowNetwork, tolerance: float, tell: Tell = lambda *_: None) -> FlowNetwork:
    """Return the network with accepted skips, and all tried skips in its lineage.

    Each node of a context's likeliest path is left out once, together with earlier accepted skips. The skip is accepted
    if the lower bound of the gain (:func:`marft_lab.flows.board.bounded`) is at least ``-tolerance``. The gain is
    relative to the whole path, not to the previous trial. So all skips of a context together cost at most
    ``tolerance``. Without any difference, acceptance needs about ``3 / tolerance`` held-out tasks of the context.

    Args:
        board: evaluator.
        network: flow network.
        tolerance: tolerated loss of success rate.
        tell: callback for each tried change.

    Raises:
        ValueError: no held-out task has a known outcome.
    """
    contexts = board.by_context(network)
    known = {context: board.outcomes(network, tasks) for context, tasks in contexts.items()}
    refuse_unknown({task: solved for outcomes in known.values() for task, solved in outcomes.items()})
    for context, tasks in contexts.items():
        whole = known[context]
        if not whole:
            continue  # no task of the context has a known outcome
        for name in board.acting(network, context):
            before = network.skips.get(context, ())
            if len(board.acting(network, context)) == 1:
                break  # at least one agent has to act
            tried = replace(network, skips={**network.skips, context: (*before, name)})
            found = bounded(whole, board.outcomes(tried, tasks))
            kept = found.low >= -tolerance
            change = Change(
                "skip", name, context, "", "", kept, found.gain, found.low, found.high, found.tasks
            )  # fmt: skip
            network = replace(tried if kept else network, lineage=(*network.lineage, change))
            tell(change, network)
    return network
