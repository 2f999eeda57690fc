"""The viewer's web app: routes, parameter checks and responses; read-only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from marft_serve.viewer import responses
from marft_serve.viewer.access import AccessMiddleware, build_error_response
from marft_serve.viewer.episode_query import EpisodeQuery, Sort
from marft_serve.viewer.evaluations import get_evaluations
from marft_serve.viewer.library import Library, MissingError
from marft_serve.viewer.metrics_log import dump_json
from marft_serve.viewer.parameter_errors import describe_error
from marft_serve.viewer.worth import get_worth as found_worth

STATIC_FOLDER = Path(__file__).parent / "static"
TextParameter = Annotated[str, Query(max_length=500)]
Order = Literal["asc", "desc"]


class JsonResponse(Response):
    """JSON response with null for non-finite numbers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialize the content."""
        return dump_json(content)


def build_app(library: Library, token: str = "", host: str = "") -> ASGIApp:
    """Build the web app.

    Args:
        library: the runs to show.
        token: token for access; "" for none.
        host: listening host name.
    """
    app = FastAPI(
        title="marft view", openapi_url=None, docs_url=None, redoc_url=None, default_response_class=JsonResponse
    )
    _add_run_routes(app, library)
    _add_episode_routes(app, library)
    _add_error_handlers(app)
    app.mount("/static", StaticFiles(directory=STATIC_FOLDER), name="static")

    @app.get("/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        """Return the page for every path outside the API."""
        if path == "api" or path.startswith("api/"):
            return build_error_response(404, "nothing is answered at this address")
        return FileResponse(STATIC_FOLDER / "index.html", headers={"cache-control": "no-cache"})

    return AccessMiddleware(app, token, host)


def _add_run_routes(app: FastAPI, library: Library) -> None:
    @app.get("/api/runs")
    def runs() -> Response:
        """Return the runs."""
        return JsonResponse(responses.get_runs(library))

    @app.get("/api/catalogue")
    def catalog() -> Response:
        """Return the metric catalog."""
        return JsonResponse(responses.get_catalog())

    @app.get("/api/runs/{run}/metrics")
    def metrics(
        run: str,
        names: Annotated[str, Query(max_length=20_000)] = "",
        since: int = -1,
        points: Annotated[int, Query(ge=2, le=100_000)] = 500,
    ) -> Response:
        """Return time series for metrics."""
        metric_names = [name for name in names.split(",") if name]
        return JsonResponse(responses.get_metrics(library.get_run(run), metric_names, since, points))

    @app.get("/api/runs/{run}/team")
    def team(run: str, step: TextParameter = "") -> Response:
        """Return the team in a step."""
        return JsonResponse(responses.get_team(library.get_run(run), step))

    @app.get("/api/runs/{run}/steps")
    def steps(run: str) -> Response:
        """Return the recorded steps."""
        return JsonResponse(responses.get_steps(library.get_run(run)))

    @app.get("/api/runs/{run}/evaluations")
    def evaluations(run: str, by: TextParameter = "") -> Response:
        """Return the evaluations, by cohort if requested."""
        return JsonResponse(get_evaluations(library.get_run(run), by))

    @app.get("/api/runs/{run}/worth")
    def worth(run: str) -> Response:
        """Return the results from ``marft worth``."""
        return JsonResponse(found_worth(library.get_run(run)))

    @app.get("/api/runs/{run}/credit")
    def credit(run: str, step: TextParameter = "") -> Response:
        """Return the credit audit for a step."""
        return JsonResponse(responses.get_credit(library.get_run(run), step))

    @app.get("/api/runs/{run}/beside")
    def compare(run: str, task: TextParameter = "", a: TextParameter = "", b: TextParameter = "") -> Response:
        """Return a task's episodes at two checkpoints."""
        return JsonResponse(responses.compare_checkpoints(library.get_run(run), task, a, b))


def _add_episode_routes(app: FastAPI, library: Library) -> None:
    @app.get("/api/runs/{run}/episodes")
    def episodes(
        run: str,
        step: TextParameter = "",
        q: TextParameter = "",
        agent: TextParameter = "",
        task: TextParameter = "",
        status: TextParameter = "",
        success: Literal["true", "false", ""] = "",
        guard: TextParameter = "",
        reward_min: float | Literal[""] = "",
        reward_max: float | Literal[""] = "",
        sort: Sort = "step",
        order: Order = "asc",
        offset: Annotated[int, Query(ge=0, le=2**40)] = 0,
        limit: Annotated[int, Query(ge=0, le=1000)] = 50,
    ) -> Response:
        """Return the episodes for a query."""
        query = EpisodeQuery(
            q=q,
            agent=agent,
            task=task,
            status=status,
            success=success == "true" if success else None,
            guard=guard,
            reward_min=None if reward_min == "" else reward_min,
            reward_max=None if reward_max == "" else reward_max,
            sort=sort,
            descending=order == "desc",
        )
        return JsonResponse(responses.get_episodes(library.get_run(run), step, query, offset, limit))

    base_path = "/api/runs/{run}/episodes/{step}/{index}"

    @app.get(base_path)
    def episode(run: str, step: str, index: int) -> Response:
        """Return an episode."""
        return JsonResponse(responses.get_episode(library.get_run(run), step, index))

    @app.get(f"{base_path}/prompt")
    def prompt(run: str, step: str, index: int, action: TextParameter) -> Response:
        """Return an action's prompt."""
        return JsonResponse(responses.get_prompt(library.get_run(run), step, index, action))

    @app.get(f"{base_path}/tokens")
    def tokens(run: str, step: str, index: int, action: TextParameter) -> Response:
        """Return an action's tokens."""
        return JsonResponse(responses.get_tokens(library.get_run(run), step, index, action))


def _add_error_handlers(app: FastAPI) -> None:
    """Register error handlers, with a single sentence for each error."""

    def build_handler(status: int, describe: Callable[[Any], str]) -> Callable[[Request, Exception], Response]:
        """Return a handler with a status and a message function."""
        return lambda _, error: JsonResponse({"error": describe(error)}, status)

    app.add_exception_handler(MissingError, build_handler(404, str))
    app.add_exception_handler(ValueError, build_handler(422, str))
    app.add_exception_handler(OSError, build_handler(404, lambda error: f"it cannot be read any more: {error}"))
    app.add_exception_handler(RequestValidationError, build_handler(400, _describe_first_error))

    def handle_http_error(_: Request, error: Exception) -> Response:
        """Convert an HTTP error."""
        assert isinstance(error, HTTPException)
        return JsonResponse({"error": str(error.detail)}, error.status_code)

    app.add_exception_handler(HTTPException, handle_http_error)


def _describe_first_error(error: RequestValidationError) -> str:
    return describe_error(error.errors()[0])
