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

from marft_serve.viewer import answers
from marft_serve.viewer.access import Access, refusal
from marft_serve.viewer.asking import sentence_of
from marft_serve.viewer.browsing import Sort, Wanted
from marft_serve.viewer.evaluated import evaluated
from marft_serve.viewer.library import Library, MissingError
from marft_serve.viewer.log import dumps
from marft_serve.viewer.worth import worth as found_worth

STATIC = Path(__file__).parent / "static"
Text = Annotated[str, Query(max_length=500)]
Order = Literal["asc", "desc"]


class Json(Response):
    """JSON response with null for non-finite numbers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialize the content."""
        return dumps(content)


def build(library: Library, token: str = "", host: str = "") -> ASGIApp:
    """Build the web app.

    Args:
        library: the runs to show.
        token: token for access; "" for none.
        host: listening host name.
    """
    app = FastAPI(title="marft view", openapi_url=None, docs_url=None, redoc_url=None, default_response_class=Json)
    _of_runs(app, library)
    _of_episodes(app, library)
    _errors(app)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        """Return the page for every path outside the API."""
        if path == "api" or path.startswith("api/"):
            return refusal(404, "nothing is answered at this address")
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    return Access(app, token, host)


def _of_runs(app: FastAPI, library: Library) -> None:
    @app.get("/api/runs")
    def runs() -> Response:
        """Return the runs."""
        return Json(answers.runs(library))

    @app.get("/api/catalogue")
    def catalogue() -> Response:
        """Return the metric catalog."""
        return Json(answers.catalogue())

    @app.get("/api/runs/{run}/metrics")
    def metrics(
        run: str,
        names: Annotated[str, Query(max_length=20_000)] = "",
        since: int = -1,
        points: Annotated[int, Query(ge=2, le=100_000)] = 500,
    ) -> Response:
        """Return time series for metrics."""
        asked = [name for name in names.split(",") if name]
        return Json(answers.metrics(library.run(run), asked, since, points))

    @app.get("/api/runs/{run}/team")
    def team(run: str, step: Text = "") -> Response:
        """Return the team in a step."""
        return Json(answers.team(library.run(run), step))

    @app.get("/api/runs/{run}/steps")
    def steps(run: str) -> Response:
        """Return the recorded steps."""
        return Json(answers.steps(library.run(run)))

    @app.get("/api/runs/{run}/evaluations")
    def evaluations(run: str, by: Text = "") -> Response:
        """Return the evaluations, by cohort if requested."""
        return Json(evaluated(library.run(run), by))

    @app.get("/api/runs/{run}/worth")
    def worth(run: str) -> Response:
        """Return the results from ``marft worth``."""
        return Json(found_worth(library.run(run)))

    @app.get("/api/runs/{run}/credit")
    def credit(run: str, step: Text = "") -> Response:
        """Return the credit audit for a step."""
        return Json(answers.credit(library.run(run), step))

    @app.get("/api/runs/{run}/beside")
    def beside(run: str, task: Text = "", a: Text = "", b: Text = "") -> Response:
        """Return a task's episodes at two checkpoints."""
        return Json(answers.beside(library.run(run), task, a, b))


def _of_episodes(app: FastAPI, library: Library) -> None:
    @app.get("/api/runs/{run}/episodes")
    def episodes(
        run: str, step: Text = "", q: Text = "", agent: Text = "", task: Text = "", status: Text = "",
        success: Literal["true", "false", ""] = "", guard: Text = "", reward_min: float | Literal[""] = "",
        reward_max: float | Literal[""] = "", sort: Sort = "step", order: Order = "asc",
        offset: Annotated[int, Query(ge=0, le=2**40)] = 0, limit: Annotated[int, Query(ge=0, le=1000)] = 50,
    ) -> Response:  # fmt: skip
        """Return the episodes for a query."""
        wanted = Wanted(
            q=q, agent=agent, task=task, status=status, success=success == "true" if success else None, guard=guard,
            reward_min=None if reward_min == "" else reward_min, reward_max=None if reward_max == "" else reward_max,
            sort=sort, descending=order == "desc",
        )  # fmt: skip
        return Json(answers.episodes(library.run(run), step, wanted, offset, limit))

    at = "/api/runs/{run}/episodes/{step}/{index}"

    @app.get(at)
    def episode(run: str, step: str, index: int) -> Response:
        """Return an episode."""
        return Json(answers.episode(library.run(run), step, index))

    @app.get(f"{at}/prompt")
    def prompt(run: str, step: str, index: int, action: Text) -> Response:
        """Return an action's prompt."""
        return Json(answers.prompt(library.run(run), step, index, action))

    @app.get(f"{at}/tokens")
    def tokens(run: str, step: str, index: int, action: Text) -> Response:
        """Return an action's tokens."""
        return Json(answers.tokens(library.run(run), step, index, action))


def _errors(app: FastAPI) -> None:
    """Register error handlers, with a single sentence for each error."""

    def answered(status: int, said: Callable[[Any], str]) -> Callable[[Request, Exception], Response]:
        """Return a handler with a status and a message function."""
        return lambda _, error: Json({"error": said(error)}, status)

    app.add_exception_handler(MissingError, answered(404, str))
    app.add_exception_handler(ValueError, answered(422, str))
    app.add_exception_handler(OSError, answered(404, lambda error: f"it cannot be read any more: {error}"))
    app.add_exception_handler(RequestValidationError, answered(400, _first_problem))

    def http(_: Request, error: Exception) -> Response:
        """Convert an HTTP error."""
        assert isinstance(error, HTTPException)
        return Json({"error": str(error.detail)}, error.status_code)

    app.add_exception_handler(HTTPException, http)


def _first_problem(error: RequestValidationError) -> str:
    return sentence_of(error.errors()[0])
