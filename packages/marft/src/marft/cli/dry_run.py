"""``marft train --dry-run``: the checks that training makes before its first step, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from marft.agents.tools.skills import read_skill
from marft.cli.handlers import silence_transformers
from marft.common.texts import sanitize
from marft.config import RunSettings
from marft.config.interfaces.environment import Split
from marft.config.recipe_checks import warn_idle_settings
from marft.config.run import check_prompt_space
from marft.envs.game_runtime import check_agent, open_terms
from marft.envs.tasks import NoTasksError, check_step_limit, read_tasks
from marft.inference.endpoints.client import Endpoint
from marft.inference.runtime import build_renderer
from marft.models.tokenizer_format import TokenizerFormat, load_tokenizer_formats

MAX_PROMPT_LENGTH = 80  # maximum length of a task in the output, in characters


def check_setup(run: RunSettings) -> list[str]:
    """Check what a run needs: tasks of each split, tokenizers, tools, grammars, skills, endpoints and reward terms.

    Returns:
        Sentences on the splits and the models' formats, and on settings without effect.

    Raises:
        ValueError: training would reject the recipe.
    """
    splits: list[Split] = ["train", "validation", "test"] if run.evaluation.every else ["train", "test"]
    sentences = []
    for split in splits:
        try:
            tasks = read_tasks(run.environment, split)
        except NoTasksError as error:
            if split != "test":
                raise
            sentences.append(f"{split}: {error}; training needs none, and marft eval does")
            continue
        if split == "train":
            check_step_limit(tasks, run.rollout.max_steps)
        prompt = sanitize(" ".join(tasks[0].prompt.split()))
        sentences.append(
            f"{split}: {len(tasks)} tasks, the first is {sanitize(tasks[0].id)}: {prompt[:MAX_PROMPT_LENGTH]}"
        )
    silence_transformers()
    formats = load_tokenizer_formats(run)
    _check_components(run, formats)
    for name, model in formats.items():
        ends = " or ".join(
            sanitize(str(token)) for token in model.tokenizer.convert_ids_to_tokens(list(model.stop_ids))
        )
        sentences.append(
            f"models.{name}: {model.context} tokens for prompt and action together; a turn ends with {ends}"
        )
    return [*sentences, *warn_idle_settings(run)]


def _check_components(run: RunSettings, formats: Mapping[str, TokenizerFormat]) -> None:
    """Run the checks at training start: context, tools, grammars, skills, endpoints and reward terms.

    Raises:
        ValueError: training would reject the recipe.
    """
    renderer = build_renderer(run, formats)
    check_prompt_space(run, {policy: format.context for policy, format in renderer.formats.items()})
    for agent in run.agents:
        for folder in agent.skills:
            read_skill(folder)
        check_agent(run, agent, bool(agent.tools or agent.skills), renderer)
    with ExitStack() as stack:
        for name, model in run.models.items():
            if model.endpoint:
                stack.callback(Endpoint(name, model.endpoint, model.path).close)
        open_terms(run, stack.callback)
