"""Scripted policy that writes a program for the planted structure, with the standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from marft.envs.scripted_policy import PolicyInput

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
