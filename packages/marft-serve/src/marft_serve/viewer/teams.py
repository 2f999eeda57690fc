"""Team members and their communication in a recorded step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marft.common.texts import one_line
from marft.runs.parquet import opened
from marft_serve.viewer.library import Run
from marft_serve.viewer.shelf import Indexed


def team_of(run: Run, file: Indexed | None) -> dict[str, Any]:
    """Return the team with its activity in a recorded step.

    ``share`` of an edge is the fraction of the receiver's actions that saw an action of the sender.

    Raises:
        ValueError: the file cannot be read.
    """
    acted, tokens, seen, saw = _counted(file) if file else (Counter[str](), Counter[str](), Counter(), Counter())
    known = [agent["role"] for agent in run.agents]
    others = [role for role in acted if role not in known]  # agents of a program, or of another version of the recipe
    strangers = [
        {"role": role, "policy": "", "trained": False, "answers": False, "instructions": ""} for role in others
    ]
    return {
        "step": file.of.step if file else None,
        "organization": run.organization,
        "agents": [
            {**agent, "actions": acted[agent["role"]], "tokens": tokens[agent["role"]]}
            for agent in [*run.agents, *strangers]
        ],
        "edges": [
            {"from": sender, "to": receiver, "count": count, "share": saw[sender, receiver] / acted[receiver]}
            for (sender, receiver), count in sorted(seen.items())
        ],
    }


def _counted(file: Indexed) -> tuple[Counter[str], Counter[str], Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Count actions and tokens by role, and visible actions by sender and receiver.

    For each pair of sender and receiver, the third count has the actions seen, and the fourth has the receiver's
    actions that saw any.
    """
    try:
        with opened(file.of.path) as source:
            table = pq.read_table(source, columns=["agent", "sees", "tokens"], page_checksum_verification=True)
        sizes = pc.fill_null(pc.list_value_length(table["tokens"]), 0).to_pylist()
        rows = zip(table["agent"].to_pylist(), table["sees"].to_pylist(), sizes, strict=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the episodes of {file.of.path}: {one_line(str(error))}") from error
    acted, tokens = Counter[str](), Counter[str]()
    seen, saw = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for agent, sees, size in rows:
        if agent is not None:
            acted[agent] += 1
            tokens[agent] += size
            senders = Counter(one.split("/")[1] for one in sees or () if one.count("/") == 2)
            seen.update({(sender, agent): count for sender, count in senders.items()})
            saw.update((sender, agent) for sender in senders)
    return acted, tokens, seen, saw
