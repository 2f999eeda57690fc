"""Steps that add nothing are skipped: a node is passed by for tasks of a context, where held-out success does not fall.

This is ours: what MANGO's abstract skips are updates of agents that are good already (flows/improving.py). What is
skipped stays in the network, and can be played again.
"""

from __future__ import annotations

from dataclasses import replace

from marft_lab.flows.board import Board, bounded, refuse_unknown
from marft_lab.flows.improving import Tell
from marft_lab.flows.network import Change, FlowNetwork


def skipped(board: Board, network: FlowNetwork, tolerance: float, tell: Tell = lambda *_: None) -> FlowNetwork:
    """The network that passes by what its contexts do without, and all tries in its lineage.

    Each node of a context's likeliest path is left out once, beside those that have gone before; it stays out where the
    lower bound of what is gained (:func:`marft_lab.flows.board.bounded`), against the whole path and not against the
    last try, is no less than ``-tolerance``. So all skips of a context together cost no more. Where nothing differs
    that takes about ``3 / tolerance`` held-out tasks of the context: fewer say too little.
    """
    contexts = board.by_context(network)
    known = {context: board.outcomes(network, tasks) for context, tasks in contexts.items()}
    refuse_unknown({task: solved for outcomes in known.values() for task, solved in outcomes.items()})
    for context, tasks in contexts.items():
        whole = known[context]
        if not whole:
            continue  # of none of its tasks is anything known
        for name in board.acting(network, context):
            before = network.skips.get(context, ())
            if len(board.acting(network, context)) == 1:
                break  # somebody has to act
            tried = replace(network, skips={**network.skips, context: (*before, name)})
            found = bounded(whole, board.outcomes(tried, tasks))
            kept = found.low >= -tolerance
            change = Change(
                "skip", name, context, "", "", kept, found.gain, found.low, found.high, found.tasks
            )  # fmt: skip
            network = replace(tried if kept else network, lineage=(*network.lineage, change))
            tell(change, network)
    return network
