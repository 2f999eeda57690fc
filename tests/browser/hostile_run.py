"""A run of which every text would like to be markup or code: names, roles, messages, metrics, errors, what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from marft.common.types import Action, ActionCredit, Episode, Observation, Task, ToolCall, Transition
from marft.config.load import to_toml
from marft.evaluation import report
from marft.runs.credit_files import write_credit
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import MARKER, RunFolder
from marft_lab.team_evaluation.counterfactual import ActionContribution, AgentContribution, CounterfactualResult
from marft_lab.team_evaluation.report import build_timeline, write_report
from marft_lab.team_evaluation.scores import MetricValue, ResultRow
from marft_lab.team_evaluation.session import TeamEvaluation
from tests.episodes import make_action
from tests.helpers import settings, write_evaluation

MARKUP = (
    "<script>window.pwned=1</script>", '<img src=x onerror="window.pwned=2">', "</script><svg onload=window.pwned=3>",
    "</title></style></textarea><iframe srcdoc=\"<script>parent.pwned=4</script>\">", "--><script>window.pwned=5</script>",
    "]]><script>window.pwned=6</script>", '"onmouseover="window.pwned=7" x="', "'onfocus='window.pwned=8' autofocus='",
    "<a href=\"javascript:window.pwned=9\">go</a> [go](javascript:window.pwned=10)", "${window.pwned=11} {{window.pwned=12}}",
    "<svg><animate onbegin=window.pwned=13 attributeName=x dur=1s></svg>", "<details open ontoggle=window.pwned=14>",
    '<meta http-equiv="refresh" content="0;url=data:text/html,<script>opener.pwned=15</script>">', "<base href=//evil.example>",
    "<style>@import url(//evil.example/x.css)</style>", "javascript:window.pwned=16",
)  # fmt: skip
BIDI = "\u202egpj.exe\u202c \u2066\u2067<b>\u2069 \u200f\u061c"
ALL = " ".join([*MARKUP, BIDI])
NAME = "<img src=x onerror=window.pwned=17>"  # of files too: without a slash
ROLES = (f"{NAME}planner", "javascript:window.pwned=18", f'"><svg onload=window.pwned=19>{BIDI}')
LONG = "W" * 1_000_000  # a word


def make_hostile(output: Path) -> RunFolder:
    """A run of one recorded step with everything that the viewer and the pages show."""
    folder = RunFolder(output / f"{NAME}run")
    folder.path.mkdir()
    (folder.path / "run.json").write_text(MARKER)
    folder.config_path.write_text(_recipe(output), encoding="utf-8")
    episodes = [_episode(sample) for sample in range(2)]
    failed = replace(_episode(2), status="failed", error=f"{ALL} at {NAME}.py", success=None)
    write_episodes(folder.episodes / "step_000001.parquet", [*episodes, failed])
    half = np.array([0.5])
    write_credit(
        folder.path / "credit" / "step_000001.parquet",
        [ActionCredit(e, a, ALL, half, half, half, half, half, 0.5) for e in episodes for a in e.actions],
    )
    metrics = {"reward": 0.5, f"rewards/{ALL}": 0.5, ALL: 0.1, "episodes_dropped": 1, f"guards/{ALL}": 1}
    metrics |= {f"agents/{role}/{name}": 0.5 for role in ROLES for name in ("kl", NAME)}
    rows = [{"step": step} | {name: value * step for name, value in metrics.items()} for step in range(1, 8)]
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    _evaluated(folder, episodes)
    report.write_report(folder)
    _worth(folder, episodes)
    (folder.evaluations / f"{NAME}bad.json").write_text(f"{{{ALL}")  # of which the report would name nothing but this
    return folder


def _recipe(output: Path) -> str:
    """Written by hand: no recipe may have such names."""
    head = to_toml(settings("tiny", output)).split("[[agents]]")[0]
    seats = [
        f"[[agents]]\nrole = {json.dumps(role)}\npolicy = {json.dumps(NAME)}\nanswers = {str(role == ROLES[-1]).lower()}\n"
        f"instructions = {json.dumps(ALL)}\n"
        for role in ROLES
    ]
    whole = f"{head}\n[team]\norganization = {json.dumps(ALL)}\n" if "[team]" not in head else head
    needed = '[algorithm]\nname = "<b>marft</b>"\nlevel = "<i>action</i>"\n[training]\nsteps = 9\n'
    kept = "" if "[training]" in whole and "[algorithm]" in whole else needed
    return "\n".join([whole, kept, *seats])


def _episode(sample: int) -> Episode:
    actions: list[Action] = []
    for index, role in enumerate(ROLES):
        seen = tuple(action.id for action in actions)
        made = make_action(
            role, index=index, sees=seen, task=f"{NAME}{BIDI}", sample=sample, tokens=(40, 41, 42, 43),
            text=f"{ALL} {LONG if not index and not sample else ''}", policy=NAME,
        )  # fmt: skip
        calls = (ToolCall(NAME, json.dumps({"code": ALL}), ALL, seconds=0.1), ToolCall("", ALL, ALL, True))
        actions.append(replace(made, calls=calls, started=index, ended=index + 0.9, finish=ALL))
    earned = Transition(Observation(ALL), float(sample), dict.fromkeys(ROLES, 0.1), {ALL: 1.0, NAME: -0.5})
    return Episode(
        Task(f"{NAME}{BIDI}", ALL),
        "train/0",
        sample,
        tuple(actions),
        "terminated",
        (earned,),
        bool(sample),
        seconds=3.0,
    )


def _evaluated(folder: RunFolder, episodes: list[Episode]) -> None:
    example = {"task": NAME, "observation": ALL, "reward": 1.0, "success": True,
               "actions": [{"agent": ROLES[0], "step": 0, "calls": [ALL], "text": ALL}]}  # fmt: skip
    table = {
        "checkpoint": NAME, "mode": "sampled", "shuffled_messages": False, "tasks": 2, "accuracy": 0.5,
        "interval": [0.1, 0.9], "reward": 0.5, "reward_interval": [0.1, 0.9], "passes": {NAME: [0.5, [0.1, 0.9]]},
        "measured": {NAME: {"cost_tokens": [9.0, 1.0], f"agents/{ROLES[0]}/cost_tokens": [9.0, 1.0]}},
        "fields": {ALL: {NAME: ALL}}, "outcomes": {NAME: True}, "examples": [example],
    }  # fmt: skip
    write_evaluation(folder, table, f"{NAME}-sampled")
    write_evaluation(folder, {**table, "checkpoint": "base"}, "base-sampled")
    write_episodes(folder.evaluations / f"{NAME}-sampled.parquet", episodes)


def _worth(folder: RunFolder, episodes: list[Episode]) -> None:
    value = MetricValue(0.5, (0.1, 0.9), -0.5, (-0.9, -0.1))
    rows = [
        ResultRow(part, f"{ALL} {part}", {"accuracy": value}, 2, 0, 1, 9.0, 1.0) for part in ("team", "single", "swap")
    ]
    again = [ActionContribution(action.id, action.agent, 1.0, [0.5, 0.0]) for action in episodes[1].actions]
    shares = [AgentContribution(role, 2, value, value, value) for role in ROLES]
    found = TeamEvaluation(
        ALL, NAME, 2, 2, rows=rows, counterfactual=CounterfactualResult(shares, [(episodes[1], again)], 2, 0)
    )
    found.paraphrases, found.notes = [(ALL, ALL)], [(NAME, ALL)]
    write_report(folder.worth, found)
    told = json.loads((folder.worth / "worth.json").read_text())
    assert told["shown"] == [json.loads(json.dumps(build_timeline(episodes[1], again)))]
