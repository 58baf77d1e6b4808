"""Options and credentials of channels, the same for both forms of the package."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import grpc

from kennel import _rules
from kennel._reasons import Configuration, ConnectFailed, ForeignServer
from kennel._target import Target

_SYSTEM_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


def options(target: Target) -> list[tuple[str, str | int]]:
    """Returns the options of a channel: own pings and windows, no proxy, no retries of the transport."""
    return [
        ("grpc.default_authority", target.server_name or "localhost" if target.path is None else "localhost"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", int(_rules.PING_INTERVAL * 1000)),
        ("grpc.keepalive_timeout_ms", int(_rules.PING_TIMEOUT * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _rules.WINDOW_BYTES),
        ("grpc.max_receive_message_length", _rules.MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", int(_rules.CONNECT_BACKOFF_MIN * 1000)),
        # The time of one attempt, in spite of its name.
        ("grpc.min_reconnect_backoff_ms", int(_rules.DIAL_TIMEOUT * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(_rules.CONNECT_BACKOFF_MAX * 1000)),
        *_own_name(target),
    ]


def _own_name(target: Target) -> list[tuple[str, str | int]]:
    """Returns the option for a certificate of another name than that of the host."""
    if target.path is not None or not target.server_name:
        return []
    return [("grpc.ssl_target_name_override", target.server_name)]


def uri(target: Target) -> str:
    """Returns the target as gRPC writes it."""
    if target.path is not None:
        return f"unix:{target.path}"
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"dns:///{host}:{target.port}"


class Files:
    """Files of a server on the network: read for each connection; one that is missing has its last value."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._last: dict[str, bytes] = {}
        self._last_token: str | None = None

    def _read(self, path: str, what: str) -> bytes:
        try:
            read = Path(path).read_bytes()
        except OSError as error:
            if path in self._last:
                return self._last[path]
            raise Configuration(f"cannot read {what} from {path}: {error.strerror}") from error
        if not read.strip() and path in self._last:
            return self._last[path]
        self._last[path] = read
        return read

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Reads the certificates; None: over a unix socket there are none."""
        target = self._target
        if target.path is not None:
            return None
        authorities = target.ca or next((path for path in _SYSTEM_AUTHORITIES if Path(path).is_file()), None)
        if authorities is None:
            raise Configuration("cannot verify any server: no CA certificate was given, and this host has none")
        roots = self._read(authorities, "a CA certificate")
        if b"-----BEGIN CERTIFICATE-----" not in roots:
            raise Configuration(f"cannot find a CA certificate in {authorities}")
        key = chain = None
        if target.certificate is not None and target.key is not None:
            chain, key = self._read(target.certificate, "a certificate"), self._read(target.key, "a private key")
        return grpc.ssl_channel_credentials(roots, key, chain)

    def state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Returns what changes when a certificate file is replaced."""
        target = self._target
        found: list[tuple[int, int, int] | None] = []
        if target.path is None:
            for path in (target.ca, target.certificate, target.key):
                try:
                    stat = os.stat(path) if path else None
                except OSError:
                    stat = None
                found.append((stat.st_size, stat.st_ino, stat.st_mtime_ns) if stat else None)
        return tuple(found)

    def token(self) -> str | None:
        """Reads the token, for each call."""
        target = self._target
        if target.token is not None:
            return target.token
        if target.token_file is None:
            return None
        try:
            text = Path(target.token_file).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            text = ""
        if text and len(text) <= _rules.TOKEN_BYTES_MAX and text.isprintable():
            self._last_token = text
        if self._last_token is None:
            raise Configuration(f"cannot find a token in {target.token_file}")
        return self._last_token


def check_peer(target: Target) -> None:
    """Checks that the process behind a unix socket is of this user, of root, or of the given user."""
    if target.path is None:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(5)
        probe.connect(target.path)
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            _, uid, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            if uid not in (0, os.geteuid(), target.server_user):
                raise ForeignServer(f"the server at {target.address} is of user {uid}")
    finally:
        probe.close()


def listens(target: Target, cause: str) -> bool:
    """Whether anything listens at the address: a socket is tried, of a port the last cause says it."""
    if target.path is None:
        return "refused" not in cause
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.setblocking(False)
    try:
        probe.connect(target.path)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    finally:
        probe.close()
    return True


def connect_failed(target: Target, error: OSError) -> ConnectFailed:
    """Returns the error of a server that cannot be reached."""
    why = error.strerror or str(error)
    return ConnectFailed(f"cannot connect to {target.address}: {why}", is_retryable=True)
