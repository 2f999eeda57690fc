"""Who beats whom: ratings of known players are found again, matches are played from both sides, and what is shown of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.common.types import Choice, Episode, Observation, Task, Transition
from marft.config.interfaces.credit import Floats
from marft.config.interfaces.environment import Environment
from marft.config.run import RunSettings
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_envs.textarena.kuhn import compute_exploitability
from marft_lab.league.evaluation.matches import (
    LeagueResult,
    PairResult,
    assign_policies,
    find_versions,
    game_sides,
    pair_attempts,
    play_league,
    score_pair,
)
from marft_lab.league.evaluation.ratings import PRIOR_STD, MatchRecord, fit_ratings
from marft_lab.league.evaluation.report import build_tables, format_headline, write_report
from marft_lab.league.pool import ELO_SCALE, expected_score
from tests.episodes import make_action
from tests.marft_lab.test_league import league
from tests.nights import BY_NIGHT


def chances(mine: float, theirs: float, draw: float) -> tuple[float, float, float]:
    """Davidson's of winning, drawing and losing, by Elo and ν."""
    a, b = math.exp(mine / ELO_SCALE), math.exp(theirs / ELO_SCALE)
    whole = a + b + draw * math.sqrt(a * b)
    return a / whole, draw * math.sqrt(a * b) / whole, b / whole


def simulated(elo: list[float], matches: int, draw: float, seed: int) -> list[MatchRecord]:
    random = np.random.default_rng(seed)
    found = []
    for i in range(len(elo)):
        for j in range(i + 1, len(elo)):
            won, drawn, lost = random.multinomial(matches, chances(elo[i], elo[j], draw))
            found.append(MatchRecord(i, j, int(won), int(drawn), int(lost)))
    return found


STRENGTHS = [-200.0, -50.0, 50.0, 200.0]


@pytest.mark.parametrize("draw", [0.0, 0.7])
def test_players_of_known_strength_are_rated_by_it(draw: float) -> None:
    found = fit_ratings(4, simulated(STRENGTHS, 20_000, draw, 1))
    assert [rating.elo for rating in found] == pytest.approx(STRENGTHS, abs=6.0)
    assert sum(rating.elo for rating in found) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("draw", [0.0, 0.7])
def test_intervals_hold_the_truth_nineteen_times_in_twenty(draw: float) -> None:
    held = []
    for seed in range(150):
        found = fit_ratings(4, simulated(STRENGTHS, 60, draw, seed))
        held += [r.interval[0] <= truth <= r.interval[1] for r, truth in zip(found, STRENGTHS, strict=True)]
    assert 0.92 < float(np.mean(held)) < 0.98


@pytest.mark.slow
@given(
    results=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=3).filter(
        lambda rows: sum(map(sum, rows)) > 0
    )
)
def test_ratings_are_the_likeliest(results: list[tuple[int, int, int]]) -> None:
    """No step in any direction makes what came about, under the prior, likelier."""
    tallies = [MatchRecord(i, j, *row) for (i, j), row in zip([(0, 1), (0, 2), (1, 2)], results, strict=True)]
    elo = [rating.elo for rating in fit_ratings(3, tallies)]
    some_drawn = any(tally.drawn for tally in tallies)

    def likelihood(strengths: list[float], draw: float) -> float:
        total = -sum(s * s for s in strengths) / (2 * (PRIOR_STD * ELO_SCALE) ** 2)
        total -= math.log(draw) ** 2 / (2 * PRIOR_STD**2) if some_drawn else 0.0
        for tally in tallies:
            odds = chances(strengths[tally.first], strengths[tally.second], draw if some_drawn else 0.0)
            counts = (tally.won, tally.drawn, tally.lost)
            total += sum(count * math.log(p) for count, p in zip(counts, odds, strict=True) if count)
        return total

    def best(strengths: list[float]) -> float:
        if not some_drawn:
            return likelihood(strengths, 0.0)
        low, high = -9.0, 9.0
        for _ in range(80):  # the likelihood is concave in ln ν
            a, b = low + (high - low) / 3, high - (high - low) / 3
            if likelihood(strengths, math.exp(a)) < likelihood(strengths, math.exp(b)):
                low = a
            else:
                high = b
        return likelihood(strengths, math.exp(low))

    at = best(elo)
    for player in range(3):
        for by in (-5.0, 5.0):
            moved = [e + by * (n == player) - by / 3 for n, e in enumerate(elo)]
            assert best(moved) <= at + 1e-9


def posterior(place: Floats, tallies: list[MatchRecord], drawn: bool) -> float:
    """How likely what came about is at ln π of each player, and ln ν where something was drawn, with the prior."""
    total, draw = -float(place @ place) / (2 * (2 * math.log(10)) ** 2), math.exp(place[-1]) if drawn else 0.0
    for tally in tallies:
        odds = chances(ELO_SCALE * place[tally.first], ELO_SCALE * place[tally.second], draw)
        counts = (tally.won, tally.drawn, tally.lost)
        total += sum(count * math.log(p) for count, p in zip(counts, odds, strict=True) if count)
    return total


def likeliest(players: int, tallies: list[MatchRecord]) -> list[tuple[float, float]]:
    """Elo and half of its interval, slowly: by Newton's method with differences in place of derivatives, and steps that
    are halved until they lead upward."""
    drawn = any(tally.drawn for tally in tallies)
    size, h = players + drawn, 1e-3
    place, axes = np.zeros(size), h * np.eye(players + drawn)

    def at(*moves: Floats) -> float:
        return posterior(place + sum(moves), tallies, drawn)

    for _ in range(60):
        slope = np.array([(at(a) - at(-a)) / (2 * h) for a in axes])
        bend = np.array([[at(a, b) - at(a, -b) - at(-a, b) + at(-a, -b) for b in axes] for a in axes]) / (4 * h * h)
        step = -np.linalg.solve(bend, slope)
        while np.abs(step).max() > 1e-9 and at(step) < at():
            step = step / 2
        if np.abs(step).max() < 1e-9:
            break
        place = place + step
    centre = np.eye(players) - 1 / players
    spread = centre @ np.linalg.inv(-bend)[:players, :players] @ centre
    values, widths = ELO_SCALE * centre @ place[:players], 1.959964 * ELO_SCALE * np.sqrt(spread.diagonal())
    return list(zip(values.tolist(), widths.tolist(), strict=True))


@pytest.mark.parametrize(
    ("players", "tallies"),
    [
        (2, [MatchRecord(0, 1, won=3, lost=1)]), (2, [MatchRecord(0, 1, won=2, drawn=3, lost=1)]),
        (2, [MatchRecord(1, 0, won=10)]),
        (3, [MatchRecord(0, 1, 3, 0, 1), MatchRecord(2, 0, 1, 2, 4), MatchRecord(1, 2, 2, 1, 0)]),
        (2, [MatchRecord(0, 1, drawn=5)]),
        (4, [MatchRecord(0, 1, 5, 0, 2), MatchRecord(1, 2), MatchRecord(2, 0, 1, 0, 1)]),  # one has not played at all
        (2, [MatchRecord(0, 1, 100, 1, 100)]),
        (4, [MatchRecord(0, 1, won=11_336), MatchRecord(0, 2, drawn=5), MatchRecord(1, 2, drawn=11)]),  # whole steps of Newton's lead away
    ],
)  # fmt: skip
def test_ratings_and_intervals_are_those_of_the_slow_reference(players: int, tallies: list[MatchRecord]) -> None:
    found = fit_ratings(players, tallies)
    slow = likeliest(players, tallies)
    assert [rating.elo for rating in found] == pytest.approx([elo for elo, _ in slow], abs=0.01)
    for rating, (elo, half) in zip(found, slow, strict=True):
        assert rating.interval == pytest.approx((elo - half, elo + half), abs=0.01)


def test_two_players_are_rated_as_it_is_worked_out_by_hand() -> None:
    """By symmetry they are as far from 0, at d / 2; where 3 − 4 σ(d) = d / (2 s²), the posterior is highest."""
    s, low, high = 2 * math.log(10), 0.0, 5.0
    for _ in range(60):
        d = (low + high) / 2
        low, high = (d, high) if 3 - 4 / (1 + math.exp(-d)) > d / (2 * s * s) else (low, d)
    chance = 1 / (1 + math.exp(-low))
    half = 1.959964 / math.sqrt(2 * (2 * 4 * chance * (1 - chance) + 1 / s**2)) * 400 / math.log(10)
    better, worse = fit_ratings(2, [MatchRecord(0, 1, won=3, lost=1)])
    elo = low / 2 * 400 / math.log(10)
    assert (better.elo, worse.elo) == pytest.approx((elo, -elo))
    assert (*better.interval, *worse.interval) == pytest.approx((elo - half, elo + half, -elo - half, half - elo))


def test_a_match_that_was_never_lost_in_many_thousands_is_rated_too() -> None:
    strong, weak = fit_ratings(2, [MatchRecord(0, 1, won=1_000_000)])
    assert strong.elo == -weak.elo
    assert strong.elo == pytest.approx(likeliest(2, [MatchRecord(0, 1, won=1_000_000)])[0][0], abs=0.1)


def test_a_score_and_a_difference_in_rating_say_the_same_of_two_players() -> None:
    found = fit_ratings(2, [MatchRecord(0, 1, won=3000, lost=1000)])
    assert expected_score(found[0].elo, found[1].elo) == pytest.approx(0.75, abs=1e-3)


def test_whoever_has_won_everything_has_a_rating_all_the_same() -> None:
    found = fit_ratings(2, [MatchRecord(0, 1, won=10)])
    assert 100 < found[0].elo < 1000
    with pytest.raises(ValueError, match="no matches"):
        fit_ratings(2, [MatchRecord(0, 1)])


def of_three() -> LeagueResult:
    tallies = [MatchRecord(0, 1, 1, 1, 2), MatchRecord(0, 2), MatchRecord(1, 2, 0, 0, 4)]
    pairings = [PairResult(tally, tally, tally, 0.0, 4 - tally.matches) for tally in tallies]
    return LeagueResult(
        "r", ["base", "step_000001", "step_<2>"], fit_ratings(3, tallies), pairings, ["4 of 12 matches …"]
    )


class TestShown:
    def test_the_matrix_reads_from_both_sides(self) -> None:
        found = of_three()
        assert found.score(0, 1) == 0.375
        assert found.score(1, 0) == 0.625
        assert found.score(0, 2) is None
        rated, crossed = build_tables(found)
        assert rated.cells[1][3] == "8"
        assert crossed.cells[0] == ["base", "", "38%", ""]
        assert "step_<2>" in format_headline(found)

    def test_what_is_written_is_escaped_and_plain(self, tmp_path: Path) -> None:
        page = write_report(tmp_path, of_three())
        text = page.read_text(encoding="utf-8")
        assert "step_<2>" not in text.split("</figure>")[1]
        assert "step_&lt;2&gt;" in text
        written = json.loads((tmp_path / "league.json").read_text(encoding="utf-8"))
        assert written["scores"][1] == [0.625, None, 0.0]
        assert written["versions"][0] == "base"


class TestMatches:
    def test_every_start_is_played_from_both_sides_and_no_start_twice_from_one(self, tmp_path: Path) -> None:
        run, tasks = league(tmp_path), [Task("t0", "…"), Task("t1", "…")]
        made = pair_attempts(run, game_sides(run), tasks, ["base", "step_000001"], 8)
        first, second = made[:4], made[4:]
        assert [(a.task.id, a.sample) for a in first] == [("t0", 0), ("t1", 0), ("t0", 1), ("t1", 1)]
        assert [(a.task.id, a.sample) for a in second] == [(a.task.id, a.sample) for a in first]
        assert {a.policies["north"] for a in first} == {a.policies["south"] for a in second} == {"player@base"}
        assert {a.policies["south"] for a in first} == {a.policies["north"] for a in second} == {"player@step_000001"}
        assert len({(a.stream, a.task.id, a.sample) for a in made}) == 8

    def test_a_version_is_credited_with_what_its_side_earned(self) -> None:
        """It wins its two matches on the first side, and of those on the second one is lost, one cannot be scored."""
        earned = [(1.0, "terminated"), (0.5, "terminated"), (1.0, "terminated"), (1.0, "failed")]
        for own in (False, True):  # paid to the team, or to each side
            played = [
                Episode(
                    Task("t", "…"), "league", 0, (), status,  # type: ignore[arg-type]
                    (Transition(Observation("…"), 0.0 if own else paid, {"north": paid, "south": -paid} if own else {}),),
                )
                for paid, status in earned
            ]  # fmt: skip
            found = score_pair((0, 1), ("north",), played)
            assert (found.tally.won, found.tally.drawn, found.tally.lost, found.failed) == (2, 0, 1, 1)
            assert (found.on_first_side.won, found.on_second_side.lost) == (2, 1)
            assert found.points == pytest.approx((1.0 + 0.5 - 1.0) / 3)


class Duel(Environment):
    """A game of two sides that is none of our text games."""

    @property
    def opposing_sides(self) -> Sequence[Sequence[str]]:
        return ("north",), ("south",)

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}/0", "Fight.")]

    def start(self, task: Task, seed: int) -> Any:
        raise NotImplementedError


class Played:
    """Stands in for the rollouts of a league: who earns what is written down, by the versions on the first side and on
    the second, start by start; None is a match that cannot be scored. The newest chooses, and is told its card."""

    def __init__(self, earned: dict[str, list[float | None]]) -> None:
        self.earned = earned
        self.seen: dict[str, int] = {}

    def __call__(self, run: RunSettings) -> Played:
        assert {"player@base", "player@step_000001", "player@step_000002"} >= set(run.policies) - {"player", "rival"}
        return self

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None: ...

    def play(self, attempts: list[Attempt], on_done: Callable[[Episode], None]) -> list[Episode]:
        found = []
        for attempt in attempts:
            assert attempt.policies is not None
            north, south = attempt.policies["north"], attempt.policies["south"]
            pair = f"{north.removeprefix('player@')} {south.removeprefix('player@')}"
            number = self.seen[pair] = self.seen.get(pair, -1) + 1
            paid = self.earned[pair][number]
            found.append(self.episode(attempt, paid, north, south))
            on_done(found[-1])
        return found

    @staticmethod
    def episode(attempt: Attempt, paid: float | None, north: str, south: str) -> Episode:
        actions = tuple(
            replace(make_action(role, step=step, policy=policy), choice=Choice((), 0, np.log([1 - bets, bets])))
            for step, role, policy, bets in (
                (0, "north", north, 0.5),
                (1, "south", south, 0.25),
                (2, "north", north, 0.9),
            )
            if policy == "player@step_000002"
        )
        adviser = replace(make_action("adviser", policy="adviser"), choice=Choice((), 0, np.log([0.5, 0.5])))
        other = (make_action("south", policy="player@step_000001"), adviser)
        told = [Observation("…", {"north": "You hold K.", "south": "You hold J. They bet."})] * 2
        half = (paid or 0.0) / 2  # is paid to the team, and half to each side
        steps = (Transition(told[0], half), Transition(told[1], 0.0, {"north": half, "south": -half}))
        status: Literal["terminated", "failed"] = "terminated" if paid is not None else "failed"
        return Episode(attempt.task, attempt.stream, attempt.sample, actions + other, status, steps, error="it broke")


def with_versions(tmp_path: Path, *steps: int, game: str = "nim") -> tuple[RunSettings, RunFolder]:
    """A run with checkpoints of some steps."""
    folder = RunFolder(tmp_path / "league")
    for step in steps:
        (folder.checkpoints / f"step_{step:06d}").mkdir(parents=True)
    return league(tmp_path, environment={"name": "textarena", "opponent": "pool", "game": game}), folder


EARNED: dict[str, list[float | None]] = {
    "base step_000001": [1.0, 1.0], "step_000001 base": [-1.0, 0.0],
    "base step_000002": [-1.0, None], "step_000002 base": [0.5, 0.5],
    "step_000001 step_000002": [0.0, 0.0], "step_000002 step_000001": [0.0, -0.25],
}  # fmt: skip


class TestLeague:
    def test_every_pair_is_played_and_every_match_counts_for_its_two_versions(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("marft_lab.league.evaluation.matches.open_rollout_runner", Played(EARNED))
        run, folder = with_versions(tmp_path, 0, 1, 2)
        told: list[int | None] = []
        found = play_league(run, folder, 4, 8, lambda total=None: told.append(total))
        assert told == [12, *[None] * 12]
        assert (found.run, found.versions) == ("league", ["base", "step_000001", "step_000002"])
        tallies = [MatchRecord(0, 1, 3, 1, 0), MatchRecord(0, 2, 0, 0, 3), MatchRecord(1, 2, 1, 3, 0)]
        assert found.pairings == [
            PairResult(tallies[0], MatchRecord(0, 1, won=2), MatchRecord(0, 1, won=1, drawn=1), 0.75, 0),
            PairResult(tallies[1], MatchRecord(0, 2, lost=1), MatchRecord(0, 2, lost=2), -2 / 3, 1),
            PairResult(tallies[2], MatchRecord(1, 2, drawn=2), MatchRecord(1, 2, won=1, drawn=1), 0.0625, 0),
        ]
        assert found.ratings == fit_ratings(3, tallies)
        assert found.notes == ["1 of 12 matches could not be scored, and count for nobody"]

    def test_how_much_a_version_can_be_exploited_is_by_the_chances_of_all_its_choices(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("marft_lab.league.evaluation.matches.open_rollout_runner", Played(EARNED))
        run, folder = with_versions(tmp_path, 1, 2, game="kuhn")
        found = play_league(run, folder, 4, 8, lambda _=None: None)
        newest = compute_exploitability({("K", ""): 0.5, ("J", "b"): 0.25})
        assert found.exploitability == [None, None, pytest.approx(newest)]

    def test_of_a_game_that_nobody_can_work_out_nothing_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draws: dict[str, list[float | None]] = {"base step_000002": [0.0], "step_000002 base": [0.0]}
        monkeypatch.setattr("marft_lab.league.evaluation.matches.open_rollout_runner", Played(draws))
        run, folder = with_versions(tmp_path, 2)
        found = play_league(run, folder, 2, 2, lambda _=None: None)
        assert found.exploitability == []
        assert found.notes == []
        assert [pairing.tally for pairing in found.pairings] == [MatchRecord(0, 1, drawn=2)]

    def test_a_league_without_a_match_that_counts_is_refused_with_the_first_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken: dict[str, list[float | None]] = {"base step_000002": [None], "step_000002 base": [None]}
        monkeypatch.setattr("marft_lab.league.evaluation.matches.open_rollout_runner", Played(broken))
        run, folder = with_versions(tmp_path, 2)
        with pytest.raises(ValueError, match="no match could be scored: it broke"):
            play_league(run, folder, 2, 8, lambda _=None: None)

    def test_one_pair_whose_matches_all_fail_does_not_end_a_league(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed: dict[str, list[float | None]] = {"base step_000001": [None], "step_000001 base": [None]}
        monkeypatch.setattr("marft_lab.league.evaluation.matches.open_rollout_runner", Played({**EARNED, **failed}))
        run, folder = with_versions(tmp_path, 1, 2)
        found = play_league(run, folder, 2, 8, lambda _=None: None)
        assert [pairing.tally.matches for pairing in found.pairings] == [0, 2, 2]
        assert [pairing.on_first_side.matches for pairing in found.pairings] == [0, 1, 1]
        assert (found.pairings[0].points, found.pairings[0].failed) == (0.0, 2)
        assert found.notes == ["2 of 6 matches could not be scored, and count for nobody"]

    def test_other_games_between_two_sides_have_leagues_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("marft_lab.league.evaluation.matches.open_rollout_runner", Played(EARNED))
        _, folder = with_versions(tmp_path, 1, 2)
        run = league(
            tmp_path,
            policies={"player": {"model": "base"}},
            agents=[{"role": role, "policy": "player", "answers": role == "north"} for role in ("north", "south")],
            environment={"name": "tests.marft_lab.test_league_ratings:Duel"},
            algorithm={"name": "rae"},
        )
        found = play_league(run, folder, 2, 8, lambda _=None: None)
        assert [pairing.tally.matches for pairing in found.pairings] == [2, 2, 2]
        assert found.exploitability == []

    @pytest.mark.parametrize("matches", [-2, 0, 1, 7])
    def test_matches_are_an_even_number(self, matches: int, tmp_path: Path) -> None:
        run, folder = with_versions(tmp_path, 2)
        with pytest.raises(ValueError, match=f"matches = {matches}: .* give an even number"):
            play_league(run, folder, matches, 8, lambda _=None: None)

    def test_one_version_alone_plays_nobody(self, tmp_path: Path) -> None:
        run, folder = with_versions(tmp_path, 0)
        with pytest.raises(ValueError, match="has one version alone"):
            play_league(run, folder, 2, 8, lambda _=None: None)

    def test_for_other_programs_a_league_is_plain_values(self) -> None:
        found = replace(of_three(), exploitability=[0.25, None, 0.5])
        table = found.as_json()
        assert json.loads(json.dumps(table)) == {
            "run": "r",
            "versions": ["base", "step_000001", "step_<2>"],
            "ratings": [{"elo": one.elo, "interval": list(one.interval)} for one in found.ratings],
            "exploitability": [0.25, None, 0.5],
            "scores": [[None, 0.375, None], [0.625, None, 0.0], [None, 1.0, None]],
            "pairings": [
                {"tally": asdict(p.tally), "on_first_side": asdict(p.on_first_side), "on_second_side": asdict(p.tally),
                 "points": 0.0, "failed": p.failed}
                for p in found.pairings
            ],
            "notes": ["4 of 12 matches …"],
        }  # fmt: skip
        assert LeagueResult("r", [], [], []).as_json()["exploitability"] == []


class TestSides:
    def test_an_opponent_s_seat_is_taken_by_the_learner_s_own_policy(self, tmp_path: Path) -> None:
        run = league(tmp_path)
        sides = game_sides(run)
        assert sides == (("north",), ("south",))
        assert assign_policies(run, sides, ["step_000001", "base"]) == {
            "north": "player@step_000001",
            "south": "player@base",
        }

    def test_where_both_sides_learn_each_is_played_by_its_own_policy(self, tmp_path: Path) -> None:
        run = league(
            tmp_path,
            policies={"a": {"model": "base"}, "b": {"model": "base"}},
            agents=[
                {"role": "north", "policy": "a", "answers": True},
                {"role": "south", "policy": "b"},
            ],
            environment={"name": "textarena"},
            algorithm={"name": "rae"},
        )
        assert assign_policies(run, game_sides(run), ["x", "y"]) == {"north": "a@x", "south": "b@y"}

    def test_a_frozen_teammate_is_the_same_on_every_version_s_side(self, tmp_path: Path) -> None:
        run = league(
            tmp_path,
            policies={"player": {"model": "base"}, "adviser": {"model": "base", "train": "frozen"}},
            agents=[
                {"role": "adviser", "policy": "adviser"},
                {"role": "north", "policy": "player", "answers": True},
                {"role": "south", "policy": "player"},
            ],
            environment={"name": "textarena", "seats": [["adviser", "north"], ["south"]]},
            algorithm={"name": "rae"},
        )
        assert assign_policies(run, game_sides(run), ["x", "y"]) == {
            "adviser": "adviser",
            "north": "player@x",
            "south": "player@y",
        }

    def test_a_game_that_is_played_together_has_no_league(self, tmp_path: Path) -> None:
        changes: dict[str, Any] = {
            "policies": {"player": {"model": "base"}, "rival": {"model": "base"}},
            "environment": {"name": "textarena", "game": "hints"},
        }
        with pytest.raises(ValueError, match="a league is of games between two sides"):
            game_sides(league(tmp_path, **changes))

    def test_a_run_without_checkpoints_has_no_versions(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no checkpoint yet"):
            find_versions(league(tmp_path), RunFolder(tmp_path), 8)


@BY_NIGHT
@pytest.mark.slow
def test_versions_of_a_run_play_each_other_from_both_sides(tmp_path: Path) -> None:
    run, folder = (
        league(tmp_path, "--training.steps", "2", "--checkpoints.keep_last", "1"),
        RunFolder(tmp_path / "league"),
    )
    train(run, folder)
    assert list(find_versions(run, folder, 8)) == [
        "base",
        "step_000001",
        "step_000002",
    ]  # the first is in the pool alone
    assert list(find_versions(run, folder, 2)) == ["base", "step_000002"]
    found = play_league(run, folder, 8, 8, lambda _=None: None)
    assert [pairing.tally.matches for pairing in found.pairings] == [8, 8, 8]
    for pairing in found.pairings:
        assert pairing.on_first_side.matches == pairing.on_second_side.matches == 4
        assert pairing.failed == 0
    again = play_league(run, folder, 8, 8, lambda _=None: None)
    assert again == found
    with pytest.raises(ValueError, match="give an even number"):
        play_league(run, folder, 7, 8, lambda _=None: None)
