"""World models: what they are told of episodes, what they predict, and that they know what they do not know."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.game.reading import stepped
from marft.types import Episode, JointAction, Observation, Step, Task, Transition
from marft.world_models.counts import Counts
from marft.world_models.experience import Experience, Kept, read, write
from marft.world_models.imagined import Imagined, drawn, was_cut
from marft.world_models.interface import Lived, Outcome, Prediction, Situation, disagreement
from marft.world_models.regression import Regression, features, ridge
from marft.world_models.trust import Trust
from marft.world_models.words import gone_on, lived_in, observation_of, observation_text
from tests.episodes import make_action

WORDS = st.text('ab \n\0é"', max_size=3)


def line(length: int = 6, seed: int = 0, steps: int = 300) -> list[Lived]:
    """A walk on a line that begins at 0 and ends where it reaches the last place, which pays 1."""
    stream, at, lived = np.random.default_rng(seed), 0, []
    for _ in range(steps):
        act = str(stream.choice(["left", "right"]))
        to = max(0, at + (1 if act == "right" else -1))
        over = to == length - 1
        outcome = Outcome("" if over else f"at {to}", float(over), success=True if over else None)
        lived.append(Lived(Situation((f"at {at}",)), act, outcome, first=at == 0))
        at = 0 if over else to
    return lived


def walked(texts: list[str], status: str = "terminated") -> Episode:
    """An episode of two agents, of whom one is asked twice in each step."""
    transitions = tuple(Transition(Observation(text), float(n), {"a": -1.0}) for n, text in enumerate(texts))
    actions = tuple(
        make_action(agent, step=step, call=call, index=step * 3 + place, text=f" {agent}{step}{call}\n")
        for step in range(len(texts))
        for place, (agent, call) in enumerate((("a", 0), ("b", 0), ("a", 1)))
    )
    return Episode(Task("t", "o"), "train/0", 0, actions, status, transitions, success=True)  # type: ignore[arg-type]


@given(
    WORDS, st.dictionaries(WORDS, WORDS, max_size=2), st.lists(WORDS, max_size=2),
    st.dictionaries(WORDS, st.lists(WORDS, max_size=3).map(tuple), max_size=2),
)  # fmt: skip
@settings(max_examples=25)
def test_an_observation_is_what_its_text_says(text: str, views: Any, turn: list[str], options: Any) -> None:
    one = Observation(text, views, tuple(turn), options)
    said = observation_text(one)
    assert observation_of(said) == one
    assert said  # "" is the end


def test_steps_are_lived_by_the_last_words_of_those_who_are_read() -> None:
    lived = lived_in(walked(["x", "y", "z"]), ["a"], memory=2)
    assert [one.action for one in lived] == ['{"a": "a01"}', '{"a": "a11"}', '{"a": "a21"}']
    assert lived[2].situation == Situation(("y", "z"), ('{"a": "a11"}',))
    assert [one.outcome.following for one in lived] == ["y", "z", ""]
    assert [one.outcome.success for one in lived] == [None, None, True]
    assert [one.first for one in lived] == [True, False, False]
    assert lived[1].outcome.reward == 1.0
    assert lived[1].outcome.agent_rewards == (("a", -1.0),)


def test_nobody_knows_what_came_after_an_episode_that_was_cut_off() -> None:
    assert [one.outcome.following for one in lived_in(walked(["x", "y", "z"], "truncated"), [], 1)] == ["y", "z"]
    assert lived_in(walked(["x"], "truncated"), [], 1) == []
    assert lived_in(walked(["x", "y"], "failed"), [], 1) == []


@given(st.lists(WORDS.filter(bool), min_size=2, max_size=6), st.integers(1, 4))
@settings(max_examples=25)
def test_a_situation_goes_on_as_the_next_step_has_it(texts: list[str], memory: int) -> None:
    lived = lived_in(walked(texts), [], memory)
    for before, after in zip(lived, lived[1:], strict=False):
        assert gone_on(before.situation, before.action, before.outcome.following, memory) == after.situation


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2)), max_size=40), st.integers(0, 9))
@settings(max_examples=20)
def test_counts_are_shares_of_what_came(rows: list[tuple[int, int, int]], seed: int) -> None:
    lived = [Lived(Situation((f"s{s}",)), f"a{a}", Outcome(f"o{o}", float(o))) for s, a, o in rows]
    model = Counts(members=8).fit(lived, seed)
    for s in range(4):
        for a in range(2):
            mine = [o for s_, a_, o in rows if (s_, a_) == (s, a)]
            said = model.predict(Situation((f"s{s}",)), f"a{a}")
            assert said.ways == pytest.approx({f"o{o}": mine.count(o) / len(mine) for o in set(mine)})
            assert 0.0 <= said.uncertainty <= 1.0
            if not mine:
                assert said.uncertainty == 1.0
            else:
                assert said.reward() == pytest.approx(np.mean(mine))
                assert said.spread() == pytest.approx(np.abs(np.array(mine) - np.mean(mine)).mean())


def test_what_was_lived_often_is_certain_however_much_chance_is_in_it() -> None:
    coin = [Lived(Situation(("s",)), "toss", Outcome(side, 0.0)) for side in ("head", "tail") * 400]
    known = Counts(members=64).fit([*coin, Lived(Situation(("s",)), "once", Outcome("x", 0.0))], 0)
    assert known.predict(Situation(("s",)), "toss").uncertainty < 0.03
    assert known.predict(Situation(("s",)), "once").uncertainty == pytest.approx(np.exp(-1), abs=0.15)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=20)
def test_disagreement_is_the_mean_distance_from_the_mean_of_those_that_know(m: int, o: int, seed: int) -> None:
    stream = np.random.default_rng(seed)
    members = stream.dirichlet(np.ones(o), m) * stream.integers(0, 2, (m, 1))
    know = [row for row in members if row.sum() > 0]
    total = 0.0
    for row in members:
        if row.sum() == 0:
            total += 1.0
            continue
        for place in range(o):
            total += abs(row[place] - sum(other[place] for other in know) / len(know)) / 2
    assert disagreement(members) == pytest.approx(total / m)


def test_ridge_solves_its_own_normal_equations_as_a_sum_over_rows() -> None:
    stream = np.random.default_rng(0)
    x, y, w = stream.normal(size=(7, 3)), stream.normal(size=(7, 2)), stream.poisson(1.0, 7)
    left, right = 0.5 * np.eye(3), np.zeros((3, 2))
    for n in range(7):
        left += w[n] * np.outer(x[n], x[n])
        right += w[n] * np.outer(x[n], y[n])
    assert left @ ridge(x, y, w, 0.5) == pytest.approx(right)


@pytest.mark.parametrize("settings_of", [Counts(), Regression(dimensions=64)])
def test_a_small_world_is_known_after_some_steps_and_the_same_again(settings_of: Any) -> None:
    lived = line()
    model, again = settings_of.fit(lived, 5), settings_of.fit(lived, 5)
    for one in lived[:60]:
        said = model.predict(one.situation, one.action)
        assert said.outcomes[int(said.probabilities.argmax())] == one.outcome
        assert said.uncertainty < 0.2
        assert again.predict(one.situation, one.action).uncertainty == said.uncertainty


def test_regressions_know_what_was_never_seen_from_what_is_alike() -> None:
    """The other lamp's switch does the same, whatever the weather."""
    lived = [
        Lived(Situation((f"lamp {was} weather {day}",)), act, Outcome(f"lamp {act} weather", float(act == "on")))
        for was in ("on", "off") for act in ("on", "off") for day in range(12)
    ]  # fmt: skip
    never = Situation(("lamp off weather 99",))
    said = Regression().fit(lived, 0).predict(never, "on")
    assert said.ways.get("lamp on weather", 0.0) == 1.0
    assert Counts().fit(lived, 0).predict(never, "on").uncertainty == 1.0


def test_regressions_tell_apart_what_was_done_before_and_an_end_from_a_silence() -> None:
    left, right = (features(Situation(("x", "y"), (done,)), "go", 64) for done in ("left", "right"))
    assert not np.array_equal(left, right)
    over, silence = Regression(dimensions=16)._targets([Outcome("", 0.0), Outcome(" ", 0.0)])
    assert not np.array_equal(over, silence)


def test_before_anything_was_lived_nobody_knows_anything() -> None:
    for model in (Counts().fit([], 0), Regression().fit([], 0)):
        assert model.predict(Situation(("s",)), "a").uncertainty == 1.0


def played(world: Imagined, acts: list[str], seed: int = 0, task: str = "imagined/0/0") -> Episode:
    """An imagined episode, to its end or to that of the acts."""

    async def play() -> Episode:
        session = world.start(Task(task, ""), seed)
        observation, transitions, status = await session.reset(), list[Transition](), "truncated"
        for act in acts:
            joint = JointAction(actions=(make_action("a", text=act),))
            step, declared = await stepped(session, joint, {"a"}, Task(task, ""))
            transitions.append(Transition(observation, step.reward, declared=declared))
            observation = step.observation
            if step.terminated or step.truncated:
                status = "terminated" if step.terminated else "truncated"
                break
        return Episode(Task(task, ""), "imagined/0", 0, (), status, tuple(transitions))  # type: ignore[arg-type]

    return asyncio.run(play())


def imagined_line(cutoff: float = 0.2, lived: list[Lived] | None = None) -> Imagined:
    told = [
        Lived(one.situation, f'{{"a": "{one.action}"}}', one.outcome, one.first) for one in lived or line(steps=600)
    ]
    return Imagined(Counts().fit(told, 0), {"imagined/0/0": Situation(("at 0",))}, cutoff)


def test_an_imagined_episode_goes_as_a_real_one_would() -> None:
    episode = played(imagined_line(), ["right", "left", *["right"] * 9])
    places = ["at 0", "at 1", "at 0", "at 1", "at 2", "at 3", "at 4"]
    assert [transition.observation.text for transition in episode.transitions] == places
    assert episode.status == "terminated"
    assert episode.total_reward == 1.0
    assert not was_cut(episode)


class Chance:
    """Knows of two ways to go on, of which one is the end."""

    def predict(self, situation: Situation, action: str) -> Prediction:
        outcomes = Outcome("", 1.0, (("a", -1.0), ("b", 0.5)), success=True), Outcome("on", 0.25, (("a", 2.0),))
        return Prediction(outcomes, np.array([0.5, 0.5]), 0.0)


def stepped_once(seed: int) -> Step:
    session = Imagined(Chance(), {"t": Situation(("s",))}, 0.2).start(Task("t", ""), seed)
    return asyncio.run(session.step(JointAction(actions=(make_action("a"),))))


def test_each_imagined_episode_draws_by_its_own_seed_and_pays_all_that_its_outcome_does() -> None:
    steps = [stepped_once(seed) for seed in range(20)]
    ends = [step.terminated for step in steps]
    assert set(ends) == {False, True}
    assert [stepped_once(seed).terminated for seed in range(20)] == ends
    paid = {(step.terminated, step.reward, step.success, *step.agent_rewards.items()) for step in steps}
    assert paid == {(True, 1.0, True, ("a", -1.0), ("b", 0.5)), (False, 0.25, None, ("a", 2.0))}


def test_it_is_cut_off_where_the_model_does_not_know_how_it_goes_on() -> None:
    episode = played(imagined_line(), ["right", "jump", "right"])
    assert was_cut(episode)
    assert len(episode.transitions) == 2
    assert episode.total_reward == 0.0
    seldom = imagined_line(cutoff=0.01, lived=line(steps=4))
    assert was_cut(played(seldom, ["right", "right"]))


def test_nothing_imagined_is_ever_held_out() -> None:
    world = imagined_line()
    assert [task.id for task in world.tasks("train")] == ["imagined/0/0"]
    assert not world.tasks("validation")
    assert not world.tasks("test")


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5), st.floats(0, 1, exclude_max=True))
@settings(max_examples=25)
def test_outcomes_are_drawn_by_their_probabilities(weights: list[float], uniform: float) -> None:
    shares = np.array(weights) / sum(weights)
    said = Prediction(tuple(Outcome(str(n), 0.0) for n in range(len(shares))), shares, 0.0)
    number, left = 0, uniform
    while number < len(shares) - 1 and left >= shares[number]:
        left -= shares[number]
        number += 1
    if min(abs(uniform - edge) for edge in np.cumsum(shares)) > 1e-9:
        assert drawn(said, uniform).following == str(number)


def test_experience_keeps_the_newest_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    lived = [*line(steps=40), Lived(Situation(("x", "y"), ("d",)), "e", Outcome("z", 0.1, (("a", 0.3),), False))]
    experience = Experience().seen([{"": 0.5}, {"": -1.0, "a": 0.3}]).seen([{"": 0.0, "b": -2.0}]).with_steps(lived, 30)
    assert experience.lived == tuple(lived[-30:])
    assert experience.widths == {"": 1.5, "a": 0.3, "b": 2.0}
    assert Experience().widths == {"": 0.0}
    kept = Kept(experience, Trust(False, tuple(np.linspace(0.1, 2, 20)), tuple(np.linspace(-3, 0, 20))), 7)
    write(tmp_path, kept)
    assert read(tmp_path) == kept
    assert read(tmp_path / "elsewhere") == Kept()
    (tmp_path / "world_model.json").write_text('{"fitted": 1}')
    with pytest.raises(ValueError, match=r"world_model\.json cannot be read"):
        read(tmp_path)


def test_at_a_cutoff_of_0_what_is_certain_is_imagined() -> None:
    assert not was_cut(played(imagined_line(cutoff=0.0), ["right"]))
