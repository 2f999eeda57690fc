"""Teams that play by a script: what is said is what the script says, in the recipe's own game, and nothing is loaded."""

from __future__ import annotations

from itertools import islice
from typing import Any

from marft.agents.answers import find_answer
from marft.common.types import ToolCall
from marft.config.load import load_recipe
from marft.envs.scripted_policy import PolicyInput, ScriptedReply
from marft_lab.scripted_team import ScriptedTeam, ScriptedTurn


def adds(cue: PolicyInput) -> str:
    """Whoever is asked adds up what stands in the task."""
    terms = cue.task.prompt.partition(": ")[2].rstrip(" =").replace("- ", "-").replace("+ ", "").split()
    assert cue.last_message.startswith(cue.task.prompt)
    return f"\\boxed{{{sum(map(int, terms))}}}" if cue.role == "actor" else "Over to you."


def test_a_script_that_is_right_solves_every_task() -> None:
    run = load_recipe("demo")
    heard: list[ScriptedTurn] = []
    with ScriptedTeam(run, adds, on_turn=heard.append) as team:
        tasks = run.environment.tasks("test")[:80]  # type: ignore[attr-defined]
        episodes = list(team.play(tasks, samples=2))
    assert [episode.task.id for episode in episodes] == [task.id for task in tasks for _ in range(2)]
    assert all(episode.success for episode in episodes), [episode.error for episode in episodes]
    assert {(one.key.agent, one.line.text) for one in heard if one.key.agent == "reasoner"} == {
        ("reasoner", "Over to you.")
    }
    assert find_answer(episodes[0].actions[-1].text) is not None
    assert "Over to you." in str(next(one.chat for one in heard if one.key.agent == "actor")[-1]["content"])


def test_a_script_chooses_and_calls_tools() -> None:
    run = load_recipe("playbook")
    seen: list[tuple[str, ...]] = []

    def plays(cue: PolicyInput) -> str | ScriptedReply:
        if cue.role == "router":
            seen.append(cue.options)
            return "calculator"
        if cue.messages[-1]["role"] == "tool":
            return f"\\boxed{{{cue.last_message}}}"
        a, b = (word for word in cue.last_message.replace(".", "").split() if word.isdigit())
        return ScriptedReply("", (ToolCall("multiply", f'{{"a": {a}, "b": {b}}}'),))

    with ScriptedTeam(run, plays) as team:
        episodes = list(team.play(islice(run.environment.tasks("train"), 3)))  # type: ignore[attr-defined]
    assert [(episode.status, episode.success) for episode in episodes] == [("terminated", True)] * 3
    assert set(seen) == {("calculator", "solver")}


def test_what_a_script_says_depends_on_its_key_alone() -> None:
    run = load_recipe("demo")
    tasks = run.environment.tasks("test")[:5]  # type: ignore[attr-defined]

    def says(cue: PolicyInput) -> str:
        return str(cue.random.random())

    def texts(order: Any) -> dict[str, list[str]]:
        with ScriptedTeam(run, says) as team:
            return {one.task.id: [action.text for action in one.actions] for one in team.play(order)}

    assert texts(tasks) == texts(tasks[::-1])
    assert len({text for all_of in texts(tasks).values() for text in all_of}) == 10


def test_an_option_that_is_not_there_fails_the_episode_in_words() -> None:
    run = load_recipe("playbook")
    with ScriptedTeam(run, lambda cue: "nobody") as team:
        episode = next(team.play(run.environment.tasks("train")[:1]))  # type: ignore[attr-defined]
    assert episode.status == "failed"
    assert "chose 'nobody', which is none of its options" in episode.error
