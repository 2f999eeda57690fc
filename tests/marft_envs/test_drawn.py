"""Worlds whose tasks are drawn: parts are disjoint by content, whatever is asked for, and demonstrations are in none."""

from __future__ import annotations

from itertools import islice
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from marft.common.packages import bundled_plugins
from marft.config.plugins import find_plugin
from marft.envs.splits import assign_data_split, assign_split
from marft_envs.generated import GeneratedEnvironment, GeneratedTask


class Sums(GeneratedEnvironment):
    """Sums of two numbers; their order does not matter."""

    highest: int = 200

    def generate_task(self, random: Random) -> GeneratedTask:
        a, b = random.randrange(self.highest), random.randrange(self.highest)
        return GeneratedTask(f"{min(a, b)} + {max(a, b)}", f"{a} + {b} =", {"sum": a + b, "content": sorted((a, b))})

    def start(self, task: object, seed: int) -> object:
        raise NotImplementedError


def contents(tasks: object) -> set[tuple[int, ...]]:
    return {tuple(task.data["content"]) for task in tasks}  # type: ignore[attr-defined]


@given(st.integers(0, 2**62), st.integers(1, 60), st.integers(1, 30))
def test_parts_share_no_content_whatever_is_asked_for(seed: int, train: int, held_out: int) -> None:
    world = Sums(seed=seed, train_tasks=train, held_out_tasks=held_out)
    parts = [
        world.tasks("train"),
        world.tasks("validation"),
        world.tasks("test"),
        list(islice(world.demonstrations(), 50)),
    ]
    assert [len(part) for part in parts] == [train, held_out, held_out, 50]
    found = [contents(part) for part in parts]
    assert sum(map(len, found)) == len(set.union(*found)) == train + 2 * held_out + 50


def test_no_part_of_one_seed_is_another_part_of_another() -> None:
    worlds = [Sums(seed=seed, train_tasks=300, held_out_tasks=100) for seed in (1, 2)]
    train, test = (set.union(*(contents(world.tasks(split)) for world in worlds)) for split in ("train", "test"))  # type: ignore[arg-type]
    shown = set.union(*(contents(islice(world.demonstrations(), 300)) for world in worlds))
    assert not train & test
    assert not train & shown
    assert not test & shown


def test_a_small_world_has_as_many_tasks_as_there_are() -> None:
    world = Sums(highest=3, train_tasks=100, held_out_tasks=100)
    assert sum(len(world.tasks(split)) for split in ("train", "validation", "test")) <= 6  # type: ignore[arg-type]


def test_a_seed_gives_the_same_tasks_and_fewer_are_the_first_of_more() -> None:
    one, more = Sums(seed=3, train_tasks=20), Sums(seed=3, train_tasks=90)
    assert one.tasks("train") == more.tasks("train")[:20]
    assert one.tasks("test") == more.tasks("test")
    assert list(islice(one.demonstrations(), 9)) == list(islice(more.demonstrations(), 9))


def test_demonstrations_are_a_fifth_taken_from_training() -> None:
    texts = [f"maze {number}" for number in range(10_000)]
    parts = [assign_data_split(text) for text in texts]
    assert all(part == assign_split(text) for part, text in zip(parts, texts, strict=True) if part != "demonstrations")
    assert 0.18 < parts.count("demonstrations") / len(parts) < 0.22
    assert 0.57 < parts.count("train") / len(parts) < 0.63


def test_the_name_of_a_stream_decides_what_is_drawn_and_the_name_of_the_class_only_without_one() -> None:
    class Renamed(Sums):
        stream = "Sums"

    class Other(Sums): ...

    here = [task.prompt for task in Sums(train_tasks=20).tasks("train")]
    assert [task.prompt for task in Renamed(train_tasks=20).tasks("train")] == here
    assert [task.prompt for task in Other(train_tasks=20).tasks("train")] != here


def test_built_in_worlds_draw_from_streams_whose_names_never_change() -> None:
    classes = {name: find_plugin("environments", name) for name in bundled_plugins("environments")}
    found = {name: world.stream for name, world in classes.items() if issubclass(world, GeneratedEnvironment)}
    assert found == {
        "code": "Code", "gaia": "Gaia", "instructions": "Instructions", "memory": "Memory", "mle": "Mle",
        "plan_path": "PlanPath", "relay": "Relay", "rooms": "Rooms", "shop": "Shop", "sokoban": "Sokoban",
        "sudoku": "Sudoku", "textarena": "TextArena", "tool_use": "ToolUse",
    }  # fmt: skip
