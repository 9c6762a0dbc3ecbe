"""A server over the model that each module of tests names."""

from collections.abc import Iterator

import pytest
from ggufc import Session

from ...serving import Running, running


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Running]:
    with running(session) as found:
        yield found
