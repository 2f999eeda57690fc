"""Options for the command ``marft plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, command_group

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT)
def plan(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="A TOML file, a bundled recipe's name, or a run, whose lengths are taken.")
    ],
    gpus: Annotated[int, typer.Option(min=1, max=4096, help="How many.")] = 1,
    gpu: Annotated[
        str, typer.Option(help="h100, h200, h20, b200, a100-40, a100-80, l40s, rtx4090, mi300x, cpu.")
    ] = "h100",
    prompt_tokens: Annotated[float | None, typer.Option(min=1, help="Of a prompt, on average.")] = None,
    action_tokens: Annotated[float | None, typer.Option(min=1, help="Of an action, on average.")] = None,
    max_action_tokens: Annotated[float | None, typer.Option(min=1, help="Of the longest one.")] = None,
    environment_steps: Annotated[float | None, typer.Option(min=1, help="Of an episode, on average.")] = None,
    environment_seconds: Annotated[float | None, typer.Option(min=0, help="Of an environment step.")] = None,
    lag: Annotated[int | None, typer.Option(min=0, help="Steps that what is learned from may be old; 0: none.")] = None,
    efficiency: Annotated[
        list[str] | None, typer.Option(help="What of a rate is reached, as intensity=200; repeat it.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="A config.json, for models whose sizes are not known here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the memory and step time of a run.

    The report shows the memory of each process by component and the fit on the GPUs. It also lists changes that make
    the run fit, and the best split of the GPUs.
    """
    from marft.cli import options, output
    from marft.models.device_specs import find_device_spec
    from marft_lab.cli.planning import run_plan
    from marft_lab.planning.plan import PlanRequest
    from marft_lab.planning.timing import Efficiencies
    from marft_lab.planning.workload import KnownLengths

    changes = options.parse_overrides(context, recipe)
    lengths = KnownLengths(prompt_tokens, action_tokens, max_action_tokens, environment_steps)
    reached = Efficiencies().with_overrides(efficiency or [])
    request = PlanRequest(gpus, find_device_spec(gpu), lengths, environment_seconds, lag, reached, model_config)
    run_plan(recipe, changes, request, output.output_mode(False, as_json))
