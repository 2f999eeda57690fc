"""Generator for small competitions with a planted structure and a leaderboard of fictional teams.

Three kinds of structure:

    linear    the value is a weighted sum of numbers, plus noise; metric: root mean squared error
    groups    the value depends on two groups of the row, plus noise; metric: mean absolute error
    bound     the label gives the side of a bound that one number is on, with a few labels flipped; metric: accuracy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from marft_envs.generated import GeneratedTask
from marft_envs.mle.competition import Competition
from marft_envs.mle.fitting import predict
from marft_envs.mle.medals import Leaderboard
from marft_envs.mle.metrics import METRICS

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


def generate_competition(random: Random, kinds: Sequence[Kind]) -> GeneratedTask:
    """Generate the parameters of a competition; they are its content, which decides the split."""
    kind = random.choice(list(kinds))
    parameters = _PARAMETER_MAKERS[kind](random)
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
    header, rows = _TABLE_MAKERS[kind](random, data["plant"], TRAIN_ROWS + TEST_ROWS)
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


def _draw_linear(random: Random) -> dict[str, Any]:
    count = random.randint(2, 4)
    weights = [random.choice((-1, 1)) * random.randint(1, 9) for _ in range(count)]
    return {"weights": weights, "base": random.randint(0, 20)}


def _draw_groups(random: Random) -> dict[str, Any]:
    return {name: {group: random.randint(0, 30) for group in "abcd"} for name in ("g1", "g2")}


def _draw_bound(random: Random) -> dict[str, Any]:
    count = random.randint(2, 4)
    which, bound = random.randrange(count), random.randint(-5, 5)
    return {"columns": count, "which": which, "bound": bound, "above": random.choice(("yes", "no"))}


def _linear_table(random: Random, parameters: Mapping[str, Any], count: int) -> tuple[Row, list[Row]]:
    weights = parameters["weights"]
    rows = []
    for number in range(count):
        values = [round(random.uniform(-10, 10), 2) for _ in weights]
        y = parameters["base"] + sum(w * x for w, x in zip(weights, values, strict=True)) + random.gauss(0, NOISE_SCALE)
        rows.append([str(number), *map(str, values), f"{y:.3f}"])
    return ["id", *(f"x{n}" for n in range(1, len(weights) + 1)), "y"], rows


def _groups_table(random: Random, parameters: Mapping[str, Any], count: int) -> tuple[Row, list[Row]]:
    rows = []
    for number in range(count):
        first_group, second_group = (random.choice(sorted(parameters[name])) for name in ("g1", "g2"))
        y = parameters["g1"][first_group] + parameters["g2"][second_group] + random.gauss(0, NOISE_SCALE)
        rows.append([str(number), first_group, second_group, f"{y:.3f}"])
    return ["id", "g1", "g2", "y"], rows


def _bound_table(random: Random, parameters: Mapping[str, Any], count: int) -> tuple[Row, list[Row]]:
    rows = []
    for number in range(count):
        values = [round(random.uniform(-10, 10), 2) for _ in range(parameters["columns"])]
        above = (values[parameters["which"]] > parameters["bound"]) == (parameters["above"] == "yes")
        label = "yes" if above != (random.random() < FLIP_PROBABILITY) else "no"
        rows.append([str(number), *map(str, values), label])
    return ["id", *(f"x{n}" for n in range(1, parameters["columns"] + 1)), "y"], rows


_PARAMETER_MAKERS = {"linear": _draw_linear, "groups": _draw_groups, "bound": _draw_bound}
_TABLE_MAKERS = {"linear": _linear_table, "groups": _groups_table, "bound": _bound_table}
