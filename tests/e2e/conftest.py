"""One undisturbed run of the whole pipeline through the command line, which the tests here look at or compare with."""

from __future__ import annotations

import pytest
from pipeline_cases import Finished, Tiny


@pytest.fixture(scope="session")
def finished(tiny: Tiny, local_ray: str) -> Finished:
    """The whole pipeline, from documents to the promoted encoder."""
    driver = tiny.start("finished", {"RAY_ADDRESS": local_ray})
    assert driver.end() == 0, driver.output
    return Finished(tiny.workspace("finished"), driver.output)
