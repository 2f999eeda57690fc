"""Template files for a first environment: package, test, and trainable recipe."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

from marft.cli.template.files import TEAM_TEMPLATES, TemplateResult, check_free
from marft.common import atomic
from marft.common.errors import UserError
from marft.common.packages import package_index

TEAM_SHAPE = "reasoner-actor"
RESERVED_NAMES = {*package_index().import_names.values(), "test", "tests", "src"}
TRIPLE_QUOTES = '"' * 3
MEMORY_LINE = '\nmemory = "own"  # prompts include the earlier steps, and so the task'


def package_name(folder: Path) -> str:
    """Return the package name for a folder: its name as a valid Python identifier.

    >>> package_name(Path("games/my-env"))
    'my_env'

    Raises:
        UserError: the name cannot be used for a package, or is already installed.
    """
    folder_name = folder.resolve().name
    name = re.sub(r"\W|^(?=\d)", "_", folder_name).lower()
    if not name.strip("_") or not name.isascii() or keyword.iskeyword(name) or name in RESERVED_NAMES:
        raise UserError(f"{folder_name!r} cannot be the name of a package; name another folder, such as my_env")
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:  # a spec without origin is a folder of that name
        raise UserError(f"a package {name} is installed already; name another folder, such as my_{name}")
    return name


def render_files(package: str) -> dict[str, str]:
    """Return file contents by relative path."""
    kind = "".join(word.capitalize() for word in package.split("_"))
    texts = {
        "pyproject.toml": PROJECT_TEMPLATE,
        f"src/{package}/__init__.py": f"{TRIPLE_QUOTES}{kind}: an environment for MARFT.{TRIPLE_QUOTES}\n",
        f"src/{package}/environment.py": ENVIRONMENT_TEMPLATE,
        "tests/test_environment.py": TEST_TEMPLATE,
        "recipe.toml": RECIPE_TEMPLATE,
        "README.md": README_TEMPLATE,
    }
    seats = "\n\n".join(
        f'[[agents]]\nrole = "{seat.role}"\npolicy = "{seat.role}"\ninstructions = \'{seat.instructions}\''
        + ("\nanswers = true" if seat.answers else "")
        + MEMORY_LINE
        + "\nsampling = { max_new_tokens = 32 }"
        for seat in TEAM_TEMPLATES[TEAM_SHAPE].agents
    )
    words = {"PACKAGE": package, "KIND": kind, "SEATS": seats, "COMMANDS": next_commands()}
    return {name: re.sub(r"<<(\w+)>>", lambda match: words[match[1]], text) for name, text in texts.items()}


def write_environment(folder: Path | None) -> TemplateResult:
    """Write the files of a first environment: ``marft init --kind environment``.

    Args:
        folder: default ``my_env``. Its name becomes the name of the package.

    Raises:
        UserError: a file exists already, or no package can have the folder's name.
    """
    folder = folder or Path("my_env")
    files = render_files(package_name(folder))
    check_free(folder, files)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(folder / name, text)
    return TemplateResult(folder, sorted(files), next_commands())


def next_commands() -> str:
    """Return the next commands to type in the folder."""
    rows = {
        "marft check-env recipe.toml": "check the environment for faults",
        "pytest": "run the checks and your own tests (pip install pytest)",
        "marft train recipe.toml": "train; Ctrl-C saves a checkpoint",
        "marft show runs/first --worst": "show prompts, outputs and rewards",
        "pip install -e .": "install the package for use in any recipe",
    }
    return "\n".join(f"{command:<32} # {comment}" for command, comment in rows.items())


PROJECT_TEMPLATE = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "<<PACKAGE>>"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["marft"]

[project.entry-points."marft.environments"]
<<PACKAGE>> = "<<PACKAGE>>.environment:<<KIND>>"  # after pip install, recipes can use the short name

[tool.hatch.build.targets.wheel]
packages = ["src/<<PACKAGE>>"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["src"]
"""

ENVIRONMENT_TEMPLATE = '''\
"""Bills to add up, one line per step. Adapt the environment to your task."""

import random
import re

import marft

# the bundled model knows only this wording
QUESTION = "State the final answer to the following arithmetic problem: {} ="


class Attempt:
    """One episode: one attempt at one bill."""

    def __init__(self, task):
        self.lines = task.data["lines"]
        self.solved = self.steps = 0

    def reset(self):
        return marft.Observation(QUESTION.format(self.lines[0]["sum"]))

    def step(self, actions):
        numbers = re.findall(r"-?\\d+", actions.answer.text if actions.answer else "")
        correct = numbers[-1:] == [str(self.lines[self.solved]["total"])]
        self.steps += 1
        self.solved += correct
        success = self.solved == len(self.lines)
        return marft.Step(
            marft.Observation("" if success else QUESTION.format(self.lines[self.solved]["sum"])),
            reward=correct / len(self.lines),  # the rewards of an episode add up to at most 1
            terminated=success or self.steps == 2 * len(self.lines),
            success=success,
        )

    def close(self):
        pass


class <<KIND>>(marft.Environment):
    """Bills to add up, one line per step. The fields of the class are keys of the recipe."""

    lines: int = 2  # lines per bill

    def tasks(self, split):
        numbers = random.Random(0)
        bills = [[draw_line(numbers) for _ in range(self.lines)] for _ in range(500)]
        first, last = {"train": (0, 300), "validation": (300, 400), "test": (400, 500)}[split]
        prompts = ["Work out this bill: " + "; ".join(line["sum"] for line in bill) + "." for bill in bills]
        return [marft.Task(f"bill/{n}", prompts[n], {"lines": bills[n]}) for n in range(first, last)]

    def start(self, task, seed):
        return Attempt(task)


def draw_line(numbers):
    a, b, c = (numbers.randint(10, 99) for _ in range(3))
    return {"sum": f"{a} + {b} - {c}", "total": a + b - c}
'''

TEST_TEMPLATE = '''\
"""Tests of the environment. Run them with: pytest"""

from types import SimpleNamespace

import marft_envs
from <<PACKAGE>>.environment import <<KIND>>


def answering(text):
    """The actions of a team with this answer."""
    return SimpleNamespace(answer=SimpleNamespace(text=text))


def test_all_checks_pass():
    report = marft_envs.check_environment(<<KIND>>, limits={"tasks": 2})
    assert report.passed, str(report)


def test_right_answers_to_all_lines_solve_the_bill():
    environment = <<KIND>>()
    task = environment.tasks("train")[0]
    attempt = environment.start(task, seed=0)
    steps = [attempt.step(answering(str(line["total"]))) for line in task.data["lines"]]
    assert steps[-1].success
    assert sum(step.reward for step in steps) == 1.0


def test_a_wrong_answer_earns_0_and_repeats_the_line():
    environment = <<KIND>>()
    attempt = environment.start(environment.tasks("train")[0], seed=0)
    first = attempt.reset()
    step = attempt.step(answering("I do not know."))
    assert (step.observation, step.reward, step.terminated) == (first, 0.0, False)
'''

RECIPE_TEMPLATE = """\
# All keys: marft train recipe.toml --dry-run. Override a key on the command line: --training.steps 50
name = "first"  # the run's folder is runs/first

[models.base]
path = "tiny"  # bundled, knows only sums; or a folder, or a Hugging Face id

[policies.reasoner]  # weights of this agent
model = "base"
lora = { rank = 8, alpha = 16 }

[policies.actor]  # weights of this agent
model = "base"
lora = { rank = 8, alpha = 16 }

<<SEATS>>

[team]
organization = "chain"

[environment]
name = "<<PACKAGE>>.environment:<<KIND>>"
lines = 2

[algorithm]
name = "marft"
optimizer = { learning_rate = 5e-4 }  # high, because the model is very small

[rollout]
tasks_per_step = 16
samples_per_task = 4

[training]
steps = 40  # the bundled model knows only single questions, and first learns to read conversations
"""

README_TEMPLATE = """\
# <<KIND>>

| file | content |
| --- | --- |
| `src/<<PACKAGE>>/environment.py` | the environment: its tasks, and one attempt at a task |
| `tests/test_environment.py` | tests of the environment |
| `recipe.toml` | a team to train in the environment, with the bundled tiny model |
| `pyproject.toml` | the package, which registers the environment under a short name |

In this folder:

```
<<COMMANDS>>
```
"""
