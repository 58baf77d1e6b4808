"""The server to call, and its credentials: options win over variables, variables over the context, a context over the
default socket. A context is a whole: credentials of the current one are not sent to a server that is named directly."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from kennel import _rules
from kennel._reasons import Configuration

DEFAULT_CONTEXT = "default"


@dataclass(frozen=True)
class Context:
    """A server and its credentials. Where it is not whole, its server is empty."""

    server: str = ""
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    token_file: str | None = None

    def has_credentials(self) -> bool:
        """Whether it has anything that only a server on the network needs."""
        return replace(self, server="") != Context()

    def above(self, other: Context) -> Context:
        """Returns it, completed by another one. Certificate and key belong together."""
        has_pair = self.certificate is not None or self.key is not None
        pair = self if has_pair else other
        return Context(
            server=self.server or other.server,
            ca=self.ca if self.ca is not None else other.ca,
            certificate=pair.certificate,
            key=pair.key,
            server_name=self.server_name if self.server_name is not None else other.server_name,
            token_file=self.token_file if self.token_file is not None else other.token_file,
        )


@dataclass(frozen=True)
class Target:
    """A server to call."""

    path: str | None = None
    """Path of its socket. None: it is on the network."""
    host: str = ""
    port: int = 0
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    token_file: str | None = None
    token: str | None = None
    node: str | None = None
    server_user: int | None = None

    def __repr__(self) -> str:
        return f"Target({self.address!r})"

    @property
    def address(self) -> str:
        """Address as Kennel writes it."""
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


class Surroundings:
    """Environment of the process. A variable that is empty counts as not set."""

    def __init__(self, env: Mapping[str, str] | None = None, *, is_root: bool | None = None) -> None:
        self._env = os.environ if env is None else env
        self.is_root = os.geteuid() == 0 if is_root is None else is_root

    def var(self, name: str) -> str | None:
        """Returns a variable that is set."""
        return self._env.get(name) or None

    def _dir(self, name: str) -> str | None:
        value = self.var(name)
        return value if value and value.startswith("/") else None

    def contexts_file(self) -> Path | None:
        """Returns the path of the context file; None: the environment names no directory for it."""
        config = self._dir("XDG_CONFIG_HOME")
        home = self._dir("HOME")
        if config is None and home is not None:
            config = f"{home}/.config"
        return Path(config) / "kennel" / "contexts.toml" if config else None

    def default_socket(self) -> str:
        """Returns the default socket of a server."""
        if self.is_root:
            return "/run/kennel/kennel.sock"
        runtime, state, home = self._dir("XDG_RUNTIME_DIR"), self._dir("XDG_STATE_HOME"), self._dir("HOME")
        if runtime:
            return os.path.join(runtime, "kennel/kennel.sock")
        if state:
            return os.path.join(state, "kennel/kennel.sock")
        if home:
            return os.path.join(home, ".local/state/kennel/kennel.sock")
        raise Configuration("there is no default socket: neither XDG_RUNTIME_DIR nor HOME is set")


def _contexts(here: Surroundings) -> tuple[str | None, dict[str, Context]]:
    """Reads the context file: the current context, and all of them."""
    path = here.contexts_file()
    if path is None or not os.path.lexists(path):
        return None, {}
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        names = {field.name for field in fields(Context)}
        unknown = sorted(set(read) - {"current", "context"})
        entries: dict[str, Context] = {}
        for name, values in read.get("context", {}).items():
            unknown += sorted(f"context.{name}.{key}" for key in set(values) - names)
            if not all(isinstance(value, str) for value in values.values()):
                raise ValueError(f"a value of the context {name!r} is no text")
            if not unknown and "server" not in values:
                raise ValueError(f"the context {name!r} has no server")
            entries[name] = Context(**{key: value for key, value in values.items() if key in names})
        if unknown:
            raise ValueError(f"unknown key {', '.join(unknown)}")
        current = read.get("current")
        if current is not None and not isinstance(current, str):
            raise ValueError("current is no text")
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise Configuration(f"cannot use {path}: {error}") from error
    return current, entries


def _named(name: str, here: Surroundings) -> Context | None:
    if name == DEFAULT_CONTEXT:
        return None
    entries = _contexts(here)[1]
    if name not in entries:
        raise Configuration(f"there is no context {name!r}")
    return entries[name]


def _settings(given: Context, context: str | None, here: Surroundings) -> Context | None:
    variables = Context(
        ca=here.var("KENNEL_TLS_CA"),
        certificate=here.var("KENNEL_TLS_CERT"),
        key=here.var("KENNEL_TLS_KEY"),
        server_name=here.var("KENNEL_TLS_SERVER_NAME"),
        token_file=here.var("KENNEL_TOKEN_FILE"),
    )
    if given.server:
        return given.above(variables)
    if context:
        found = _named(context, here)
        return given.above(found) if found else None
    server, name = here.var("KENNEL_SERVER"), here.var("KENNEL_CONTEXT")
    if server and name:
        raise Configuration("KENNEL_SERVER and KENNEL_CONTEXT are both set")
    if server:
        return given.above(replace(variables, server=server))
    name = name or _contexts(here)[0]
    found = _named(name, here) if name else None
    return given.above(variables.above(found)) if found else None


def socket_path(text: str) -> str:
    """Reads `unix:PATH` or `unix://PATH`, and returns the absolute path of the socket."""
    if not text.startswith("unix:"):
        raise Configuration(f"{text!r} is not an address")
    path = text.removeprefix("unix:").removeprefix("//")
    if not path or path.endswith("/"):
        raise Configuration(f"{text!r} names no socket file")
    path = path if path.startswith("/") else os.path.join(os.getcwd(), path)
    path = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    if len(os.fsencode(path)) > _rules.SOCKET_PATH_BYTES_MAX:
        raise Configuration(
            f"the path of the socket is longer than {_rules.SOCKET_PATH_BYTES_MAX} bytes: {path}"
        )
    return path


def _host_and_port(text: str) -> tuple[str, int]:
    place = text.removeprefix("tcp:").removeprefix("//")
    host, colon, digits = place.rpartition(":")
    valid = bool(colon) and digits.isascii() and digits.isdigit() and 0 < int(digits) < 65536
    if host.startswith("[") and host.endswith("]"):
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            valid = False
    elif not host or any(char in host for char in ":/@"):
        valid = False
    if not valid:
        raise Configuration(f"{text!r} is not an address")
    return host, int(digits)


def resolve(
    given: Context,
    *,
    context: str | None = None,
    node: str | None = None,
    server_user: int | None = None,
    token: str | None = None,
    here: Surroundings | None = None,
) -> Target:
    """Returns the server that options, variables or the current context name, or the default one."""
    here = here or Surroundings()
    settings = _settings(given, context, here)
    has_credentials = given.has_credentials() or token is not None
    if settings is None:
        if has_credentials:
            raise Configuration("certificates and tokens are for a server on the network, and none is named")
        target = Target(path=here.default_socket())
    elif not settings.server.startswith("tcp:"):
        target = Target(path=socket_path(settings.server), token_file=here.var("KENNEL_RUN_TOKEN_FILE"))
        if has_credentials:
            raise Configuration("a unix socket takes neither certificates nor a token")
    else:
        host, port = _host_and_port(settings.server)
        if (settings.certificate is None) != (settings.key is None):
            raise Configuration("a certificate and its key must be given together")
        target = Target(
            host=host,
            port=port,
            ca=settings.ca,
            certificate=settings.certificate,
            key=settings.key,
            server_name=settings.server_name,
            token_file=None if token is not None else settings.token_file,
            token=token,
        )
    user = here.var("KENNEL_SERVER_USER")
    if server_user is None and user is not None:
        if not (user.isascii() and user.isdigit()):
            raise Configuration(f"KENNEL_SERVER_USER: {user!r} is not the number of a user")
        server_user = int(user)
    return replace(target, node=node or here.var("KENNEL_NODE"), server_user=server_user)
