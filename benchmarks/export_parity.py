"""Check that vLLM or llama.cpp reproduces `marft eval` with an exported team: same greedy text, same log-probs.

    python benchmarks/export_parity.py --vllm ENVIRONMENT/bin/python [--run runs/demo] [--tasks 100] [--merged]
    python benchmarks/export_parity.py --llama ENVIRONMENT/bin/python --run runs/sums

The script plays held-out tasks greedily with the run's checkpoint, as `marft eval --mode greedy` does, and exports the
run. A process in the other environment, without MARFT, loads the exported base. It answers each agent's chat with the
policy's adapter (`--merged`: with the policy's merged model). The process gets only the chat; its own template and
tokenizer produce the ids. The script prints a row per policy. It fails if a prompt's ids or a text differ, or a
log-prob by more than `--tolerance`. `answer_with_vllm.py` and `answer_with_llama.py` say what to install in the
environments.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serving import one_step

from marft.agents.prompt_messages import build_messages
from marft.common.types import Action, Episode
from marft.config.interfaces.channel import Message
from marft.config.run import CheckpointSettings, RunSettings
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import evaluate
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import CheckpointManager, load_policies
from marft.runs.export.exporter import export_run
from marft.runs.export.manifest import Export, load_export
from marft.runs.export.model_card import vllm_lora_rank
from marft.runs.run_folder import RunFolder

HERE = Path(__file__).parent
READERS = ("vllm", "llama")
Row = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    for name in READERS:
        where.add_argument(f"--{name}", help=f"Python of an environment set up as answer_with_{name}.py says")
    parser.add_argument("--run", type=Path, help="run to export; default: the demo, trained for one step")
    parser.add_argument("--checkpoint", default="last")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--merged", action="store_true", help="load merged models instead of adapters")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="maximum difference of a log-prob, in nats")
    arguments = parser.parse_args()
    reader, python = next((name, vars(arguments)[name]) for name in READERS if vars(arguments)[name])
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.open(arguments.run or one_step(Path(place)))
        played = greedily(folder, arguments.checkpoint, arguments.tasks)
        export = load_export(export_run(folder, arguments.checkpoint, Path(place) / "export", merged=arguments.merged))
        rows = [
            compared(job, cases, elsewhere(python, f"answer_with_{reader}.py", job, cases, Path(place)))
            for job, cases in jobs(export, folder.settings(), played, arguments.merged)
        ]
    print("\n".join(table(rows)))
    if not all(row["right"] and row["difference"] <= arguments.tolerance for of_job in rows for row in of_job):
        sys.exit("the other engine's answers differ from the played episodes")


def greedily(folder: RunFolder, checkpoint: str, tasks: int) -> list[Episode]:
    """Play held-out tasks as ``marft eval --mode greedy`` does."""
    run = folder.settings()
    with LocalRolloutRunner(run) as rollouts:
        found = CheckpointManager(folder, CheckpointSettings()).find(checkpoint)
        load_policies(found, rollouts.models, dict.fromkeys(run.trained_policies))
        rollouts.publish(0)
        return evaluate(rollouts, checkpoint, "greedy", read_tasks(run.environment, "test")[:tasks])[1]


def jobs(
    export: Export, run: RunSettings, played: Sequence[Episode], merged: bool
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each model to load: its description, and the chats for its policies."""
    models = export.manifest.models
    policies = {name: policy for name, policy in export.manifest.policies.items() if policy.kind == "adapter"}
    cases = [case for episode in played for case in chats(episode, run)]
    groups = (
        [[name] for name in policies]
        if merged
        else [[name for name, policy in policies.items() if policy.model == model] for model in models]
    )
    for names in groups:
        one = policies[names[0]]
        adapters = {} if merged else {name: str(export.path / policies[name].path) for name in names}
        job = {
            "model": str(export.path / (one.merged if merged else models[one.model].path)),
            "adapters": adapters,
            "rank": vllm_lora_rank(max(policies[name].rank for name in names)),
            "template_options": models[one.model].template_options,
        }
        yield job, [case for case in cases if case["policy"] in names]


def chats(episode: Episode, run: RunSettings) -> Iterator[dict[str, Any]]:
    """Yield each agent's prompt, as messages and as ids, and its answer."""
    agents, by_id = {agent.role: agent for agent in run.agents}, {action.id: action for action in episode.actions}
    for action in episode.actions:
        agent = agents[action.agent]
        seen = [Message(by_id[name].agent, by_id[name].message) for name in action.sees]
        yield {
            "policy": action.policy,
            "messages": build_messages(agent.profile, episode.task.prompt, seen),
            "prompt": action.prompt.tolist(),
            "most": agent.sampling.max_new_tokens,
            **_said(action),
        }


def _said(action: Action) -> dict[str, Any]:
    return {"tokens": action.tokens.tolist(), "text": action.text, "log_probs": action.log_probs.tolist()}


def elsewhere(python: str, script: str, job: Row, cases: Sequence[Row], folder: Path) -> dict[str, Any]:
    """Run the other engine in its own process, and return its answers."""
    asked, said = folder / "asked.json", folder / "said.json"
    asked.write_text(json.dumps({**job, "cases": cases}), encoding="utf-8")
    subprocess.run([python, str(HERE / script), str(asked), str(said)], check=True, stdout=subprocess.DEVNULL)
    table: dict[str, Any] = json.loads(said.read_text(encoding="utf-8"))
    return table


def compared(job: Row, cases: Sequence[Row], theirs: Row) -> list[dict[str, Any]]:
    """Return a row per policy: answers, matching answers, and the largest difference of a log-prob."""
    rows = []
    for policy in sorted({case["policy"] for case in cases}):
        mine = [number for number, case in enumerate(cases) if case["policy"] == policy]
        pairs = [(cases[number], theirs["said"][number]) for number in mine]
        same = [pair for pair in pairs if all(pair[0][key] == pair[1][key] for key in ("prompt", "tokens", "text"))]
        bases = [(cases[number], theirs["base"][number]) for number in mine if theirs["base"]]
        moved = sum(one["tokens"] != other["tokens"] for one, other in bases) if bases else "-"
        gaps = [abs(a - b) for one, other in same for a, b in zip(one["log_probs"], other["log_probs"], strict=True)]
        rows.append({
            "policy": policy, "as": "adapter" if job["adapters"] else "merged", "by": theirs["version"],
            "answers": len(pairs), "same": len(same), "tokens": len(gaps), "moved": moved,
            "difference": max(gaps, default=0.0), "right": len(same) == len(pairs),
        })  # fmt: skip
    return rows


def table(rows: Sequence[Sequence[Row]]) -> Iterator[str]:
    yield "| policy | loaded as | by | answers | the same | tokens | largest difference | base says another |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in (row for of_job in rows for row in of_job):
        yield (
            f"| `{row['policy']}` | {row['as']} | {row['by']} | {row['answers']} | {row['same']} | {row['tokens']} "
            f"| {row['difference']:.1e} | {row['moved']} |"
        )


if __name__ == "__main__":
    main()
