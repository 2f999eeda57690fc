"""Generator for questions on three levels in a small fictional world, each with a plan for its answer.

Level 1 needs one page or one file. Level 2 needs several, one after another. Level 3 needs several and a
computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from marft_envs.drawn import Drawing
from marft_envs.gaia.plans import Known, Missing, Node, answer_of
from marft_envs.gaia.tables import WRITTEN
from marft_envs.gaia.world import World, draw_world, page_text
from marft_envs.tool_use.arithmetic import value_of

PEOPLE, PLACES = 6, 3
ASKED: Mapping[tuple[str, str], str] = {
    ("person", "born"): "When was {} born?",
    ("person", "craft"): "What is the craft of {}?",
    ("person", "town"): "Where does {} live?",
    ("town", "people"): "How many people has {}?",
    ("town", "river"): "What is the river of {}?",
    ("town", "mayor"): "Who is the mayor of {}?",
    ("river", "length"): "How long is the {}, in km?",
    ("firm", "founded"): "When was {} founded?",
    ("firm", "head"): "Who is the head of {}?",
    ("firm", "town"): "Where is {}?",
}
PHRASES: Mapping[str, str] = {
    "head": "the head of {}", "mayor": "the mayor of {}", "river": "river of {}", "town": "the town of {}"
}  # fmt: skip
CELLS: Mapping[str, str] = {
    "points": "How many points has {}?", "price": "What is the price of {}?", "stock": "What is the stock of {}?"
}  # fmt: skip
# fields that lead to another page, and the kind of that page
LEADS: Mapping[str, str] = {"head": "person", "mayor": "person", "river": "river", "town": "town"}


class Question(NamedTuple):
    """A generated question.

    Args:
        words: text of the question.
        plan: plan that computes the answer.
        file: name of the attached table; "" if there is none.
    """

    words: str
    plan: Sequence[Node]
    file: str = ""


def drawn(random: Random, level: int, formats: Sequence[str]) -> Drawing:
    """Generate a question on the given level in a new world.

    Its content, which decides the split, is its text and answer.
    """
    world = draw_world(random, PEOPLE, PLACES)
    while True:
        ask = random.choice(ASK[level])
        question = ask(random, world, f"{{}}{random.choice(list(formats))}")
        known = everything(world, question)
        answer = worked_out(question.plan, known)
        if answer:
            break
    pages = {title: page_text(fields) for title, fields in world.pages.items()}
    table = world.tables.get(question.file.partition(".")[0])
    files = {question.file: WRITTEN[question.file[question.file.rindex(".") :]](table)} if table else {}
    sources, tools = used(question.plan, known)
    data: dict[str, Any] = {
        "level": level, "answer": answer, "plan": [list(node) for node in question.plan], "pages": pages,
        "files": files, "sources": sources, "right_tools": tools, "fewest_steps": 1,
    }  # fmt: skip
    return Drawing(f"{question.words} {answer}", question.words, data)


def everything(world: World, question: Question) -> Known:
    """Return all facts from the world's pages and the question's file."""
    name = question.file.partition(".")[0]
    return Known(dict(world.pages), {question.file: world.tables[name]} if name else {})


def worked_out(plan: Sequence[Node], known: Known) -> str:
    """Execute a plan, expressions included, and return its answer."""
    while True:
        try:
            return answer_of(plan, known)
        except Missing as missing:  # only values can be missing, because all pages and files are known
            for expression in missing.names:
                known.worked_out[expression] = value_of(expression).removesuffix(".0")


def used(plan: Sequence[Node], known: Known) -> tuple[list[str], list[str]]:
    """Return titles and files read by a plan, and the tools for reading and calculation."""
    read, tools, have = list[str](), set[str](), Known()
    while True:
        try:
            answer_of(plan, have)
        except Missing as missing:
            for name in missing.names:
                if missing.what == "value":
                    have.worked_out[name] = known.worked_out[name]
                elif missing.what == "file":
                    have.files[name] = known.files[name]
                else:
                    have.pages[name] = known.pages[name]
            read += [name for name in missing.names if missing.what != "value"]
            tools |= {"page": {"search", "open_page"}, "file": {"read_file"}, "value": {"calculate"}}[missing.what]
        else:
            return read, sorted(tools)


def _field(random: Random, world: World, file: str) -> Question:  # noqa: ARG001  one shape for all
    kind, name = random.choice(list(ASKED))
    title = random.choice(list(world.titles[kind]))
    return Question(ASKED[kind, name].format(title), [["page", title, name]])


def _cell(random: Random, world: World, file: str) -> Question:
    name, (header, *rows) = random.choice(list(world.tables.items()))
    column, row = random.choice(header[1:]), random.choice(rows)[0]
    return Question(CELLS[column].format(row), [["cell", file.format(name), row, column]], file.format(name))


def _chain(random: Random, world: World, file: str) -> Question:  # noqa: ARG001
    """Ask for a field at the end of one or two links between pages."""
    kind = random.choice(("person", "town", "firm"))
    title = random.choice(list(world.titles[kind]))
    plan, words = list[Node](), title
    for _ in range(random.choice((1, 1, 2))):
        leads = [name for name in ("head", "mayor", "river", "town") if (kind, name) in ASKED]
        if not leads:
            break
        name = random.choice(leads)
        plan.append(["page", len(plan) - 1 if plan else title, name])
        words, kind = PHRASES[name].format(words), LEADS[name]
    name = random.choice([field for of, field in ASKED if of == kind])
    plan.append(["page", len(plan) - 1, name])
    return Question(ASKED[kind, name].format(words), plan)


def _first(random: Random, world: World, file: str) -> Question:  # noqa: ARG001
    """Ask for a field of the person with the most points in a file."""
    name, scores = random.choice(("born", "craft", "town")), file.format("scores")
    words = ASKED["person", name].format("whoever has the most points")
    return Question(words, [["most", scores, "points"], ["page", 0, name]], scores)


def _years(random: Random, world: World, file: str) -> Question:  # noqa: ARG001
    firm = random.choice(list(world.titles["firm"]))
    plan: list[Node] = [["page", firm, "founded"], ["page", firm, "head"], ["page", 1, "born"], ["between", 0, 2]]
    return Question(f"How many years before {firm} was founded was its head born?", plan)


def _apart(random: Random, world: World, file: str) -> Question:  # noqa: ARG001
    one, other = random.sample(list(world.titles["firm"]), 2)
    plan: list[Node] = []
    for firm in (one, other):
        plan += [["page", firm, "town"], ["page", len(plan), "people"]]
    return Question(f"How many people have the towns of {one} and {other} together?", [*plan, ["sum", 1, 3]])


def _points(random: Random, world: World, file: str) -> Question:  # noqa: ARG001
    scores = file.format("scores")
    plan: list[Node] = [
        ["most", scores, "points"], ["cell", scores, 0, "points"], ["page", 0, "town"], ["page", 2, "river"],
        ["page", 3, "length"], ["sum", 1, 4],
    ]  # fmt: skip
    words = "Add the points of whoever has the most to the length in km of the river of the town where they live."
    return Question(words, plan, scores)


def _towns(random: Random, world: World, file: str) -> Question:
    scores = file.format("scores")
    points = sorted(int(cells[1]) for cells in world.tables["scores"][1:])
    bound = random.choice(points[:-1])
    plan: list[Node] = [["above", scores, "points", str(bound)], ["page", 0, "town"], ["sorted", 1]]
    words = (
        f"Where do all people live who have more than {bound} points? "
        "List each town once, in alphabetical order, separated by commas."
    )
    return Question(words, plan, scores)


Ask = Callable[[Random, World, str], Question]
ASK: Mapping[int, Sequence[Ask]] = {1: (_field, _cell), 2: (_chain, _first), 3: (_years, _apart, _points, _towns)}
