"""Fixtures of pytest: `kennel_server`, a private server of the session, and `kennel`, a client of it.

gRPC is loaded by the first test that uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kennel import Client


@pytest.fixture(scope="session")
def kennel_server() -> Iterator[Client]:
    """A private server, which ends with the session. Its `address` is for clients of other processes."""
    import kennel

    with kennel.local() as client:
        yield client


@pytest.fixture
def kennel(kennel_server: Client) -> Iterator[Client]:
    """A client of the server of the session. Runs that are live after the test are aborted."""
    import kennel as package

    with package.connect(server=kennel_server.address) as client:
        before = {run.id for run in client.find()}
        yield client
        for run in client.find():
            if run.id not in before:
                run.abort(grace=0)
