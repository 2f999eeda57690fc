"""Options for the command ``marft plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, command_group

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Train")
def plan(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="Recipe (a TOML file or a bundled name), or a run, whose measured lengths are used.")
    ],
    gpus: Annotated[int, typer.Option(min=1, max=4096, help="Number of GPUs.")] = 1,
    gpu: Annotated[
        str, typer.Option(help="GPU: h100, h200, h20, b200, a100-40, a100-80, l40s, rtx4090, mi300x or cpu.")
    ] = "h100",
    prompt_tokens: Annotated[float | None, typer.Option(min=1, help="Average tokens of a prompt.")] = None,
    action_tokens: Annotated[float | None, typer.Option(min=1, help="Average tokens of an action.")] = None,
    max_action_tokens: Annotated[float | None, typer.Option(min=1, help="Tokens of the longest action.")] = None,
    environment_steps: Annotated[
        float | None, typer.Option(min=1, help="Average environment steps of an episode.")
    ] = None,
    environment_seconds: Annotated[
        float | None, typer.Option(min=0, help="Average duration of an environment step, in seconds.")
    ] = None,
    lag: Annotated[
        int | None, typer.Option(min=0, help="Maximum policy lag, in steps; 0: synchronous (default: the recipe's).")
    ] = None,
    efficiency: Annotated[
        list[str] | None, typer.Option(help="Reached share of a rate of the GPU, such as intensity=200; repeatable.")
    ] = None,
    model_config: Annotated[Path | None, typer.Option(help="config.json of a model whose size is unknown.")] = None,
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
