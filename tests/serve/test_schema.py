"""The API against its own description: whatever schemathesis thinks of is answered as the document says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from field.conftest import TINY
from protocore.field.keeper import Keeper
from protocore.serve.app import make_app

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from schemathesis.specs.openapi import checks  # noqa: E402

ROUTES = 9
CHECKED = [schemathesis.checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
           checks.response_schema_conformance, checks.unsupported_method]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A learner of two classes that is served, without the process that would learn."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("served")
    for name, value in (("a", 0), ("b", 255)):
        (folder / "photos" / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(folder / "photos" / name / "0.png")
    keeper = Keeper.new(folder / "mine.learner", **TINY | {"steps": 2})
    keeper.learn([folder / "photos"])
    return make_app(keeper.path)


@pytest.fixture(scope="module")
def api(app: Any) -> Any:
    async def unstarted(scope: Any, receive: Any, send: Any) -> None:
        """Jobs only queue: schemathesis would start and end the application at every request."""
        if scope["type"] == "http":
            return await app(scope, receive, send)
        for part in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{part}.complete"})

    return schemathesis.openapi.from_asgi("/api/openapi.json", unstarted)


@pytest.mark.parametrize("place", range(ROUTES))
def test_every_answer_is_one_that_the_document_names(api: Any, place: int) -> None:
    operation = list(api.get_all_operations())[place].ok()

    @settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate], database=None,
              suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def answers(case: Any) -> None:
        case.call_and_validate(checks=CHECKED)

    answers()


def test_no_route_is_left_out(api: Any) -> None:
    assert len(list(api.get_all_operations())) == ROUTES
