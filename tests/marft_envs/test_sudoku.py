"""The world ``sudoku``: puzzles with one solution, fills that are told when they contradict, who sees what, who plays."""

from __future__ import annotations

import doctest
from dataclasses import replace
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.common.types import Task
from marft.config.interfaces.environment import Session
from marft.envs.scripted_policy import PolicyInput
from marft_envs.sudoku import rules
from marft_envs.sudoku.environment import Sudoku, SudokuScript
from marft_envs.sudoku.rules import SudokuBoard, find_error, parse_answer, peers, to_grid
from marft_envs.sudoku.solver import (
    canonical_text,
    generate_puzzle,
    has_unique_solution,
    iterate_solutions,
    solvable_by_singles,
)
from tests.grids import FEW, by_script, every_solution, first_shown, play, with_changes

SOLUTION = ((1, 2, 3, 4), (3, 4, 1, 2), (2, 1, 4, 3), (4, 3, 2, 1))
GIVENS = ((0, 2, 3, 4), (3, 4, 0, 2), (2, 1, 4, 0), (4, 0, 2, 1))  # blank: 1,1 (1); 2,3 (1); 3,4 (3); 4,2 (3)
SEEDS = st.integers(0, 2**32)


@cache
def world(**keys: Any) -> Sudoku:
    return Sudoku.model_validate({"train_tasks": 20, "held_out_tasks": 5, **keys})


def of(environment: Sudoku, givens: tuple[tuple[int, ...], ...] = GIVENS) -> Session:
    blanks = sum(not value for row in givens for value in row)
    data = {"puzzle": [list(row) for row in givens], "solution": [list(row) for row in SOLUTION], "blanks": blanks}
    return environment.start(Task("t", "", data), 0)


@pytest.mark.parametrize("module", [rules])
def test_examples_are_true(module: Any) -> None:
    tried = doctest.testmod(module)
    assert tried.failed == 0
    assert tried.attempted > 0


@FEW
@given(SEEDS, st.integers(1, 11))
def test_solutions_are_those_that_trying_everything_finds(seed: int, blanks: int) -> None:
    random = Random(seed)
    board = next(iterate_solutions(SudokuBoard(((0,) * 4,) * 4), random))
    for cell in random.sample(sorted(peers(4)), blanks):
        board = board.with_value(cell, 0)
    every = every_solution([list(row) for row in board.grid], 2, 2)
    assert sorted(found.grid for found in iterate_solutions(board)) == sorted(map(to_grid, every))
    assert has_unique_solution(board) == (len(every) == 1)
    if solvable_by_singles(board):
        assert len(every) == 1


@pytest.mark.parametrize(("size", "rows", "columns"), [(4, 2, 2), (6, 2, 3), (9, 3, 3)])
def test_solutions_keep_the_rules_and_what_is_left_out_has_them_back(size: int, rows: int, columns: int) -> None:
    for seed in range(3):
        found = generate_puzzle(size, size, singles=True, random=Random(seed))
        assert found
        board, solution = found
        assert solvable_by_singles(board)
        assert len(board.blank_cells) == size
        for line in [*solution.grid, *zip(*solution.grid, strict=True)]:
            assert sorted(line) == list(range(1, size + 1))
        boxes: dict[tuple[int, int], list[int]] = {}
        for r, c in peers(size):
            boxes.setdefault((r // rows, c // columns), []).append(solution.value_at((r, c)))
        assert all(sorted(box) == list(range(1, size + 1)) for box in boxes.values())
        assert next(iterate_solutions(board)) == solution
        assert not find_error(solution.grid, board)


@FEW
@given(SEEDS)
def test_where_singles_get_stuck_a_value_has_to_be_guessed(seed: int) -> None:
    found = generate_puzzle(4, 10, singles=False, random=Random(seed))
    if found:
        assert len(every_solution([list(row) for row in found[0].grid], 2, 2)) == 1
        board = found[0]
        while any(len(board.candidates(cell)) == 1 for cell in board.blank_cells):
            cell = next(cell for cell in board.blank_cells if len(board.candidates(cell)) == 1)
            board = board.with_value(cell, board.candidates(cell)[0])
        assert solvable_by_singles(found[0]) == (not board.blank_cells)


def test_a_puzzle_takes_a_guess_only_where_it_may() -> None:
    guessed = {
        singles: [
            not solvable_by_singles(found[0])
            for seed in range(12)
            if (found := generate_puzzle(6, 26, singles, Random(seed)))
        ]
        for singles in (True, False)
    }
    assert guessed[True]
    assert not any(guessed[True])
    assert any(guessed[False])


@FEW
@given(SEEDS, st.permutations(range(1, 5)), st.integers(0, 3), st.booleans())
def test_a_puzzle_is_the_same_turned_mirrored_and_in_other_digits(
    seed: int, digits: list[int], quarters: int, mirrored: bool
) -> None:
    found = generate_puzzle(4, 6, singles=False, random=Random(seed))
    assert found
    grid = [[digits[value - 1] if value else 0 for value in row] for row in found[0].grid]
    for _ in range(quarters):
        grid = [list(row) for row in zip(*grid[::-1], strict=True)]
    grid = [row[::-1] for row in grid] if mirrored else grid
    assert canonical_text(SudokuBoard(to_grid(grid))) == canonical_text(found[0])


def test_what_is_no_symmetry_makes_another_puzzle() -> None:
    board = SudokuBoard(GIVENS)
    swapped = SudokuBoard((GIVENS[0], GIVENS[2], GIVENS[1], GIVENS[3]))  # rows of two bands: no sudoku any more
    assert canonical_text(board) != canonical_text(swapped)
    six = next(iterate_solutions(SudokuBoard(((0,) * 6,) * 6), Random(0))).with_value((0, 1), 0)
    aside = SudokuBoard(to_grid(list(zip(*six.grid, strict=True))))  # its boxes would be 3 x 2
    assert canonical_text(six) != canonical_text(aside)
    assert canonical_text(six) == canonical_text(SudokuBoard(tuple(row[::-1] for row in six.grid[::-1])))


@pytest.mark.parametrize(
    ("says", "told", "refused"),
    [
        ("1,1 = 1", "", 0),
        ("1,1 = 3", "1,1 cannot be 3: 1,3 is.", 1),
        ("(1, 2, 2)", "1,2 is 2 already.", 1),
        ("1,1 = 5", "1,1 cannot be 5: values are 1 to 4.", 1),
        ("1,1 = 0", "1,1 cannot be 0: values are 1 to 4.", 1),
        ("5 1 1", "There is no cell 5,1.", 1),
        ("0,1 = 1", "There is no cell 0,1.", 1),
        ("1,1 can be 1", "Nothing filled: say one fill such as 1,2 = 3.", 1),
        ("1,1 = 1; 2,3 = 1", "Nothing filled: say one fill such as 1,2 = 3.", 1),
        (str([list(row) for row in SOLUTION]), "Nothing filled: say one fill such as 1,2 = 3.", 1),
        (None, "Nothing filled: say one fill such as 1,2 = 3.", 1),
    ],
)
def test_what_is_wrong_with_a_fill_is_told(says: str | None, told: str, refused: int) -> None:
    [step] = play(of(world(fills="one")), [says])
    shown = step.observation.text.split("\n")
    assert (shown[0] if told else "") == told
    assert step.info["measures"] == {"refused": refused}
    assert step.reward == (0.0 if told else 0.25)
    assert (". 2 3 4" in shown) == bool(told)
    assert not step.terminated


@pytest.mark.parametrize(
    ("says", "told", "reward"),
    [
        ("#### [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]", "", 1.0),
        ("1234\n3412\n2143\n4321", "", 1.0),
        ("[[1,2,3,4],[3,4,1,2],[2,1,4,1],[4,3,2,1]]", "3,2 and 3,4 are both 1.", 0.75),
        ("[[4,2,3,1],[3,4,1,2],[2,1,4,3],[1,3,2,4]]", "1,4 is given as 4, not 1.", 0.75),
        ("[[1,2,3,4],[3,4,9,2],[2,1,4,3],[4,3,2,1]]", "2,3 cannot be 9: values are 1 to 4.", 0.75),
        ("[[1,2,3,4],[3,4,0,2],[2,1,4,3],[4,3,2,1]]", "2,3 cannot be 0: values are 1 to 4.", 0.75),
        ("1,1 = 1; 2,3 = 1", "", 0.5),
        ("1,1 = 1; 2,3 = 3; 3,4 = 3", "2,3 cannot be 3: 1,3 is.", 0.25),
    ],
)
def test_fills_are_taken_up_to_a_wrong_one_and_a_grid_as_a_whole(says: str, told: str, reward: float) -> None:
    [step] = play(of(world()), [says])
    assert (step.observation.text.split("\n")[0] if told else "") == told
    assert step.reward == pytest.approx(reward)
    assert step.success == step.terminated == (reward == 1.0)
    [alone] = play(of(world(reward="success")), [says])
    assert alone.reward == float(reward == 1.0)


def test_rewards_of_cells_add_up_to_the_best_share_and_a_wrong_grid_leaves_the_board() -> None:
    wrong = "[[1,2,3,4],[3,4,1,2],[2,1,4,1],[4,3,2,1]]"
    steps = play(of(world()), [wrong, "4,2 = 3", wrong, "1,1 = 1; 2,3 = 1; 3,4 = 3"])
    assert [step.reward for step in steps] == pytest.approx([0.75, 0.0, 0.0, 0.25])
    assert [step.info["progress"] for step in steps] == pytest.approx([0.75, 0.75, 0.75, 1.0])
    assert "4 3 2 1" in steps[1].observation.text
    assert steps[-1].success


@pytest.mark.parametrize(
    ("keys", "most", "of_two"), [({"fills": "one"}, 5, 3), ({"fills": "any"}, 5, 5), ({"max_steps": 2}, 2, 2)]
)
def test_an_episode_has_so_many_steps_and_each_refused_answer_counts(
    keys: dict[str, Any], most: int, of_two: int
) -> None:
    environment = world(blanks=3, min_blanks=2, **keys)
    steps = play(of(environment, (SOLUTION[0], *GIVENS[1:])), ["2,3 = 3"] * 20)
    assert len(steps) == most
    assert [step.terminated for step in steps] == [False] * (most - 1) + [True]
    assert [step.info["measures"]["refused"] for step in steps] == list(range(1, most + 1))
    assert len(play(of(environment, (*SOLUTION[:2], *GIVENS[2:])), ["3,4 = 1"] * 20)) == of_two


def test_a_puzzle_that_cannot_be_finished_ends_where_a_blank_shows_it() -> None:
    givens = ((0, 0, 3, 4), (3, 4, 1, 2), (0, 1, 4, 3), (4, 3, 2, 1))
    [step] = play(of(world(fills="one"), givens), ["1,1 = 2"])  # 1,2 may not be 1 any more
    assert step.terminated
    assert not step.success
    assert step.observation.text == "Nothing fits 1,2 any more."
    [listed] = play(of(world(), givens), ["1,1 = 2"])
    assert not listed.terminated  # a whole grid would still do


def test_who_is_shown_what() -> None:
    shown = first_shown(of(world(fills="one", view="list", seen_for=("tool",))))
    assert shown.for_role("plan") == "Blank: 1,1; 2,3; 3,4; 4,2."
    around = "1,1 sees 2 3 4; 2,3 sees 2 3 4; 3,4 sees 1 2 4; 4,2 sees 1 2 4."
    assert shown.for_role("tool") == f"Blank: 1,1; 2,3; 3,4; 4,2.\n\n{around}"
    grid = ". 2 3 4\n3 4 . 2\n2 1 4 .\n4 . 2 1"
    assert first_shown(of(world())).text == grid
    assert first_shown(of(world(view="both"))).text == f"{grid}\nBlank: 1,1; 2,3; 3,4; 4,2."


@pytest.mark.parametrize(
    ("keys", "says"),
    [({"size": 5}, "4, 6 or 9"), ({"min_blanks": 9}, "is more than blanks"), ({"view": "list"}, "tells nobody")],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Sudoku.model_validate(keys)


def test_more_blanks_than_one_solution_allows_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="none has a puzzle with 14 blanks; lower blanks"):
        Sudoku(blanks=14).tasks("train")
    with pytest.raises(ValueError, match=r"environment\.seen_for: no agent is called 'plann'; did you mean 'plan'"):
        with_changes("sudoku", seen_for=["plann"])


def test_puzzles_are_as_wished_and_no_form_of_a_held_out_one_is_trained_on() -> None:
    environment = world(blanks=7, min_blanks=5, singles=True, train_tasks=120, held_out_tasks=30)
    parts = [environment.tasks(split) for split in ("train", "validation", "test")]  # type: ignore[arg-type]
    parts.append(list(islice(environment.demonstrations(), 40)))
    forms = [{canonical_text(SudokuBoard(to_grid(task.data["puzzle"]))) for task in part} for part in parts]
    assert sum(map(len, forms)) == len(set.union(*forms)) == 220
    assert {task.data["blanks"] for task in parts[0]} == {5, 6, 7}
    assert all(solvable_by_singles(SudokuBoard(to_grid(task.data["puzzle"]))) for task in parts[0])
    assert all(task.prompt == first_shown(environment.start(task, 0)).text for task in parts[0])
    assert {task.data["blanks"] for task in world(blanks=6).tasks("train")} == {6}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sudoku", {}),
        ("sudoku_single", {}),
        ("sudoku", {"singles": False, "blanks": 9, "view": "both", "seen_for": []}),
        ("sudoku", {"size": 6, "blanks": 12, "fills": "any", "view": "grid", "seen_for": []}),
    ],
)
def test_a_script_of_skill_solves_every_puzzle_in_the_fewest_steps(name: str, changes: dict[str, Any]) -> None:
    episodes = by_script(with_changes(name, **{"train_tasks": 12, "held_out_tasks": 2, **changes}))
    assert all(episode.success for episode in episodes)
    assert [len(episode.transitions) for episode in episodes] == [e.task.data["fewest_steps"] for e in episodes]
    assert all(episode.total_reward == pytest.approx(1.0) for episode in episodes)


def test_a_weak_script_solves_some() -> None:
    solved = [bool(episode.success) for episode in by_script(with_changes("sudoku"), tasks=10, skill=0.65)]
    assert 1 <= sum(solved) <= 9


@pytest.mark.parametrize(
    ("role", "shown", "share"),
    [
        ("tool", "Blank: 1,1.\n\n1,1 sees 1 2 3.", 0.25),  # a large value tempts it
        ("tool", "Blank: 1,1.\n\n1,1 sees 2 3 4.", 0.5**0.5),
        ("plan", "Blank: 4,4.\n\nMessage from tool:\n4,4 can be 1", 0.25),  # and a low row
        ("plan", "Blank: 1,1.\n\nMessage from tool:\n1,1 can be 1", 0.5**0.5),
    ],
)
def test_a_weak_script_slips_most_where_it_is_tempted(role: str, shown: str, share: float) -> None:
    task = Task("t", "", {"solution": [list(row) for row in SOLUTION]})
    cues = [PolicyInput(task, role, 0, [{"content": shown}], Random(seed)) for seed in range(2000)]
    best = SudokuScript(1.0, "one")(replace(cues[0], random=Random(0)))
    chance = [SudokuScript(0.0, "one")(replace(cue, random=Random(seed))) for seed, cue in enumerate(cues)].count(best)
    said = [SudokuScript(0.5, "one")(cue) for cue in cues].count(best)
    assert said / 2000 == pytest.approx(share + (1 - share) * chance / 2000, abs=0.04)


def test_a_text_without_end_is_read_in_part() -> None:
    assert parse_answer("1,1 = 1;" * 10**5, 4) == [((0, 0), 1)] * (rules.MAX_ANSWER // 8)


@FEW
@given(st.text("0123456789,;=[]() \n.#|abc", max_size=40), st.sampled_from([4, 6, 9]))
def test_any_text_is_read(text: str, size: int) -> None:
    found = parse_answer(text, size)
    assert found is None or len(found) > 0
