"""Every route that the application has, for tests that ask the same of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from tests.api.test_door import make_app


def routes_of(app: Any) -> Iterator[Route]:
    while not isinstance(app, Starlette):
        app = app.app
    for route in app.routes:
        assert isinstance(route, Route)
        yield route


def methods_and_paths(parameter: str = "x") -> list[tuple[str, str]]:
    """Each route by each of its methods; parameters of paths are `parameter`."""
    found = set()
    for route in routes_of(make_app()):
        path = re.sub(r"\{[^}]*\}", parameter, route.path)
        # an endpoint that is an ASGI application of its own has no methods unless they were named
        found |= {(method, path) for method in route.methods or {"GET", "POST"}}
    return sorted(found)
