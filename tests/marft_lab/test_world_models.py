"""World models: what they are told of episodes, what they predict, and that they know what they do not know."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.environment_calls import step_session
from marft.common.seeds import generator
from marft.common.types import Episode, JointAction, Observation, Step, Task, Transition
from marft_lab.world_models.counts import CountModel
from marft_lab.world_models.environment import (
    ModelEnvironment,
    is_stopped_by_uncertainty,
    mark_imagined,
    sample_outcome,
)
from marft_lab.world_models.experience_buffer import ExperienceBuffer, WorldModelState, read_state, write_state
from marft_lab.world_models.interface import History, ObservedTransition, Outcome, Prediction, ensemble_disagreement
from marft_lab.world_models.regression import RegressionModel, build_features, hash_features, solve_ridge
from marft_lab.world_models.text_codec import (
    decode_observation,
    encode_observation,
    extend_history,
    extract_transitions,
)
from marft_lab.world_models.trust import Trust
from tests.episodes import make_action

WRITTEN = (
    '{"fitted":3,"on":true,"steps":[0.5],"rewards":[0.25],"returns":{"":[-1.0,2.0]},"texts":["x","y"],"lived":'
    '[{"observed":[0,1],"done":[0],"action":0,"following":1,"reward":0.5,"agent_rewards":{"a":0.25},"success":true,'
    '"first":true}]}\n'
)
WORDS = st.text('ab \n\0é"', max_size=3)


def line(length: int = 6, seed: int = 0, steps: int = 300) -> list[ObservedTransition]:
    """A walk on a line that begins at 0 and ends where it reaches the last place, which pays 1."""
    stream, at, lived = np.random.default_rng(seed), 0, []
    for _ in range(steps):
        act = str(stream.choice(["left", "right"]))
        to = max(0, at + (1 if act == "right" else -1))
        over = to == length - 1
        outcome = Outcome("" if over else f"at {to}", float(over), success=True if over else None)
        lived.append(ObservedTransition(History((f"at {at}",)), act, outcome, is_first=at == 0))
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
    said = encode_observation(one)
    assert decode_observation(said) == one
    assert said  # "" is the end


def test_steps_are_lived_by_the_last_words_of_those_who_are_read() -> None:
    lived = extract_transitions(walked(["x", "y", "z"]), ["a"], history_length=2)
    assert [one.action for one in lived] == ['{"a": "a01"}', '{"a": "a11"}', '{"a": "a21"}']
    assert lived[2].history == History(("y", "z"), ('{"a": "a11"}',))
    assert [one.outcome.next_observation for one in lived] == ["y", "z", ""]
    assert [one.outcome.success for one in lived] == [None, None, True]
    assert [one.is_first for one in lived] == [True, False, False]
    assert lived[1].outcome.reward == 1.0
    assert lived[1].outcome.agent_rewards == (("a", -1.0),)


def test_nobody_knows_what_came_after_an_episode_that_was_cut_off() -> None:
    assert [
        one.outcome.next_observation for one in extract_transitions(walked(["x", "y", "z"], "truncated"), [], 1)
    ] == ["y", "z"]
    assert extract_transitions(walked(["x"], "truncated"), [], 1) == []
    assert extract_transitions(walked(["x", "y"], "failed"), [], 1) == []


@given(st.lists(WORDS.filter(bool), min_size=2, max_size=6), st.integers(1, 4))
@settings(max_examples=25)
def test_a_situation_goes_on_as_the_next_step_has_it(texts: list[str], memory: int) -> None:
    lived = extract_transitions(walked(texts), [], memory)
    for before, after in zip(lived, lived[1:], strict=False):
        assert extend_history(before.history, before.action, before.outcome.next_observation, memory) == after.history


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2)), max_size=40), st.integers(0, 9))
@settings(max_examples=20)
def test_counts_are_shares_of_what_came(rows: list[tuple[int, int, int]], seed: int) -> None:
    lived = [ObservedTransition(History((f"s{s}",)), f"a{a}", Outcome(f"o{o}", float(o))) for s, a, o in rows]
    model = CountModel(members=8).fit(lived, seed)
    for s in range(4):
        for a in range(2):
            mine = [o for s_, a_, o in rows if (s_, a_) == (s, a)]
            said = model.predict(History((f"s{s}",)), f"a{a}")
            assert said.next_probabilities == pytest.approx({f"o{o}": mine.count(o) / len(mine) for o in set(mine)})
            assert 0.0 <= said.uncertainty <= 1.0
            if not mine:
                assert said.uncertainty == 1.0
            else:
                assert said.reward() == pytest.approx(np.mean(mine))
                assert said.reward_deviation() == pytest.approx(np.abs(np.array(mine) - np.mean(mine)).mean())


def test_what_was_lived_often_is_certain_however_much_chance_is_in_it() -> None:
    coin = [ObservedTransition(History(("s",)), "toss", Outcome(side, 0.0)) for side in ("head", "tail") * 400]
    known = CountModel(members=64).fit([*coin, ObservedTransition(History(("s",)), "once", Outcome("x", 0.0))], 0)
    assert known.predict(History(("s",)), "toss").uncertainty < 0.03
    assert known.predict(History(("s",)), "once").uncertainty == pytest.approx(np.exp(-1), abs=0.15)


def test_a_member_of_an_ensemble_has_lived_each_step_as_often_as_poisson_says() -> None:
    """Once each, so that some know one outcome, some both, and some nothing."""
    lived = [ObservedTransition(History(("s",)), "toss", Outcome(side, 0.0)) for side in ("head", "tail")]
    with np.errstate(all="raise"):
        said = CountModel(members=12).fit(lived, 3).predict(History(("s",)), "toss")
    drawn = generator(3, "counts").poisson([1.0, 1.0], (12, 2))
    members = np.array([row / max(row.sum(), 1) for row in drawn])
    assert said.uncertainty == pytest.approx(ensemble_disagreement(members))
    assert {int(row.sum()) for row in drawn} >= {0, 1, 2}, "or nothing could be told apart"
    assert said.next_probabilities == {"head": 0.5, "tail": 0.5}


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
    assert ensemble_disagreement(members) == pytest.approx(total / m)


def test_ridge_solves_its_own_normal_equations_as_a_sum_over_rows() -> None:
    stream = np.random.default_rng(0)
    x, y, w = stream.normal(size=(7, 3)), stream.normal(size=(7, 2)), stream.poisson(1.0, 7)
    left, right = 0.5 * np.eye(3), np.zeros((3, 2))
    for n in range(7):
        left += w[n] * np.outer(x[n], x[n])
        right += w[n] * np.outer(x[n], y[n])
    assert left @ solve_ridge(x, y, w, 0.5) == pytest.approx(right)


@pytest.mark.parametrize("settings_of", [CountModel(), RegressionModel(dimensions=64)])
def test_a_small_world_is_known_after_some_steps_and_the_same_again(settings_of: Any) -> None:
    lived = line()
    model, again = settings_of.fit(lived, 5), settings_of.fit(lived, 5)
    for one in lived[:60]:
        said = model.predict(one.history, one.action)
        assert said.outcomes[int(said.probabilities.argmax())] == one.outcome
        assert said.uncertainty < 0.2
        assert again.predict(one.history, one.action).uncertainty == said.uncertainty


def test_regressions_know_what_was_never_seen_from_what_is_alike() -> None:
    """The other lamp's switch does the same, whatever the weather."""
    lived = [
        ObservedTransition(History((f"lamp {was} weather {day}",)), act, Outcome(f"lamp {act} weather", float(act == "on")))
        for was in ("on", "off") for act in ("on", "off") for day in range(12)
    ]  # fmt: skip
    never = History(("lamp off weather 99",))
    said = RegressionModel().fit(lived, 0).predict(never, "on")
    assert said.next_probabilities.get("lamp on weather", 0.0) == 1.0
    assert CountModel().fit(lived, 0).predict(never, "on").uncertainty == 1.0


def test_regressions_tell_apart_what_was_done_before_and_an_end_from_a_silence() -> None:
    left, right = (build_features(History(("x", "y"), (done,)), "go", 64) for done in ("left", "right"))
    assert not np.array_equal(left, right)
    over, silence = RegressionModel(dimensions=16)._target_vectors([Outcome("", 0.0), Outcome(" ", 0.0)])
    assert not np.array_equal(over, silence)


def test_words_are_hashed_to_places_with_signs() -> None:
    """CRC-32 of a to d: 0xe8b7be43, 0x71beeff9, 0x06b9df6f and 0x98dd4acc. The lowest bit is the sign."""
    assert hash_features(["a", "d", "b", "d", "c"], 16) == pytest.approx(
        np.array([0, 1, 0, 0, 0, 0, -2, 1, 0, 0, 0, 0, 1, 0, 0, 0]) / np.sqrt(7)
    )
    assert hash_features([], 16).tolist() == [0.0] * 16


def test_a_question_is_the_words_that_are_seen_what_was_done_and_both_together() -> None:
    asked = build_features(History(("S x", "T"), ("go", "stay")), "act", 64)
    seen, done = ["0 0 T", "1 0 S", "1 1 x"], ["done 0 stay", "done 1 go"]
    assert asked.tolist() == hash_features([*seen, *done, "0 T then act", "then act"], 64).tolist()


def test_outcomes_are_vectors_in_which_observations_rewards_and_ends_count_alike() -> None:
    outcomes = [
        Outcome("a b", 1.0, (("p", -2.0),)), Outcome("", 1.5, (("q", 5.0),)), Outcome("c", 1.25, (("p", 2.0), ("q", 5.0))),
    ]  # fmt: skip
    model = RegressionModel(dimensions=32).fit(
        [ObservedTransition(History(("s",)), "go", outcome) for outcome in outcomes], 0
    )
    assert model.outcomes == tuple(outcomes)
    for row, one in zip(model.table, outcomes, strict=True):
        assert row[:16] == pytest.approx(
            hash_features([f"{n} {word}" for n, word in enumerate(one.next_observation.split())], 16)
        )
    assert model.table[:, 16:] == pytest.approx(np.array([[0, 0, 0, 0], [1, 0.5, 1, 1], [0.5, 1, 1, 0]]))
    same = RegressionModel(dimensions=32).fit([ObservedTransition(History(("s",)), "go", Outcome("a", 7.0))], 0)
    assert same.table[0, 16:].tolist() == [0.0, 0.0], "rewards that are all the same tell nothing"


def test_rewards_of_agents_stand_in_the_order_of_their_names() -> None:
    paid = [(0.0,) * 9, tuple(n / 10 for n in range(1, 10)), (1.0,) * 9]
    outcomes = [Outcome(str(n), 0.0, tuple(zip("ihgfedcba", own[::-1], strict=True))) for n, own in enumerate(paid)]
    model = RegressionModel(dimensions=16).fit(
        [ObservedTransition(History(("s",)), "go", outcome) for outcome in outcomes], 0
    )
    assert model.table[1, 9:18] == pytest.approx(paid[1])


def test_members_are_fitted_to_steps_as_often_as_poisson_says() -> None:
    lived = [
        ObservedTransition(History((text,)), "go", Outcome(text, reward)) for text, reward in (("x", 0.0), ("y z", 1.0))
    ]
    settings_of = RegressionModel(members=5, dimensions=16, ridge=0.25)
    model = settings_of.fit([*lived, lived[0]], 9)
    x = np.array([build_features(one.history, "go", 16) for one in lived])
    drawn = generator(9, "regression").poisson([2.0, 1.0], (5, 2))
    weights = np.array([solve_ridge(x, model.table, row, 0.25) for row in drawn])
    assert model.weights == pytest.approx(weights)
    said = model.predict(History(("x y",)), "go")
    asked = build_features(History(("x y",)), "go", 16)
    votes = [int(np.square(asked @ of - model.table).sum(1).argmin()) for of in weights]
    assert set(votes) == {0, 1}
    assert said.next_probabilities == {
        model.outcomes[vote].next_observation: votes.count(vote) / 5 for vote in set(votes)
    }
    members = np.array([[float(vote == other) for other in sorted(set(votes))] for vote in votes])
    assert said.uncertainty == pytest.approx(ensemble_disagreement(members))


def test_ensembles_have_sizes_where_a_recipe_says_none() -> None:
    own = RegressionModel()
    assert (CountModel().members, own.members, own.dimensions, own.ridge) == (32, 8, 256, 1.0)
    for dimensions in (16, 4096):
        assert RegressionModel(dimensions=dimensions).dimensions == dimensions
    for dimensions in (15, 4097):
        with pytest.raises(ValueError, match="dimensions"):
            RegressionModel(dimensions=dimensions)


def test_before_anything_was_lived_nobody_knows_anything() -> None:
    for model in (CountModel().fit([], 0), RegressionModel().fit([], 0)):
        assert model.predict(History(("s",)), "a").uncertainty == 1.0


def played(world: ModelEnvironment, acts: list[str], seed: int = 0, task: str = "imagined/0/0") -> Episode:
    """An imagined episode, to its end or to that of the acts."""

    async def play() -> Episode:
        session = world.start(Task(task, ""), seed)
        observation, transitions, status = await session.reset(), list[Transition](), "truncated"
        for act in acts:
            joint = JointAction(actions=(make_action("a", text=act),))
            step, declared = await step_session(session, joint, {"a"}, Task(task, ""))
            transitions.append(Transition(observation, step.reward, declared=declared))
            observation = step.observation
            if step.terminated or step.truncated:
                status = "terminated" if step.terminated else "truncated"
                break
        return Episode(Task(task, ""), "imagined/0", 0, (), status, tuple(transitions))  # type: ignore[arg-type]

    return asyncio.run(play())


def imagined_line(cutoff: float = 0.2, lived: list[ObservedTransition] | None = None) -> ModelEnvironment:
    told = [
        ObservedTransition(one.history, f'{{"a": "{one.action}"}}', one.outcome, one.is_first)
        for one in lived or line(steps=600)
    ]
    return ModelEnvironment(CountModel().fit(told, 0), {"imagined/0/0": History(("at 0",))}, cutoff)


def test_an_imagined_episode_goes_as_a_real_one_would() -> None:
    episode = played(imagined_line(), ["right", "left", *["right"] * 9])
    places = ["at 0", "at 1", "at 0", "at 1", "at 2", "at 3", "at 4"]
    assert [transition.observation.text for transition in episode.transitions] == places
    assert episode.status == "terminated"
    assert episode.total_reward == 1.0
    assert not is_stopped_by_uncertainty(episode)


class Chance:
    """Knows of two ways to go on, of which one is the end."""

    def predict(self, history: History, action: str) -> Prediction:
        outcomes = Outcome("", 1.0, (("a", -1.0), ("b", 0.5)), success=True), Outcome("on", 0.25, (("a", 2.0),))
        return Prediction(outcomes, np.array([0.5, 0.5]), 0.0)


def stepped_once(seed: int) -> Step:
    session = ModelEnvironment(Chance(), {"t": History(("s",))}, 0.2).start(Task("t", ""), seed)
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
    assert is_stopped_by_uncertainty(episode)
    assert len(episode.transitions) == 2
    assert episode.total_reward == 0.0
    seldom = imagined_line(cutoff=0.01, lived=line(steps=4))
    assert is_stopped_by_uncertainty(played(seldom, ["right", "right"]))
    assert is_stopped_by_uncertainty(played(imagined_line(cutoff=1.0), ["jump"])), (
        "whatever the cutoff, it knows of no outcome"
    )


def test_where_it_is_cut_off_it_shows_what_it_showed_and_how_uncertain_it_was() -> None:
    class Half:
        def predict(self, history: History, action: str) -> Prediction:
            return Prediction((Outcome("on", 1.0),), np.ones(1), 0.5)

    def step(cutoff: float) -> Step:
        session = ModelEnvironment(Half(), {"t": History(("s", "last"))}, cutoff).start(Task("t", ""), 0)
        return asyncio.run(session.step(JointAction(actions=(make_action("a"),))))

    world = ModelEnvironment(Half(), {"t": History(("s", "last"))}, 0.5)
    assert [task.prompt for task in world.tasks("train")] == ["last"]
    assert asyncio.run(world.start(Task("t", ""), 0).reset()).text == "last"
    cut, goes_on = step(0.49), step(0.5)
    assert (cut.observation.text, cut.reward, cut.truncated, cut.terminated) == ("last", 0.0, True, False)
    assert cut.info == {"measures": {"uncertainty": 0.5, "cut": 1.0}}
    assert (goes_on.observation.text, goes_on.reward, goes_on.truncated, goes_on.terminated) == (
        "on",
        1.0,
        False,
        False,
    )
    assert goes_on.info == {"measures": {"uncertainty": 0.5}}


def test_a_model_is_told_as_many_observations_as_it_remembers_and_the_words_that_are_read() -> None:
    asked = list[tuple[History, str]]()

    class Notes:
        def predict(self, history: History, action: str) -> Prediction:
            asked.append((history, action))
            return Prediction((Outcome(f"o{len(asked)}", 0.0),), np.ones(1), 0.0)

    async def play(world: ModelEnvironment) -> None:
        session = world.start(Task("t", ""), 0)
        for step in range(3):
            said = (make_action("a", text=f"a{step}"), make_action("b", index=1, text=f"b{step}"))
            await session.step(JointAction(actions=said))

    asyncio.run(play(ModelEnvironment(Notes(), {"t": History(("o0",))}, 0.2, input_roles=("b",), memory=2)))
    assert [situation.observations for situation, _ in asked] == [("o0",), ("o0", "o1"), ("o1", "o2")]
    assert [action for _, action in asked] == ['{"b": "b0"}', '{"b": "b1"}', '{"b": "b2"}']
    asked.clear()
    asyncio.run(play(ModelEnvironment(Notes(), {"t": History(("o0",))}, 0.2)))
    assert [(situation.observations, action) for situation, action in asked[:2]] == [
        (("o0",), '{"a": "a0", "b": "b0"}'), (("o1",), '{"a": "a1", "b": "b1"}'),
    ]  # fmt: skip


def test_only_the_last_step_says_whether_an_episode_was_cut() -> None:
    episode = played(imagined_line(), ["right", "jump"])
    assert not is_stopped_by_uncertainty(replace(episode, transitions=episode.transitions[::-1]))
    assert not is_stopped_by_uncertainty(replace(episode, transitions=()))
    assert (episode.imagined, mark_imagined(episode).imagined) == (False, True)


def test_nothing_imagined_is_ever_held_out() -> None:
    world = imagined_line()
    assert [(task.id, task.prompt) for task in world.tasks("train")] == [("imagined/0/0", "at 0")]
    assert (world.tasks("validation"), world.tasks("test")) == ([], [])


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
        assert sample_outcome(said, uniform).next_observation == str(number)


def test_a_number_next_to_one_draws_the_last_outcome_though_shares_sum_to_less() -> None:
    said = Prediction(tuple(Outcome(str(n), 0.0) for n in range(10)), np.full(10, 0.1), 0.0)
    assert sample_outcome(said, float(np.nextafter(1.0, 0.0))).next_observation == "9"
    halves = Prediction((Outcome("a", 0.0), Outcome("b", 0.0)), np.full(2, 0.5), 0.0)
    assert [sample_outcome(halves, uniform).next_observation for uniform in (0.0, 0.499, 0.5)] == ["a", "a", "b"]


def test_experience_keeps_the_newest_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    lived = [
        *line(steps=40),
        ObservedTransition(History(("x", "y"), ("d",)), "e", Outcome("z", 0.1, (("a", 0.3),), False)),
    ]
    experience = (
        ExperienceBuffer()
        .add_returns([{"": 0.5}, {"": -1.0, "a": 0.3}])
        .add_returns([{"": 0.0, "b": -2.0}])
        .add_transitions(lived, 30)
    )
    assert experience.transitions == tuple(lived[-30:])
    assert experience.return_ranges == {"": 1.5, "a": 0.3, "b": 2.0}
    assert ExperienceBuffer().return_ranges == {"": 0.0}
    kept = WorldModelState(experience, Trust(False, tuple(np.linspace(0.1, 2, 20)), tuple(np.linspace(-3, 0, 20))), 7)
    write_state(tmp_path, kept)
    assert read_state(tmp_path) == kept
    assert read_state(tmp_path / "elsewhere") == WorldModelState()


def test_what_is_written_of_a_model_names_every_text_once(tmp_path: Path) -> None:
    lived = ObservedTransition(History(("x", "y"), ("x",)), "x", Outcome("y", 0.5, (("a", 0.25),), True), True)
    write_state(
        tmp_path, WorldModelState(ExperienceBuffer((lived,), {"": (-1.0, 2.0)}), Trust(True, (0.5,), (0.25,)), 3)
    )
    assert (tmp_path / "world_model.json").read_text() == WRITTEN


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"fitted":3,', "", "fitted: Field required"),
        ('"fitted"', '"a":1,"fitted"', "a: Extra inputs are not permitted"),
        ('"observed"', '"a":1,"observed"', "lived.0.a: Extra inputs are not permitted"),
        ('"fitted":3', '"fitted":-1', "fitted: Input should be greater than or equal to 0"),
        ('"following":1', '"following":2', "tuple index out of range|list index out of range"),
        ("[-1.0,2.0]", "[2.0]", "not enough values to unpack"),
        ("}\n", "", ""),
    ],
)
def test_what_is_no_world_model_is_refused(before: str, after: str, says: str, tmp_path: Path) -> None:
    assert before in WRITTEN
    (tmp_path / "world_model.json").write_text(WRITTEN.replace(before, after))
    with pytest.raises(
        ValueError, match=rf"world_model\.json cannot be read: .*({says}).*; start a new run with --init-from"
    ):
        read_state(tmp_path)


def test_returns_are_known_of_the_team_first_and_then_of_agents_by_name() -> None:
    first = ExperienceBuffer().add_returns([{"": 1.0, **dict.fromkeys("hgfedcba", 2.0)}])
    assert list(first.returns) == ["", *"abcdefgh"]
    assert first.returns["a"] == (2.0, 2.0)
    later = first.add_returns([{"": 4.0, "a": 3.0, "z": 5.0}])
    assert (later.returns["a"], later.returns["b"], later.returns["z"]) == ((2.0, 3.0), (0.0, 2.0), (0.0, 5.0))
    assert later.returns[""] == (1.0, 4.0)
    assert later.add_returns([]) == later


def test_at_a_cutoff_of_0_what_is_certain_is_imagined() -> None:
    assert not is_stopped_by_uncertainty(played(imagined_line(cutoff=0.0), ["right"]))
