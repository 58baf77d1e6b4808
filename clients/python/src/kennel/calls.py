"""The calls of the contract, for `client.raw.call`."""

from kennel._calls import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
