"""Groups that are played ahead: what is begun, heard, counted and learned from of them, also where some make way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from marft.agents.game import Attempt
from marft.common.types import Episode, Status, VersionRange
from marft.rollout.async_rollout.groups import Group, read_groups, write_groups
from marft.rollout.rollout_batch import sample_attempts
from marft.runs.state import State
from tests.playing_ahead import TASKS, FakeRollouts, ahead, ahead_of, fake, next_step

DAPO = ("--algorithm", "{name = 'dapo', dynamic_sampling = 2}")
COMA = ("--algorithm", "{name = 'coma'}")


def numbered(rollouts: FakeRollouts, number: int) -> str:
    """The task of a group."""
    return sample_attempts(rollouts.run, TASKS, 0, number, 1)[0].task.id


def test_whatever_was_scored_can_be_learned_from() -> None:
    every = ("terminated", "truncated", "paused", "failed", "timed_out")
    played = [Episode(TASKS[0], "train/0", n, (), cast("Status", status)) for n, status in enumerate(every)]
    assert [episode.status for episode in Group(0, played, played).scored] == ["terminated", "truncated", "paused"]


def test_a_run_that_goes_on_begins_nothing_for_steps_that_do_not_come() -> None:
    rollouts = fake(ahead_of(3, steps=4))
    rollouts.now = 3
    ahead(rollouts, State(step=3, tasks_drawn=6)).collect(State(step=3, tasks_drawn=6), lambda _: None)
    assert len(rollouts.begun) == 2


def test_as_much_is_ahead_where_a_task_is_set_aside_and_another_makes_way() -> None:
    rollouts = fake(ahead_of(1, *DAPO))
    aside, equal = numbered(rollouts, 0), numbered(rollouts, 1)
    rollouts.excluded_tasks[aside] = "it ended its workers"
    rollouts.pay = lambda attempt: float(attempt.sample and attempt.task.id != equal)
    ahead(rollouts).collect(State(), lambda _: None)
    assert len(rollouts.begun) == 1 + 2 * 2  # one that made way, and two steps


def test_what_is_kept_is_not_counted_among_the_equal_ones_that_a_step_may_come_by() -> None:
    rollouts = fake(ahead_of(1, *DAPO))
    first = numbered(rollouts, 0)
    rollouts.pay = lambda attempt: float(attempt.sample and (attempt.stream, attempt.task.id) == ("train/0", first))
    _, collection = next_step(ahead(rollouts), rollouts, State())
    assert (collection.metrics["groups_discarded"], collection.tasks_drawn) == (6, 7)
    assert [episode.task.id for episode in collection.training_episodes] == [first] * 2
    assert [episode.name for episode in collection.recorded] == [episode.name for episode in collection.episodes]
    assert len(collection.recorded) == 2 * 7


def test_without_dynamic_sampling_groups_of_equal_rewards_are_learned_from() -> None:
    _, collection = next_step(ahead(rollouts := fake(ahead_of(1), pay=lambda _: 1.0)), rollouts, State())
    assert "groups_discarded" not in collection.metrics
    assert [episode.name for episode in collection.training_episodes] == [
        episode.name for episode in collection.episodes
    ]
    assert len(collection.episodes) == 4


def test_of_forks_nobody_hears_and_they_are_counted_recorded_and_learned_from() -> None:
    rollouts, heard = fake(ahead_of(1, *COMA)), list[str]()
    gathering = ahead(rollouts)
    collection = gathering.collect(State(), lambda episode: heard.append(episode.name))
    gathering.close()
    assert heard == [episode.name for episode in collection.episodes]
    assert [bool(episode.fork) for episode in collection.episodes] == [False] * 4
    forks = sum(bool(episode.fork) for episode in collection.recorded)
    assert forks == len(collection.recorded) - 4 > 0
    assert (collection.metrics["forks"], collection.metrics["forks_failed"]) == (forks, 0)
    assert len(collection.training_episodes) == len(collection.recorded)


@pytest.mark.parametrize("late", [0, 1])
def test_a_group_is_as_old_as_the_oldest_of_all_its_attempts(late: int) -> None:
    rollouts = fake(ahead_of(1))
    made, first, rollouts.now = rollouts.episode, numbered(rollouts, 0), 2

    def episode(attempt: Attempt, version: int) -> Episode:
        found = made(attempt, version)
        if (attempt.stream, attempt.task.id, attempt.sample) != ("train/0", first, late):
            return found
        return replace(found, actions=tuple(replace(one, versions=VersionRange(0, version)) for one in found.actions))

    rollouts.episode = episode  # type: ignore[method-assign]
    collection = ahead(rollouts, State(step=2)).collect(State(step=2), lambda _: None)
    assert collection.metrics["async/groups_dropped"] == 1
    assert first not in {episode.task.id for episode in collection.training_episodes}


def test_of_groups_that_are_kept_it_is_known_which_were_played_and_which_forked(tmp_path: Path) -> None:
    """Whatever the order in which they are recorded."""
    rollouts = fake(ahead_of(1))
    found = [rollouts.episode(attempt, 3) for attempt in sample_attempts(rollouts.run, TASKS, 0, 0, 2)]
    write_groups(tmp_path, [Group(4, found[1:3], found), Group(6, found[:1], found[:2])], "ahead")
    one, other = read_groups(tmp_path, TASKS, "ahead")
    assert [(group.number, len(group.recorded)) for group in (one, other)] == [(4, 4), (6, 2)]
    assert [episode.name for episode in one.episodes] == [episode.name for episode in found[1:3]]
    assert list(other.episodes) == list(other.recorded[:1])


def test_a_list_of_groups_can_be_read_by_people(tmp_path: Path) -> None:
    rollouts = fake(ahead_of(1))
    found = [rollouts.episode(attempt, 3) for attempt in sample_attempts(rollouts.run, TASKS, 0, 0, 1)]
    write_groups(tmp_path, [Group(4, found[1:], found)], "ahead")
    assert (
        (tmp_path / "ahead.json").read_text(encoding="utf-8")
        == """\
{
  "groups": [
    {
      "number": 4,
      "episodes": 2,
      "played": [
        1
      ]
    }
  ]
}
"""
    )


def test_where_nothing_was_played_nothing_is_written_and_nothing_read(tmp_path: Path) -> None:
    write_groups(tmp_path, [], "ahead")
    assert list(tmp_path.iterdir()) == []
    assert read_groups(tmp_path, TASKS, "ahead") == []
