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
RESERVED_NAMES = {*package_index().packages.values(), "test", "tests", "src"}
TRIPLE_QUOTES = '"' * 3


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
        "marft check-env recipe.toml": "what is wrong with it: at first nothing",
        "pytest": "the same, and your own tests (pip install pytest)",
        "marft train recipe.toml": "Ctrl-C saves and says how to go on",
        "marft show runs/first --worst": "what each agent saw, said and earned",
        "pip install -e .": "then any recipe may name it, by its package alone",
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
dependencies = ["marft", "marft-envs"]

[project.entry-points."marft.environments"]
<<PACKAGE>> = "<<PACKAGE>>.environment:<<KIND>>"  # once it is installed, recipes say: name = "<<PACKAGE>>"

[tool.hatch.build.targets.wheel]
packages = ["src/<<PACKAGE>>"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["src"]
"""

ENVIRONMENT_TEMPLATE = '''\
"""Bills of several lines, each a sum: one line a step. Make it your own."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import ClassVar

from marft.config.settings import Count
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft.envs.scripted_policy import PolicyInput
from marft.agents.answers import extract_answer, graded_text
from marft.config.interfaces.environment import tool
from marft.common.types import JointAction, Observation, Step, Task

LINE = "State the final answer to the following arithmetic problem: {} ="  # in the words that the bundled model knows
SUM = re.compile(r"problem: (\\d+(?: [+-] \\d+)+) =")


class Attempt:
    """One attempt at a task. What it holds is its own: nobody else may see it."""

    def __init__(self, task: Task, seed: int) -> None:
        self.lines: list[str] = task.data["lines"]
        self.random = Random(seed)  # whatever is random in an episode comes from here
        self.done = self.steps = 0

    async def reset(self) -> Observation:
        """What is shown first."""
        return Observation(LINE.format(self.lines[0]))

    async def step(self, actions: JointAction) -> Step:
        """Take what the team did. An answer may be anything, or missing: that is no error, it is only not right."""
        said = extract_answer(graded_text(actions.answer))  # without thoughts; "" where there is no answer
        right = said.strip() == str(value(self.lines[self.done]))
        self.steps += 1
        self.done += right
        solved = self.done == len(self.lines)
        over = solved or self.steps == 2 * len(self.lines)
        shown = "" if over else LINE.format(self.lines[self.done])
        return Step(
            Observation(shown),
            reward=right / len(self.lines),  # of all steps together: from 0 to 1
            terminated=over,
            success=solved,
            info={"progress": self.done / len(self.lines)},
        )

    async def close(self) -> None:
        """Let go of what is open: nothing here."""

    @tool
    def lines_left(self) -> str:
        """How many lines are left. Agents of a recipe may use it that have tools = ["environment"]."""
        return str(len(self.lines) - self.done)


class <<KIND>>(GeneratedEnvironment):
    """Bills to be worked out line by line. The fields are the keys of a recipe."""

    session: ClassVar[type | None] = Attempt  # whose methods with @tool agents may use

    lines: Count = 2  # of a bill

    def generate_task(self, random: Random) -> GeneratedTask:
        """A task. Its content alone decides whether it is for training or held out."""
        lines = [drawn(random) for _ in range(self.lines)]
        data = {"lines": lines, "fewest_steps": self.lines}
        return GeneratedTask("; ".join(sorted(lines)), f"Work out this bill: {'; '.join(lines)}.", data)

    def start(self, task: Task, seed: int) -> Attempt:
        """A new episode."""
        return Attempt(task, seed)

    def script(self, skill: float = 1.0) -> Callable[[PolicyInput], str]:
        """Who plays it without a model, so that checks see good play too: well with this probability a turn."""

        def say(cue: PolicyInput) -> str:
            (line,) = SUM.findall(str(cue.last_message))[:1] or ["0"]
            return rf"\\boxed{{{value(line)}}}" if cue.random.random() < skill else "I do not know."

        return say


def drawn(random: Random) -> str:
    """``23 + 45 - 12``."""
    first, *others = (random.randint(10, 99) for _ in range(3))
    return " ".join([str(first), *(f"{random.choice('+-')} {other}" for other in others)])


def value(line: str) -> int:
    """What a line comes to."""
    return sum(int(number) for number in line.replace("+ ", "").replace("- ", "-").split())
'''

TEST_TEMPLATE = '''\
"""What the environment is held to. Run it with:  pytest"""

import asyncio
from types import SimpleNamespace

import marft_envs
from <<PACKAGE>>.environment import <<KIND>>, value


def said(text):
    """What a team did, as far as the environment looks at it."""
    return SimpleNamespace(answer=SimpleNamespace(text=text, only_thought=False, finish="stop"))


def test_nothing_is_found_wrong_with_it():
    report = marft_envs.check_environment(<<KIND>>, limits={"tasks": 2}, train_tasks=100, held_out_tasks=20)
    assert report.passed, [verdict.findings for verdict in report.results if verdict.findings]


def test_a_bill_is_solved_by_its_lines_in_order():
    environment = <<KIND>>(train_tasks=10)
    task = environment.tasks("train")[0]
    attempt = environment.start(task, seed=0)
    steps = [asyncio.run(attempt.step(said(str(value(line))))) for line in task.data["lines"]]
    assert steps[-1].success
    assert sum(step.reward for step in steps) == 1.0


def test_a_wrong_answer_shows_the_line_again_and_earns_nothing():
    environment = <<KIND>>(train_tasks=10)
    attempt = environment.start(environment.tasks("train")[0], seed=0)
    first = asyncio.run(attempt.reset())
    step = asyncio.run(attempt.step(said("I do not know.")))
    assert (step.observation, step.reward, step.terminated) == (first, 0.0, False)
'''

RECIPE_TEMPLATE = """\
# All keys: marft train recipe.toml --dry-run. Any can be changed there: --training.steps 50
name = "first"  # the run's folder is runs/first

[models.base]
path = "tiny"  # bundled: it knows sums alone; or a folder, or a Hugging Face id

[policies.reasoner]  # weights of its own
model = "base"
lora = { rank = 8, alpha = 16 }

[policies.actor]
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
optimizer = { learning_rate = 5e-4 }  # a very small model takes large steps

[rollout]
tasks_per_step = 16
samples_per_task = 4

[training]
steps = 20
"""

README_TEMPLATE = """\
# <<KIND>>

| file | what it is |
| --- | --- |
| `src/<<PACKAGE>>/environment.py` | the environment: its tasks, one attempt at one, who plays it without a model |
| `tests/test_environment.py` | what it is held to |
| `recipe.toml` | a team that learns in it, on the bundled tiny model |
| `pyproject.toml` | makes it a package, which registers the environment under its name |

In this folder:

```
<<COMMANDS>>
```
"""
