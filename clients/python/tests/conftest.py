"""A server for the tests: KENNEL_BINARY, or `kennel` in PATH."""

import kennel
import pytest


@pytest.fixture(scope="session")
def server():
    with kennel.local() as client:
        yield client


@pytest.fixture
def client(server):
    with kennel.connect(server=server.address, patience=20) as client:
        yield client
        for run in client.find():
            run.abort(grace=0)
