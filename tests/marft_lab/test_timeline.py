"""Episodes on their time axis, as pages of ``marft worth`` draw them."""

from __future__ import annotations

from dataclasses import replace

from marft.common.types import Episode, Observation, Task, Transition
from marft_lab.team_evaluation.counterfactual import ActionContribution
from marft_lab.team_evaluation.report import build_timeline
from tests.episodes import make_action


def test_an_episode_is_told_action_by_action() -> None:
    plan = replace(make_action("planner", tokens=(1, 2, 3), text="a plan"), started=1.0, ended=2.5)
    act = replace(
        make_action("actor", step=1, index=1, sees=("0/planner/0",), text="y" * 601), started=2.5, ended=4.0
    )  # fmt: skip
    transitions = (Transition(Observation("?"), 0.25), Transition(Observation("?"), 0.5))
    episode = Episode(Task("half \ud83d", "z" * 600), "s", 0, (plan, act), "terminated", transitions)
    assert build_timeline(episode, [ActionContribution("1/actor/0", "actor", 0.75, (0.0, 0.5))]) == {
        "task": "half ?",
        "prompt": "z" * 600,
        "reward": 0.75,
        "actions": [
            {
                "id": "0/planner/0", "agent": "planner", "step": 0, "index": 0, "started": 1.0, "ended": 2.5, "sees": [],
                "tokens": 3, "text": "a plan", "contribution": None, "resampled": [],
            },
            {
                "id": "1/actor/0", "agent": "actor", "step": 1, "index": 1, "started": 2.5, "ended": 4.0,
                "sees": ["0/planner/0"], "tokens": 2, "text": "y" * 600 + " … (1 more characters)",
                "contribution": 0.5, "resampled": [0.0, 0.5],
            },
        ],
    }  # fmt: skip
