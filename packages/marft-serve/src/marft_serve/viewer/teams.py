"""Team members and their communication in a recorded step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marft.common.texts import single_line
from marft.runs.parquet import open_parquet
from marft_serve.viewer.episode_index import FileIndex
from marft_serve.viewer.library import Run


def build_team(run: Run, file: FileIndex | None) -> dict[str, Any]:
    """Return the team with its activity in a recorded step.

    ``share`` of an edge is the fraction of the receiver's actions that saw an action of the sender.

    Raises:
        ValueError: the file cannot be read.
    """
    action_counts, token_counts, seen_counts, receiver_counts = (
        _count_activity(file) if file else (Counter[str](), Counter[str](), Counter(), Counter())
    )
    roles = [agent["role"] for agent in run.agents]
    unknown_roles = [
        role for role in action_counts if role not in roles
    ]  # agents of a program, or of another version of the recipe
    unknown_agents = [
        {"role": role, "policy": "", "trained": False, "answers": False, "instructions": ""} for role in unknown_roles
    ]
    return {
        "step": file.file.step if file else None,
        "organization": run.organization,
        "agents": [
            {**agent, "actions": action_counts[agent["role"]], "tokens": token_counts[agent["role"]]}
            for agent in [*run.agents, *unknown_agents]
        ],
        "edges": [
            {
                "from": sender,
                "to": receiver,
                "count": count,
                "share": receiver_counts[sender, receiver] / action_counts[receiver],
            }
            for (sender, receiver), count in sorted(seen_counts.items())
        ],
    }


def _count_activity(
    file: FileIndex,
) -> tuple[Counter[str], Counter[str], Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Count actions and tokens by role, and visible actions by sender and receiver.

    For each pair of sender and receiver, the third count has the actions seen, and the fourth has the receiver's
    actions that saw any.
    """
    try:
        with open_parquet(file.file.path) as source:
            table = pq.read_table(source, columns=["agent", "sees", "tokens"], page_checksum_verification=True)
        sizes = pc.fill_null(pc.list_value_length(table["tokens"]), 0).to_pylist()
        rows = zip(table["agent"].to_pylist(), table["sees"].to_pylist(), sizes, strict=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the episodes of {file.file.path}: {single_line(str(error))}") from error
    action_counts, token_counts = Counter[str](), Counter[str]()
    seen_counts, receiver_counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for agent, sees, size in rows:
        if agent is not None:
            action_counts[agent] += 1
            token_counts[agent] += size
            sender_counts = Counter(action_id.split("/")[1] for action_id in sees or () if action_id.count("/") == 2)
            seen_counts.update({(sender, agent): count for sender, count in sender_counts.items()})
            receiver_counts.update((sender, agent) for sender in sender_counts)
    return action_counts, token_counts, seen_counts, receiver_counts
