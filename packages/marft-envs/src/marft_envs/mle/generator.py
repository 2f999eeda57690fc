"""Generator for small competitions with a planted structure and a leaderboard of fictional teams.

Three kinds of structure:

    linear    the value is a weighted sum of numbers, plus noise; metric: root mean squared error
    groups    the value depends on two groups of the row, plus noise; metric: mean absolute error
    bound     the label gives the side of a bound that one number is on, with a few labels flipped; metric: accuracy
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedTask
from marft_envs.mle.competition import METRICS, Competition, Leaderboard

Rows = Sequence[Sequence[str]]
Columns = npt.NDArray[np.float64]


def predict(kind: str, train: Rows, test: Rows) -> list[str]:
    """Fit the training rows and return predictions for the test rows.

    The last cell of a row is its answer; it is ignored in test rows.
    """
    return {"linear": _fit_linear, "groups": _fit_groups, "bound": _fit_bound}[kind](train, test)


def _fit_linear(train: Rows, test: Rows) -> list[str]:
    """Fit a linear model with intercept by least squares."""
    train_inputs, test_inputs = (np.array([[1.0, *map(float, row[1:-1])] for row in rows]) for rows in (train, test))
    return _fit_and_predict(train_inputs, test_inputs, train)


def _fit_groups(train: Rows, test: Rows) -> list[str]:
    """Fit group effects by least squares with minimum norm.

    Only sums of two effects are identifiable.
    """
    groups = sorted({(place, row[place]) for row in train for place in (1, 2)})
    train_inputs, test_inputs = (
        np.array([[float(row[p] == g) for p, g in groups] for row in rows]) for rows in (train, test)
    )
    return _fit_and_predict(train_inputs, test_inputs, train)


def _fit_and_predict(train_inputs: Columns, test_inputs: Columns, train: Rows) -> list[str]:
    values = np.array([float(row[-1]) for row in train])
    weights, *_ = np.linalg.lstsq(train_inputs, values, rcond=None)
    return [f"{value:.6f}" for value in test_inputs @ weights]


def _fit_bound(train: Rows, test: Rows) -> list[str]:
    """Choose the column, bound and side with the most correct training labels."""
    best = max(
        _candidate_bounds(train), key=lambda candidate: sum(_predict_label(row, *candidate) == row[-1] for row in train)
    )
    return [_predict_label(row, *best) for row in test]


def _candidate_bounds(train: Rows) -> Iterable[tuple[int, float, str]]:
    for place in range(1, len(train[0]) - 1):
        values = sorted(float(row[place]) for row in train)
        for low, high in pairwise(values):
            yield from ((place, (low + high) / 2, above) for above in ("yes", "no"))


def _predict_label(row: Sequence[str], place: int, bound: float, above: str) -> str:
    below = "no" if above == "yes" else "yes"
    return above if float(row[place]) > bound else below


Kind = Literal["linear", "groups", "bound"]
KIND_METRICS: Mapping[Kind, str] = {"linear": "rmse", "groups": "mae", "bound": "accuracy"}
KIND_DESCRIPTIONS: Mapping[Kind, str] = {
    "linear": "Predict the number y from the numbers x1, x2, ….",
    "groups": "Predict the number y from the groups g1 and g2.",
    "bound": "Predict the label y, yes or no, from the numbers x1, x2, ….",
}
TRAIN_ROWS, TEST_ROWS = 60, 40
TEAM_RANGE = (
    20,
    1500,
)  # minimum and maximum teams on a leaderboard; the range covers all of MLE-bench's medal brackets
NOISE_SCALE = 0.3
FLIP_PROBABILITY = 0.05
COLUMNS = ("id", "y")
Row = list[str]
Parameters = Mapping[str, Any]  # parameters of a planted structure, as plain values


def generate_competition(random: Random, kinds: Sequence[Kind]) -> GeneratedTask:
    """Generate the parameters of a competition; they are its content, which decides the split."""
    kind = random.choice(list(kinds))
    parameters = _PARAMETER_GENERATORS[kind](random)
    data = {"kind": kind, "plant": parameters, "teams": random.randint(*TEAM_RANGE), "seed": random.getrandbits(32)}
    return GeneratedTask(
        f"{kind} {parameters}", describe(kind, len(parameters["weights"]) if kind == "linear" else 0), data
    )


def describe(kind: Kind, columns: int) -> str:
    """Return the description for the team."""
    better = "lower" if METRICS[KIND_METRICS[kind]].lower_is_better else "higher"
    column_note = f" There are {columns} of them." if columns else ""
    return (
        f"{KIND_DESCRIPTIONS[kind]}{column_note} train.csv has y, test.csv has not. Write submission.csv with the "
        "columns id and y, one row for each row of test.csv, as in sample_submission.csv. Graded by "
        f"{KIND_METRICS[kind]}, {better} is better."
    )


def build_competition(prompt: str, data: Mapping[str, Any]) -> Competition:
    """Build the competition of a task; equal data give equal tables."""
    kind, random = data["kind"], Random(data["seed"])
    header, rows = _TABLE_GENERATORS[kind](random, data["plant"], TRAIN_ROWS + TEST_ROWS)
    train, test = rows[:TRAIN_ROWS], rows[TRAIN_ROWS:]
    answers = {row[0]: row[-1] for row in test}
    constant = "no" if kind == "bound" else "0"
    public = {
        "description.md": prompt,
        "train.csv": format_csv([header, *train]),
        "test.csv": format_csv([header[:-1], *(row[:-1] for row in test)]),
        "sample_submission.csv": format_csv([list(COLUMNS), *([name, constant] for name in answers)]),
    }
    metric = KIND_METRICS[kind]
    plain_competition = Competition(
        prompt, {}, answers, COLUMNS, metric, Leaderboard((0.0,), METRICS[metric].lower_is_better)
    )
    fitted_score = plain_competition.score(
        format_csv([list(COLUMNS), *zip(answers, predict(kind, train, test), strict=True)])
    )
    board = Leaderboard(
        _draw_leaderboard(
            random, data["teams"], fitted_score, plain_competition.score(public["sample_submission.csv"])
        ),
        METRICS[metric].lower_is_better,
    )
    public_files = {name: content.encode() for name, content in public.items()}
    return Competition(prompt, public_files, answers, COLUMNS, metric, board)


def format_csv(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as CSV; no cell needs quotes."""
    return "".join(f"{','.join(row)}\n" for row in rows)


def _draw_leaderboard(random: Random, teams: int, fitted_score: float, sample_score: float) -> list[float]:
    """Generate team scores, best first.

    Scores lie between the planted structure's fit and slightly below the sample submission, denser near the fit.
    """
    shares = sorted(0.01 + 1.1 * random.random() ** 2 for _ in range(teams))
    return [round(fitted_score + share * (sample_score - fitted_score), 5) for share in shares]


def _draw_linear(random: Random) -> Parameters:
    count = random.randint(2, 4)
    weights = [random.choice((-1, 1)) * random.randint(1, 9) for _ in range(count)]
    return {"weights": weights, "base": random.randint(0, 20)}


def _draw_groups(random: Random) -> Parameters:
    return {name: {group: random.randint(0, 30) for group in "abcd"} for name in ("g1", "g2")}


def _draw_bound(random: Random) -> Parameters:
    count = random.randint(2, 4)
    which, bound = random.randrange(count), random.randint(-5, 5)
    return {"columns": count, "which": which, "bound": bound, "above": random.choice(("yes", "no"))}


def _linear_table(random: Random, parameters: Parameters, count: int) -> tuple[Row, list[Row]]:
    weights = parameters["weights"]
    rows = []
    for number in range(count):
        values = [round(random.uniform(-10, 10), 2) for _ in weights]
        y = parameters["base"] + sum(w * x for w, x in zip(weights, values, strict=True)) + random.gauss(0, NOISE_SCALE)
        rows.append([str(number), *map(str, values), f"{y:.3f}"])
    return ["id", *(f"x{n}" for n in range(1, len(weights) + 1)), "y"], rows


def _groups_table(random: Random, parameters: Parameters, count: int) -> tuple[Row, list[Row]]:
    rows = []
    for number in range(count):
        first_group, second_group = (random.choice(sorted(parameters[name])) for name in ("g1", "g2"))
        y = parameters["g1"][first_group] + parameters["g2"][second_group] + random.gauss(0, NOISE_SCALE)
        rows.append([str(number), first_group, second_group, f"{y:.3f}"])
    return ["id", "g1", "g2", "y"], rows


def _bound_table(random: Random, parameters: Parameters, count: int) -> tuple[Row, list[Row]]:
    rows = []
    for number in range(count):
        values = [round(random.uniform(-10, 10), 2) for _ in range(parameters["columns"])]
        above = (values[parameters["which"]] > parameters["bound"]) == (parameters["above"] == "yes")
        label = "yes" if above != (random.random() < FLIP_PROBABILITY) else "no"
        rows.append([str(number), *map(str, values), label])
    return ["id", *(f"x{n}" for n in range(1, parameters["columns"] + 1)), "y"], rows


_PARAMETER_GENERATORS = {"linear": _draw_linear, "groups": _draw_groups, "bound": _draw_bound}
_TABLE_GENERATORS = {"linear": _linear_table, "groups": _groups_table, "bound": _bound_table}


READ_CODE = """
import csv

def table(name):
    with open(name, newline="") as file:
        return list(csv.reader(file))

train, test = table("train.csv")[1:], table("test.csv")[1:]
"""
WRITE_CODE = """
with open("submission.csv", "w") as file:
    file.write("id,y\\n")
    for row, value in zip(test, values):
        file.write(f"{row[0]},{value}\\n")
"""
LINEAR_CODE = """
X = [[1.0, *map(float, row[1:-1])] for row in train]
y = [float(row[-1]) for row in train]
size = len(X[0])
A = [[sum(x[i] * x[j] for x in X) for j in range(size)] + [sum(x[i] * v for x, v in zip(X, y))] for i in range(size)]
for i in range(size):
    pivot = max(range(i, size), key=lambda r: abs(A[r][i]))
    A[i], A[pivot] = A[pivot], A[i]
    for r in range(size):
        if r != i:
            factor = A[r][i] / A[i][i]
            A[r] = [a - factor * b for a, b in zip(A[r], A[i])]
weights = [A[i][size] / A[i][i] for i in range(size)]
values = [sum(w * x for w, x in zip(weights, [1.0, *map(float, row[1:])])) for row in test]
"""
GROUPS_CODE = """
effects = {1: {}, 2: {}}
for _ in range(200):
    for own, other in ((1, 2), (2, 1)):
        left = {}
        for row in train:
            left.setdefault(row[own], []).append(float(row[-1]) - effects[other].get(row[other], 0.0))
        effects[own] = {group: sum(rest) / len(rest) for group, rest in left.items()}
values = [effects[1].get(row[1], 0.0) + effects[2].get(row[2], 0.0) for row in test]
"""
BOUND_CODE = """
def label(row, place, bound, above):
    return above if float(row[place]) > bound else ("no" if above == "yes" else "yes")

bounds = []
for place in range(1, len(train[0]) - 1):
    xs = sorted(float(row[place]) for row in train)
    bounds += [(place, (low + high) / 2, above) for low, high in zip(xs, xs[1:]) for above in ("yes", "no")]
best = max(bounds, key=lambda one: sum(label(row, *one) == row[-1] for row in train))
values = [label(row, *best) for row in test]
"""
FIT_CODES = {"linear": LINEAR_CODE, "groups": GROUPS_CODE, "bound": BOUND_CODE}
WEAK_PROGRAMS = (  # outputs of a weak player: the sample, a table with wrong columns, a program that fails
    'open("submission.csv", "w").write(open("sample_submission.csv").read())\n',
    'open("submission.csv", "w").write(open("test.csv").read())\n',
    "values = train(test)\n",
)


@dataclass(frozen=True)
class MleScript:
    """Scripted policy for every agent in the team.

    Args:
        skill: fraction of well-played turns.
    """

    skill: float

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's text: a program."""
        is_good = cue.random.random() < self.skill
        program = (
            READ_CODE + FIT_CODES[cue.task.data["kind"]] + WRITE_CODE if is_good else cue.random.choice(WEAK_PROGRAMS)
        )
        return f"```python\n{program}```"
