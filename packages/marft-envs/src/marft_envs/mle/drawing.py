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

from marft_envs.drawn import Drawing
from marft_envs.mle.competition import Competition
from marft_envs.mle.fitting import predicted
from marft_envs.mle.medals import Leaderboard
from marft_envs.mle.metrics import METRICS

Kind = Literal["linear", "groups", "bound"]
METRIC: Mapping[Kind, str] = {"linear": "rmse", "groups": "mae", "bound": "accuracy"}
TOLD: Mapping[Kind, str] = {
    "linear": "Predict the number y from the numbers x1, x2, ….",
    "groups": "Predict the number y from the groups g1 and g2.",
    "bound": "Predict the label y, yes or no, from the numbers x1, x2, ….",
}
TRAIN, TEST = 60, 40
TEAMS = (20, 1500)  # minimum and maximum teams on a leaderboard; the range covers all of MLE-bench's medal brackets
NOISE = 0.3
FLIPPED = 0.05
COLUMNS = ("id", "y")
Row = list[str]


def drawn(random: Random, kinds: Sequence[Kind]) -> Drawing:
    """Generate the parameters of a competition; they are its content, which decides the split."""
    kind = random.choice(list(kinds))
    plant = _PLANT[kind](random)
    data = {"kind": kind, "plant": plant, "teams": random.randint(*TEAMS), "seed": random.getrandbits(32)}
    return Drawing(f"{kind} {plant}", description(kind, len(plant["weights"]) if kind == "linear" else 0), data)


def description(kind: Kind, columns: int) -> str:
    """Return the description for the team."""
    better = "lower" if METRICS[METRIC[kind]].lower_is_better else "higher"
    of = f" There are {columns} of them." if columns else ""
    return (
        f"{TOLD[kind]}{of} train.csv has y, test.csv has not. Write submission.csv with the columns id and y, one row "
        f"for each row of test.csv, as in sample_submission.csv. Graded by {METRIC[kind]}, {better} is better."
    )


def competition_of(prompt: str, data: Mapping[str, Any]) -> Competition:
    """Build the competition of a task; equal data give equal tables."""
    kind, random = data["kind"], Random(data["seed"])
    header, rows = _TABLE[kind](random, data["plant"], TRAIN + TEST)
    train, test = rows[:TRAIN], rows[TRAIN:]
    answers = {row[0]: row[-1] for row in test}
    constant = "no" if kind == "bound" else "0"
    public = {
        "description.md": prompt, "train.csv": text([header, *train]),
        "test.csv": text([header[:-1], *(row[:-1] for row in test)]),
        "sample_submission.csv": text([list(COLUMNS), *([name, constant] for name in answers)]),
    }  # fmt: skip
    metric = METRIC[kind]
    plain = Competition(prompt, {}, answers, COLUMNS, metric, Leaderboard((0.0,), METRICS[metric].lower_is_better))
    fitted = plain.score(text([list(COLUMNS), *zip(answers, predicted(kind, train, test), strict=True)]))
    board = Leaderboard(
        _leaderboard(random, data["teams"], fitted, plain.score(public["sample_submission.csv"])),
        METRICS[metric].lower_is_better,
    )
    given = {name: content.encode() for name, content in public.items()}
    return Competition(prompt, given, answers, COLUMNS, metric, board)


def text(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as CSV; no cell needs quotes."""
    return "".join(f"{','.join(row)}\n" for row in rows)


def _leaderboard(random: Random, teams: int, fitted: float, sample: float) -> list[float]:
    """Generate team scores, best first.

    Scores lie between the planted structure's fit and slightly below the sample submission, denser near the fit.
    """
    shares = sorted(0.01 + 1.1 * random.random() ** 2 for _ in range(teams))
    return [round(fitted + share * (sample - fitted), 5) for share in shares]


def _plant_linear(random: Random) -> dict[str, Any]:
    count = random.randint(2, 4)
    weights = [random.choice((-1, 1)) * random.randint(1, 9) for _ in range(count)]
    return {"weights": weights, "base": random.randint(0, 20)}


def _plant_groups(random: Random) -> dict[str, Any]:
    return {name: {group: random.randint(0, 30) for group in "abcd"} for name in ("g1", "g2")}


def _plant_bound(random: Random) -> dict[str, Any]:
    count = random.randint(2, 4)
    which, bound = random.randrange(count), random.randint(-5, 5)
    return {"columns": count, "which": which, "bound": bound, "above": random.choice(("yes", "no"))}


def _linear(random: Random, plant: Mapping[str, Any], count: int) -> tuple[Row, list[Row]]:
    weights = plant["weights"]
    rows = []
    for number in range(count):
        values = [round(random.uniform(-10, 10), 2) for _ in weights]
        y = plant["base"] + sum(w * x for w, x in zip(weights, values, strict=True)) + random.gauss(0, NOISE)
        rows.append([str(number), *map(str, values), f"{y:.3f}"])
    return ["id", *(f"x{n}" for n in range(1, len(weights) + 1)), "y"], rows


def _groups(random: Random, plant: Mapping[str, Any], count: int) -> tuple[Row, list[Row]]:
    rows = []
    for number in range(count):
        one, other = (random.choice(sorted(plant[name])) for name in ("g1", "g2"))
        y = plant["g1"][one] + plant["g2"][other] + random.gauss(0, NOISE)
        rows.append([str(number), one, other, f"{y:.3f}"])
    return ["id", "g1", "g2", "y"], rows


def _bound(random: Random, plant: Mapping[str, Any], count: int) -> tuple[Row, list[Row]]:
    rows = []
    for number in range(count):
        values = [round(random.uniform(-10, 10), 2) for _ in range(plant["columns"])]
        above = (values[plant["which"]] > plant["bound"]) == (plant["above"] == "yes")
        label = "yes" if above != (random.random() < FLIPPED) else "no"
        rows.append([str(number), *map(str, values), label])
    return ["id", *(f"x{n}" for n in range(1, plant["columns"] + 1)), "y"], rows


_PLANT = {"linear": _plant_linear, "groups": _plant_groups, "bound": _plant_bound}
_TABLE = {"linear": _linear, "groups": _groups, "bound": _bound}
