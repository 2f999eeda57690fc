"""Generator for questions on three levels in a small fictional world, each with a plan for its answer.

Level 1 needs one page or one file. Level 2 needs several, one after another. Level 3 needs several and a
computation. A world has people, towns, rivers and firms, and tables with numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import NamedTuple

from marft_envs.gaia.plans import WRITERS, KnownFacts, MissingFact, Node, execute_plan
from marft_envs.generated import GeneratedTask
from marft_envs.tool_use.toolbox import evaluate

FIRST_NAMES = ("Ada", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Juno", "Kai", "Lena")
LAST_NAMES = ("Arden", "Brook", "Cole", "Drake", "Ellis", "Frost", "Grant", "Holm", "Ives", "Kern", "Lund", "Moss")
TOWNS = (
    "Alden",
    "Brod",
    "Cranmoor",
    "Dunwick",
    "Elsby",
    "Farrow",
    "Glimmen",
    "Harth",
    "Inver",
    "Jorvik",
    "Kelso",
    "Lorne",
    "Marley",
    "Norby",
    "Ostrava",
    "Penrith",
)
RIVERS = ("Arno", "Bure", "Cam", "Dee", "Exe", "Foss", "Gade", "Humber", "Isla", "Kent", "Lea", "Mole")
FIRMS = ("Acton", "Belmar", "Corvex", "Delphin", "Estrel", "Fenwick", "Gorham", "Helvar", "Iskra", "Junker")
CRAFTS = ("baker", "carver", "diver", "farmer", "glazier", "joiner", "mason", "painter", "potter", "tailor")
ITEMS = ("tea", "rice", "salt", "soap", "rope", "wool", "nails", "jam", "cork", "oats")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "person": ("born", "craft", "town"),
    "town": ("people", "river", "mayor"),
    "river": ("length",),
    "firm": ("founded", "head", "town"),
}
Table = list[list[str]]


@dataclass(frozen=True, slots=True)
class World:
    """A fictional world.

    Args:
        pages: fields by title.
        titles: titles by kind.
        tables: rows by table name.
    """

    pages: Mapping[str, Mapping[str, str]]
    titles: Mapping[str, Sequence[str]]
    tables: Mapping[str, Table]


def draw_world(random: Random, person_count: int, town_count: int) -> World:
    """Generate a world with the given numbers of people and towns, and half as many firms as people.

    Every town has its own river. Some people share a first or last name.
    """
    names = _draw_names(random, person_count)
    town_names, rivers = random.sample(TOWNS, town_count), random.sample(RIVERS, town_count)
    firms = random.sample(FIRMS, max(1, person_count // 2))
    pages: dict[str, dict[str, str]] = {}
    for name in names:
        fields = (_draw_number(random, 1900, 1990), random.choice(CRAFTS), random.choice(town_names))
        pages[name] = dict(zip(FIELDS["person"], fields, strict=True))
    for town_name, river in zip(town_names, rivers, strict=True):
        fields = (_draw_number(random, 1000, 9999), river, random.choice(names))
        pages[town_name] = dict(zip(FIELDS["town"], fields, strict=True))
        pages[river] = {"length": _draw_number(random, 11, 99)}
    for firm, head in zip(firms, random.sample(names, len(firms)), strict=True):
        fields = (_draw_number(random, 1991, 2020), head, random.choice(town_names))
        pages[firm] = dict(zip(FIELDS["firm"], fields, strict=True))
    order = random.sample(sorted(pages), len(pages))
    titles = {"person": names, "town": town_names, "river": rivers, "firm": firms}
    return World({title: pages[title] for title in order}, titles, _draw_tables(random, names))


def _draw_names(random: Random, count: int) -> list[str]:
    """Draw names that share first and last names, so a search needs both."""
    side = next(side for side in range(2, len(FIRST_NAMES) + 1) if side * side >= count)
    pairs = list(product(random.sample(FIRST_NAMES, side), random.sample(LAST_NAMES, side)))
    return [" ".join(pair) for pair in random.sample(pairs, count)]


def _draw_tables(random: Random, names: Sequence[str]) -> dict[str, Table]:
    chosen = random.sample(list(names), min(4, len(names)))
    points = random.sample(range(11, 99), len(chosen))
    prices = [[item, _draw_number(random, 2, 99), _draw_number(random, 2, 99)] for item in random.sample(ITEMS, 4)]
    return {
        "scores": [
            ["name", "points"],
            *([name, str(points_value)] for name, points_value in zip(chosen, points, strict=True)),
        ],
        "prices": [["item", "price", "stock"], *prices],
    }


def _draw_number(random: Random, low: int, high: int) -> str:
    return str(random.randint(low, high))


def format_page(fields: Mapping[str, str]) -> str:
    """Format the fields of a page.

    >>> format_page({"born": "1912", "town": "Brod"})
    'born: 1912\\ntown: Brod'
    """
    return "\n".join(f"{name}: {value}" for name, value in fields.items())


PERSON_COUNT, TOWN_COUNT = 6, 3
QUESTION_TEMPLATES: Mapping[tuple[str, str], str] = {
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
LINK_PHRASES: Mapping[str, str] = {
    "head": "the head of {}",
    "mayor": "the mayor of {}",
    "river": "river of {}",
    "town": "the town of {}",
}
CELL_QUESTIONS: Mapping[str, str] = {
    "points": "How many points has {}?",
    "price": "What is the price of {}?",
    "stock": "What is the stock of {}?",
}
# fields that lead to another page, and the kind of that page
LINK_FIELDS: Mapping[str, str] = {"head": "person", "mayor": "person", "river": "river", "town": "town"}


class GeneratedQuestion(NamedTuple):
    """A generated question.

    Args:
        text: text of the question.
        plan: plan that computes the answer.
        file: name of the attached table; "" if there is none.
    """

    text: str
    plan: Sequence[Node]
    file: str = ""


def generate_question(random: Random, level: int, formats: Sequence[str]) -> GeneratedTask:
    """Generate a question on the given level in a new world.

    Its content, which decides the split, is its text and answer.
    """
    world = draw_world(random, PERSON_COUNT, TOWN_COUNT)
    while True:
        make_question = random.choice(QUESTION_GENERATORS[level])
        question = make_question(random, world, f"{{}}{random.choice(list(formats))}")
        facts = all_facts(world, question)
        answer = solve_plan(question.plan, facts)
        if answer:
            break
    pages = {title: format_page(fields) for title, fields in world.pages.items()}
    table = world.tables.get(question.file.partition(".")[0])
    files = {question.file: WRITERS[question.file[question.file.rindex(".") :]](table)} if table else {}
    sources, tools = find_sources(question.plan, facts)
    data: dict[str, object] = {
        "level": level,
        "answer": answer,
        "plan": [list(node) for node in question.plan],
        "pages": pages,
        "files": files,
        "sources": sources,
        "right_tools": tools,
        "fewest_steps": 1,
    }
    return GeneratedTask(f"{question.text} {answer}", question.text, data)


def all_facts(world: World, question: GeneratedQuestion) -> KnownFacts:
    """Return all facts from the world's pages and the question's file."""
    name = question.file.partition(".")[0]
    return KnownFacts(dict(world.pages), {question.file: world.tables[name]} if name else {})


def solve_plan(plan: Sequence[Node], facts: KnownFacts) -> str:
    """Execute a plan, expressions included, and return its answer."""
    while True:
        try:
            return execute_plan(plan, facts)
        except MissingFact as missing:  # only values can be missing, because all pages and files are known
            for expression in missing.names:
                facts.computed[expression] = evaluate(expression).removesuffix(".0")


def find_sources(plan: Sequence[Node], facts: KnownFacts) -> tuple[list[str], list[str]]:
    """Return titles and files read by a plan, and the tools for reading and calculation."""
    sources, tools, partial = list[str](), set[str](), KnownFacts()
    while True:
        try:
            execute_plan(plan, partial)
        except MissingFact as missing:
            for name in missing.names:
                if missing.kind == "value":
                    partial.computed[name] = facts.computed[name]
                elif missing.kind == "file":
                    partial.files[name] = facts.files[name]
                else:
                    partial.pages[name] = facts.pages[name]
            sources += [name for name in missing.names if missing.kind != "value"]
            tools |= {"page": {"search", "open_page"}, "file": {"read_file"}, "value": {"calculate"}}[missing.kind]
        else:
            return sources, sorted(tools)


def _ask_field(random: Random, world: World, file: str) -> GeneratedQuestion:  # noqa: ARG001  one shape for all
    kind, name = random.choice(list(QUESTION_TEMPLATES))
    title = random.choice(list(world.titles[kind]))
    return GeneratedQuestion(QUESTION_TEMPLATES[kind, name].format(title), [["page", title, name]])


def _ask_cell(random: Random, world: World, file: str) -> GeneratedQuestion:
    name, (header, *rows) = random.choice(list(world.tables.items()))
    column, row = random.choice(header[1:]), random.choice(rows)[0]
    return GeneratedQuestion(
        CELL_QUESTIONS[column].format(row), [["cell", file.format(name), row, column]], file.format(name)
    )


def _ask_chain(random: Random, world: World, file: str) -> GeneratedQuestion:  # noqa: ARG001
    """Ask for a field at the end of one or two links between pages."""
    kind = random.choice(("person", "town", "firm"))
    title = random.choice(list(world.titles[kind]))
    plan, words = list[Node](), title
    for _ in range(random.choice((1, 1, 2))):
        links = [name for name in ("head", "mayor", "river", "town") if (kind, name) in QUESTION_TEMPLATES]
        if not links:
            break
        name = random.choice(links)
        plan.append(["page", len(plan) - 1 if plan else title, name])
        words, kind = LINK_PHRASES[name].format(words), LINK_FIELDS[name]
    name = random.choice([field for page_kind, field in QUESTION_TEMPLATES if page_kind == kind])
    plan.append(["page", len(plan) - 1, name])
    return GeneratedQuestion(QUESTION_TEMPLATES[kind, name].format(words), plan)


def _ask_first(random: Random, world: World, file: str) -> GeneratedQuestion:  # noqa: ARG001
    """Ask for a field of the person with the most points in a file."""
    name, scores = random.choice(("born", "craft", "town")), file.format("scores")
    words = QUESTION_TEMPLATES["person", name].format("whoever has the most points")
    return GeneratedQuestion(words, [["most", scores, "points"], ["page", 0, name]], scores)


def _ask_years(random: Random, world: World, file: str) -> GeneratedQuestion:  # noqa: ARG001
    firm = random.choice(list(world.titles["firm"]))
    plan: list[Node] = [["page", firm, "founded"], ["page", firm, "head"], ["page", 1, "born"], ["between", 0, 2]]
    return GeneratedQuestion(f"How many years before {firm} was founded was its head born?", plan)


def _ask_towns_sum(random: Random, world: World, file: str) -> GeneratedQuestion:  # noqa: ARG001
    first_firm, second_firm = random.sample(list(world.titles["firm"]), 2)
    plan: list[Node] = []
    for firm in (first_firm, second_firm):
        plan += [["page", firm, "town"], ["page", len(plan), "people"]]
    return GeneratedQuestion(
        f"How many people have the towns of {first_firm} and {second_firm} together?", [*plan, ["sum", 1, 3]]
    )


def _ask_points_sum(random: Random, world: World, file: str) -> GeneratedQuestion:  # noqa: ARG001
    scores = file.format("scores")
    plan: list[Node] = [
        ["most", scores, "points"],
        ["cell", scores, 0, "points"],
        ["page", 0, "town"],
        ["page", 2, "river"],
        ["page", 3, "length"],
        ["sum", 1, 4],
    ]
    words = "Add the points of whoever has the most to the length in km of the river of the town where they live."
    return GeneratedQuestion(words, plan, scores)


def _ask_towns(random: Random, world: World, file: str) -> GeneratedQuestion:
    scores = file.format("scores")
    points = sorted(int(cells[1]) for cells in world.tables["scores"][1:])
    bound = random.choice(points[:-1])
    plan: list[Node] = [["above", scores, "points", str(bound)], ["page", 0, "town"], ["sorted", 1]]
    words = (
        f"Where do all people live who have more than {bound} points? "
        "List each town once, in alphabetical order, separated by commas."
    )
    return GeneratedQuestion(words, plan, scores)


QuestionGenerator = Callable[[Random, World, str], GeneratedQuestion]
QUESTION_GENERATORS: Mapping[int, Sequence[QuestionGenerator]] = {
    1: (_ask_field, _ask_cell),
    2: (_ask_chain, _ask_first),
    3: (_ask_years, _ask_towns_sum, _ask_points_sum, _ask_towns),
}
