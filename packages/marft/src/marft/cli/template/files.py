"""Template files for a first team."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from marft.cli.template.tables import NUMBER, VALIDATION_SHARE, AnswerKind, TableInfo
from marft.common import atomic
from marft.common.errors import UserError
from marft.common.texts import single_line, truncate
from marft.envs.table_rows import format_cell

BOX_INSTRUCTION = r"put the answer in \boxed{}."

RECIPE_FILE, REWARD_FILE, TEST_FILE, DATA_FILE, README_FILE = (
    "recipe.toml",
    "reward.py",
    "test_reward.py",
    "data.csv",
    "README.md",
)
TEAM_FILES = (RECIPE_FILE, REWARD_FILE, TEST_FILE, README_FILE)  # files of every team
TINY_MODEL = "tiny"
RUN_NAME = "first"
MAX_PARENT_FOLDERS = 2  # maximum parent folders in a relative path; farther paths are absolute
MAX_CELL_LENGTH = 300  # maximum length of a cell in the test, in characters
TRIPLE_QUOTES = '"' * 3


@dataclass(frozen=True, slots=True)
class AgentTemplate:
    """One agent in a team shape."""

    role: str
    instructions: str
    answers: bool = False


@dataclass(frozen=True, slots=True)
class TeamTemplate:
    """Team shape: description, agents and organization."""

    description: str
    agents: Sequence[AgentTemplate]
    organization: Mapping[str, object] = field(default_factory=lambda: {"organization": "chain"})


TEAM_TEMPLATES: Mapping[str, TeamTemplate] = {
    "reasoner-actor": TeamTemplate(
        "one agent starts the solution, another finishes it",
        (
            AgentTemplate("reasoner", "You are the reasoner. Work out the first step and pass on what is left."),
            AgentTemplate(
                "actor", f"You are the actor. Finish the work with the help of the message and {BOX_INSTRUCTION}", True
            ),
        ),
    ),
    "writer-critic": TeamTemplate(
        "a draft, a critique, a revision",
        (
            AgentTemplate(
                "writer",
                f"You are the writer. Solve the problem, heed what the critic says, and {BOX_INSTRUCTION}",
                True,
            ),
            AgentTemplate(
                "critic", "You are the critic. Say in a few words what is wrong with the draft and how to mend it."
            ),
        ),
        {"organization": "reflective", "actor": "writer", "critic": "critic", "reviser": "writer"},
    ),
    "single": TeamTemplate(
        "a single agent",
        (
            AgentTemplate(
                "solver", f"You are the solver. Work out the problem step by step and {BOX_INSTRUCTION}", True
            ),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """Plan for a first team.

    Args:
        folder: folder to create.
        table: properties of the data.
        data: table file; None: ``data.csv`` with generated rows.
        model: model as it appears in the recipe.
        team: name of a shape.
    """

    folder: Path
    table: TableInfo
    data: Path | None
    model: str
    team: str


def write_template(plan: TemplatePlan, rows: str = "") -> list[str]:
    """Write the files without overwriting existing ones, and return their names.

    Args:
        rows: content of ``data.csv``, if the plan has no table file.

    Raises:
        UserError: a file already exists.
    """
    files = {
        RECIPE_FILE: render_recipe(plan),
        REWARD_FILE: render_reward(plan.table),
        TEST_FILE: render_test(plan.table),
        README_FILE: render_readme(plan),
    }
    files |= {DATA_FILE: rows} if plan.data is None else {}
    check_free(plan.folder, files)
    for name, text in files.items():
        atomic.write_file(plan.folder / name, text)
    return sorted(files)


class TemplateResult(NamedTuple):
    """Result of a starter: the function behind a ``marft init --kind`` that an installed package adds."""

    folder: Path
    files: list[str]  # names in the folder
    commands: str  # suggestions for what to type next, one a line


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Check for existing files in the folder.

    Raises:
        UserError: a file already exists.
    """
    existing = [name for name in names if os.path.lexists(folder / name)]
    if existing:
        raise UserError(f"{folder} has {', '.join(existing)} already, which stays; name another folder")


def render_recipe(plan: TemplatePlan) -> str:
    """Return the content for ``recipe.toml``."""
    shape, table, tiny = TEAM_TEMPLATES[plan.team], plan.table, plan.model == TINY_MODEL
    comment = "bundled, knows only sums; or a folder, or a Hugging Face id" if tiny else "or tiny, the bundled model"
    parts = [
        "# All keys: marft train recipe.toml --dry-run. Override a key on the command line: --training.steps 50",
        f'name = "{RUN_NAME}"  # the run\'s folder is runs/{RUN_NAME}',
        f"[models.base]\n{_toml_line('path', plan.model)}  # {comment}",
    ]
    for seat in shape.agents:
        parts.append(
            f'[policies.{seat.role}]  # weights of this agent\nmodel = "base"\nlora = {{ rank = 8, alpha = 16 }}'
        )
    length = 32 if tiny else 256
    for seat in shape.agents:
        answers = "\nanswers = true" if seat.answers else ""
        agent_table = f"[[agents]]\n{_toml_line('role', seat.role)}\n{_toml_line('policy', seat.role)}"
        agent_table += f"\n{_toml_line('instructions', seat.instructions)}{answers}"
        parts.append(f"{agent_table}\nsampling = {{ max_new_tokens = {length} }}")
    parts.append(_toml_table("team", shape.organization))
    environment = {"name": "table", "path": _data_path(plan), "question": table.question, "answer": table.answer}
    environment |= {"prompt": table.prompt} if table.prompt else {}
    lines = [_toml_table("environment", environment), 'grading = "reward:reward"  # the function in reward.py']
    fractions = f"{{ validation = {VALIDATION_SHARE}, test = {table.test_share} }}"
    lines.append(f"split_fractions = {fractions}  # fractions of the rows, held out")
    lines += [f"skip = {list(table.excluded)!r}"] if table.excluded else []
    parts.append("\n".join(lines))
    rate = "\noptimizer = { learning_rate = 5e-4 }  # high, because the model is very small" if tiny else ""
    parts.append(f'[algorithm]\nname = "marft"{rate}')
    parts.append(f"[rollout]\ntasks_per_step = {16 if tiny else 8}\nsamples_per_task = 4")
    parts.append("[training]\nsteps = 20")
    return "\n\n".join(parts) + "\n"


def render_reward(table: TableInfo) -> str:
    """Return the content for ``reward.py``."""
    columns = ", ".join(ascii(column) for column in table.columns)
    imports, lines = _GRADER_CODE[table.kind]
    body = "\n".join(f"    {line}" for line in lines).replace("ANSWER", ascii(table.answer))
    return f'''"""The reward of an answer. The team learns from this function only. Adapt it to your task.

Run its tests with: pytest. If the function raises an error, MARFT drops the episode; marft show --failed shows it.
"""
{imports}

def reward(row, text):
    # row: the row of the table as a dictionary, with the keys {columns}
    # text: the text of the answering agent
    # Return a number; or a number, and True or False for whether the task is solved.
{body}
'''


BOX_LINE = r'given = text.rpartition(r"\boxed{")[2].rpartition("}")[0] or text  # the last box, or the whole text'
_GRADER_CODE: Mapping[AnswerKind, tuple[str, list[str]]] = {
    "number": (
        "\nimport re\n",
        [
            f'numbers = re.findall(r"{NUMBER}", text)  # the last number is the answer',
            "correct = bool(numbers) and float(numbers[-1]) == float(row[ANSWER])",
            "return (1.0 if correct else 0.0), correct",
        ],
    ),
    "text": (
        "",
        [
            BOX_LINE,
            "correct = given.strip().lower() == str(row[ANSWER]).strip().lower()",
            "return (1.0 if correct else 0.0), correct",
        ],
    ),
    "list": (
        "",
        [
            BOX_LINE,
            "accepted = [str(answer).strip().lower() for answer in row[ANSWER]]",
            "correct = given.strip().lower() in accepted",
            "return (1.0 if correct else 0.0), correct",
        ],
    ),
    "none": (
        "",
        [
            "words = len(text.split())",
            "return 1.0 if 0 < words <= 30 else 0.0  # a placeholder, because no column has the right answers",
        ],
    ),
}


def render_test(table: TableInfo) -> str:
    """Return the content for ``test_reward.py``."""
    row = {name: _to_literal(cell) for name, cell in table.first.items()}
    head = f"""{TRIPLE_QUOTES}Tests of the reward function. Run them with: pytest{TRIPLE_QUOTES}

from reward import reward

ROW = {row!a}
"""
    if table.kind == "none":
        return f"""{head}

def test_a_short_text_earns_more_than_an_empty_or_a_long_text():
    assert reward(ROW, "a few words") > reward(ROW, "")
    assert reward(ROW, "a few words") > reward(ROW, "word " * 1000)
"""
    index = "[0]" if table.kind == "list" else ""
    return f"""{head}RIGHT = ROW[{table.answer!a}]{index}


def test_the_right_answer_earns_1_and_solves_the_task():
    assert reward(ROW, f"So the answer is \\\\boxed{{{{{{RIGHT}}}}}}.") == (1.0, True)


def test_a_wrong_answer_earns_0():
    assert reward(ROW, "I do not know.") == (0.0, False)
"""


def render_readme(plan: TemplatePlan) -> str:
    """Return the content for ``README.md``."""
    task = f"\nTask: {plan.table.task}\n" if plan.table.task else ""
    return f"""# A first team
{task}
| file | content |
| --- | --- |
| `{RECIPE_FILE}` | the team, its model, its tasks and its training |
| `{REWARD_FILE}` | the reward of an answer: adapt it to your task |
| `{TEST_FILE}` | tests of the reward function |
| `{single_line(_data_path(plan))}` | the data: one row per task |

In this folder:

```
{next_commands()}
```
"""


def next_commands() -> str:
    """Return the next commands to type in the folder."""
    rows = {
        "pytest": "test the reward function (pip install pytest)",
        f"marft train {RECIPE_FILE}": "train; Ctrl-C saves a checkpoint",
        f"marft eval runs/{RUN_NAME} --shuffle-messages": "compare before and after training",
        f"marft show runs/{RUN_NAME} --worst": "show prompts, outputs and rewards",
        f"marft report runs/{RUN_NAME}": "write report.html",
    }
    return "\n".join(f"{command:<42} # {comment}" for command, comment in rows.items())


def _data_path(plan: TemplatePlan) -> str:
    """Return the table's path for the recipe, relative if nearby."""
    if plan.data is None:
        return DATA_FILE
    relative = os.path.relpath(plan.data.expanduser(), plan.folder)
    is_near = Path(relative).parts.count("..") <= MAX_PARENT_FOLDERS
    return relative if is_near else os.path.abspath(plan.data.expanduser())  # noqa: PTH100  keeps symlinks


def _toml_line(key: str, value: Any) -> str:
    return tomli_w.dumps({key: value}).strip()


def _toml_table(name: str, values: Mapping[str, Any]) -> str:
    return tomli_w.dumps({name: dict(values)}).strip()


def _to_literal(cell: Any) -> Any:
    """Return a cell as a Python literal."""
    try:
        plain = ast.literal_eval(repr(cell)) == cell
    except (ValueError, SyntaxError):
        plain = False
    return cell if plain and len(repr(cell)) <= MAX_CELL_LENGTH else truncate(format_cell(cell), MAX_CELL_LENGTH)
