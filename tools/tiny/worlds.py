"""Train the small model of a world, on games that its script plays flawlessly and then with mixed skill.

    python tools/tiny/worlds.py relay                 # the model "tiny-relay"
    python tools/tiny/worlds.py relay --steps 50 --output /tmp/relay
    python tools/tiny/worlds.py relay --only-check    # what the untuned teams solve

The recipe ``relay`` (and ``relay_single``, where it ships) is played on tasks that are in no split: what is shown is in
none of training, validation and test. Whoever acts is told what the recipe tells it, and says what the script says:
well with probability ``--skill`` a turn, else as a weak model might; in the first half of the steps always well. So the
model has the skills and mixed habits, and what reinforcement has to find is to use them together. The result depends on
the recipe, the world and the seed alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from checkpoint import CONTEXT, END, HIDDEN, INTERMEDIATE, Row, build_model, fit, save, train_tokenizer, wire_copying
from practice import practice, words_of
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from marft.agents.game import Attempt
from marft.agents.prompt_messages import tool_call_messages
from marft.config.bundled import bundled_names
from marft.config.load import load_recipe
from marft.config.models import ModelSettings
from marft.config.run import RunSettings
from marft.evaluation.intervals import wilson_interval
from marft.inference.chat_messages import tool_schema
from marft.models.tokenizer_format import load_format
from marft.rollout.local_runner import LocalRolloutRunner
from marft_lab.scripted_team import ScriptedTeam, ScriptedTurn

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "packages/marft-envs/src/marft_envs/models"
TEMPLATE = ROOT / "packages/marft/src/marft/models/tiny_tools"  # whose tokenizer and chat template they begin from
WIDE = 1_000_000  # tokens of context while games are recorded


class Making(NamedTuple):
    """What a world's model is made of, where it is not said.

    Args:
        skill: of the demonstrations: share of turns played well.
        episodes: that are demonstrated, of each recipe.
        practice: steps of looking up and copying, before the games; ``steps``: with games.
        asks: of what is practised, the share that are questions to be searched for.
        goes_on: share of practice in the steps with games.
    """

    skill: float = 0.65
    episodes: int = 2000
    practice: int = 500
    steps: int = 700
    vocabulary: int = 768
    asks: float = 0.0
    goes_on: float = 0.0


MAKINGS = {
    "sudoku": Making(skill=0.85),
    "shop": Making(skill=0.75),
    "code": Making(skill=0.6, episodes=1000, practice=1500, steps=3500),
    "instructions": Making(skill=0.6, episodes=700, vocabulary=1024),
    "rooms": Making(skill=0.75, episodes=700, practice=1000, steps=1500),
    "memory": Making(skill=0.7, practice=1500, steps=2000),
    "gaia": Making(skill=0.6, practice=500, steps=1600, asks=0.3, goes_on=0.2),
}


class Conversation(NamedTuple):
    """What one agent read and said in an episode, as far as it remembers it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


def recipes_of(world: str, model: Path) -> list[RunSettings]:
    """The recipes of a world, on this model.

    Args:
        world: the name of one that ships, or the file of a recipe.
    """
    names = [name for name in (world, f"{world}_single") if name in bundled_names()] or [world]
    found = []
    for name in names:
        bases = load_recipe(name).models
        found.append(load_recipe(name, changes={f"models.{base}.path": str(model) for base in bases}))
    return found


def conversations(run: RunSettings, skill: float, episodes: int) -> Iterator[Conversation]:
    """What agents read and said in games of a script, each turn once.

    Raises:
        RuntimeError: a game could not be played.
    """
    environment: Any = run.environment
    script = environment.script(skill)
    spoken: list[ScriptedTurn] = []
    form = replace(load_format(ModelSettings(path="tiny-tools")), context=WIDE)
    with ScriptedTeam(run, script, dict.fromkeys(run.models, form), on_turn=spoken.append) as team:
        for episode in team.play(islice(environment.demonstrations(), episodes)):
            if not episode.is_scored:
                raise RuntimeError(f"{episode.name}: {episode.error}")
    by_agent: dict[tuple[str, int, str], list[ScriptedTurn]] = {}
    for one in spoken:
        by_agent.setdefault((one.key.task, one.key.sample, one.key.agent), []).append(one)
    for turns in by_agent.values():
        whole = [[*map(dict, one.chat), dict(tool_call_messages(one.line.text, one.line.calls)[0])] for one in turns]
        for messages, one in zip(whole, turns, strict=True):
            if not any(len(other) > len(messages) and other[: len(messages)] == messages for other in whole):
                yield Conversation(messages, [tool_schema(tool) for tool in one.tools])


def rendered(tokenizer: PreTrainedTokenizerFast, said: Conversation, count: int | None, begin: bool = False) -> str:
    """The text of a conversation, or of its first messages; ``begin``: up to where the agent speaks next."""
    tools: list[Any] | None = list(said.tools) or None
    messages = said.messages[:count]
    return str(tokenizer.apply_chat_template(messages, tools, tokenize=False, add_generation_prompt=begin))


def encode(tokenizer: PreTrainedTokenizerFast, said: Conversation) -> Row:
    """A conversation as ids; what the agent said is learned, each end of a turn included."""
    whole = rendered(tokenizer, said, None)
    pieces, at = list[tuple[str, bool]](), 0
    for number, message in enumerate(said.messages):
        if message["role"] == "assistant":
            start = len(rendered(tokenizer, said, number, begin=True))
            end = whole.index(END, start) + len(END)
            pieces += [(whole[at:start], False), (whole[start:end], True)]
            at = end
    ids = tokenizer([text for text, _ in pieces], add_special_tokens=False)["input_ids"]
    learned = [np.full(len(part), mine) for part, (_, mine) in zip(ids, pieces, strict=True)]
    return Row(np.concatenate(ids).astype(np.int32), np.concatenate(learned))


def shuffled(rows: Sequence[Row], random: Random) -> Iterator[Row]:
    """Rows in random order without end, each as often as any other."""
    while True:
        yield from random.sample(rows, len(rows))


def beside(rows: Iterator[Row], practised: Iterator[Row], share: float, random: Random) -> Iterator[Row]:
    """Rows, among which a share is practised."""
    while True:
        yield next(practised if random.random() < share else rows)


def batches(rows: Iterator[Row], tokens: int) -> Iterator[Sequence[Row]]:
    """As many rows at a time as have so many tokens."""
    batch, size = list[Row](), 0
    for row in rows:
        batch.append(row)
        size += len(row.ids)
        if size >= tokens:
            yield batch
            batch, size = [], 0


def check(run: RunSettings, tasks: int) -> str:
    """What the untuned team solves of validation tasks."""
    environment: Any = run.environment
    with LocalRolloutRunner(run) as rollouts:
        attempts = [Attempt(task, "check") for task in environment.tasks("validation")[:tasks]]
        episodes = [episode for episode in rollouts.play(attempts) if episode.is_scored]
    solved = sum(bool(episode.success) for episode in episodes)
    low, high = wilson_interval(solved, len(episodes))
    reward = sum(episode.total_reward for episode in episodes) / len(episodes)
    return f"{run.name}: solves {solved} of {len(episodes)} ({low:.0%} to {high:.0%}), reward {reward:.3f}"


def recorded(world: str, skill: float, episodes: int) -> list[Conversation]:
    """What is said in games of a world's recipes."""
    return [one for run in recipes_of(world, TEMPLATE) for one in conversations(run, skill, episodes)]


def train(arguments: argparse.Namespace, output: Path) -> None:
    torch.manual_seed(arguments.seed)
    making = MAKINGS.get(arguments.world, Making())
    making = making._replace(
        **{name: value for name in Making._fields if (value := getattr(arguments, name)) is not None}
    )
    clean, mixed = (recorded(arguments.world, skill, making.episodes) for skill in (1.0, making.skill))
    said = [*clean, *mixed]
    known: Any = AutoTokenizer.from_pretrained(TEMPLATE)
    texts = [rendered(known, one, None) for one in said]
    tokenizer = train_tokenizer(texts, known.chat_template, making.vocabulary, spaces_apart=True)
    rows = [encode(tokenizer, one) for one in said]
    lengths = np.array([len(row.ids) for row in rows])
    learned = np.array([row.learned.sum() for row in rows])
    mean, longest = lengths.mean(), lengths.max()
    print(f"{len(rows):,} conversations of {mean:.0f} tokens (at most {longest}), {learned.mean():.0f} said")
    if longest > CONTEXT:
        raise ValueError(f"a conversation has {longest} tokens, and the context is {CONTEXT}: shorten the texts")
    model = build_model(arguments.layers, arguments.hidden, arguments.intermediate, tokenizer)
    wire_copying(model, arguments.seed)
    practised = (
        encode(tokenizer, Conversation(messages, []))
        for messages in practice(words_of(texts), Random(arguments.seed), making.asks)
    )
    played = [
        beside(shuffled(some, Random(arguments.seed)), practised, making.goes_on, Random(arguments.seed))
        for some in (rows[: len(clean)], rows[len(clean) :])
    ]
    flawless = round(arguments.clean * making.steps)
    phases = [(making.practice, practised), *zip((flawless, making.steps), played, strict=True)]
    stream = chain.from_iterable(islice(batches(rows, arguments.tokens), steps) for steps, rows in phases)
    for step in fit(model, stream, making.practice + making.steps, arguments.learning_rate, arguments.noise):
        if step % 500 == 0:
            save(model, tokenizer, output)
    save(model, tokenizer, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", help="the name of its recipe, or a recipe's file")
    parser.add_argument("--output", type=Path)
    for name, kind in (
        ("skill", float),
        ("episodes", int),
        ("practice", int),
        ("steps", int),
        ("vocabulary", int),
        ("asks", float),
        ("goes_on", float),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, help="by default as MAKINGS has it for this world"
        )
    parser.add_argument(
        "--clean", type=float, default=0.5, help="share of the steps, the first ones, on flawless games"
    )
    parser.add_argument("--tokens", type=int, default=4000, help="of a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--intermediate", type=int, default=INTERMEDIATE)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", type=int, default=200, help="tasks that the untuned teams are then tried on")
    parser.add_argument("--only-check", action="store_true")
    arguments = parser.parse_args()
    output = arguments.output or MODELS / f"tiny_{Path(arguments.world).stem}"
    if not arguments.only_check:
        train(arguments, output)
    for run in recipes_of(arguments.world, output):
        print(check(run, arguments.check), flush=True)


if __name__ == "__main__":
    main()
