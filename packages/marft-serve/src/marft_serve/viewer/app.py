"""The viewer's server and web app: routes, parameter checks and error messages; read-only."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from marft.common.errors import UserError
from marft_serve.gateway.listener import Listener
from marft_serve.viewer import responses
from marft_serve.viewer.access import AccessMiddleware, build_error_response
from marft_serve.viewer.episode_index import IndexCache
from marft_serve.viewer.episode_query import EpisodeQuery
from marft_serve.viewer.library import Library, MissingError
from marft_serve.viewer.metrics_log import dump_json
from marft_serve.viewer.responses import get_evaluations
from marft_serve.viewer.responses import get_worth as found_worth

STATIC_FOLDER = Path(__file__).parent / "static"
TextParameter = Annotated[str, Query(max_length=500)]
ERROR_MESSAGES = {  # by pydantic's error type
    "missing": "it is left out",
    "int_parsing": "it has to be a whole number",
    "int_from_float": "it has to be a whole number",
    "float_parsing": "it has to be a number",
    "string_too_long": "it may have at most {max_length} characters",
    "greater_than_equal": "it may not be less than {ge}",
    "less_than_equal": "it may not be more than {le}",
    "literal_error": "it is none of {expected}",
}
SERVER_LABEL = "marft view"


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
    def episodes(run: str, query: Annotated[EpisodeQuery, Query()]) -> Response:
        """Return the episodes for a query."""
        return JsonResponse(responses.get_episodes(library.get_run(run), query))

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


def describe_error(problem: Mapping[str, Any]) -> str:
    """Describe a pydantic error in plain words.

    >>> describe_error({"type": "missing", "loc": ("query", "action"), "msg": "Field required"})
    "this address needs 'action' to be answered: it is left out"
    """
    name = next((part for part in problem["loc"][1:] if isinstance(part, str)), "a value")
    template = ERROR_MESSAGES.get(problem["type"])
    message = template.format(**problem.get("ctx", {})) if template else str(problem["msg"])
    if problem["type"] == "missing":
        return f"this address needs {name!r} to be answered: {message}"
    return f"{name!r} of this address cannot be {_truncate(problem.get('input'))}: {message}"


def _truncate(value: object, max_chars: int = 40) -> str:
    text = str(value)
    return repr(text if len(text) <= max_chars else text[:max_chars] + "…")


class Viewer:
    """Viewer at ``address``. Call :meth:`close` at the end.

    Args:
        paths: run folders, and folders that contain runs.
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        with_token: True to require a token, which is part of ``url``.
        cache: cache for episode indexes; None for the user's cache.

    Raises:
        UserError: a folder has no run, or the server cannot listen on this host and port.
    """

    def __init__(
        self, paths: Sequence[Path], host: str, port: int, with_token: bool = True, cache: IndexCache | None = None
    ) -> None:
        if not with_token and host not in ("127.0.0.1", "::1", "localhost"):
            raise UserError(f"--no-token: others could read runs at {host}; leave it out, or listen on 127.0.0.1")
        cache = cache or IndexCache.for_user()
        cache.prune()
        self.token = secrets.token_urlsafe(24) if with_token else ""
        self.library = Library(paths, cache)
        self._listener = Listener(build_app(self.library, self.token, host), host, port, SERVER_LABEL)
        self.address = self._listener.address
        self.url = f"{self.address}/" + (f"?token={self.token}" if self.token else "")

    def close(self) -> None:
        """Stop the server; open connections are cut."""
        self._listener.close()


def run_viewer(paths: Sequence[Path], host: str, port: int, with_token: bool, ready: Callable[[str], None]) -> None:
    """Run the viewer until Ctrl-C.

    Args:
        paths: run folders, and folders that contain runs.
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        with_token: True to require a token.
        ready: callback with the URL.

    Raises:
        UserError: as for :class:`Viewer`.
    """
    viewer = Viewer(paths, host, port, with_token)
    try:
        ready(viewer.url)
        threading.Event().wait()
    finally:
        viewer.close()
