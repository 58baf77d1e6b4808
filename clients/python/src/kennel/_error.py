"""The base of all errors, and how the status of a call becomes one."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol, cast

import grpc

from kennel import _rules

_ERRNOS = {"COMMAND_NOT_FOUND": errno.ENOENT, "INPUT_CLOSED": errno.EPIPE}


class KennelError(Exception):
    """A call that failed. `reason` says why; compare it or the class, not the message."""

    reason: str = ""
    """Reason of the server or of this package, such as `RUN_NOT_FOUND`. Empty: the answer had none."""
    code: str = ""
    """Code of the gRPC status, such as `NOT_FOUND`. Empty: no call was made."""
    message: str = ""
    """One plain sentence."""
    metadata: Mapping[str, str]
    """Metadata of the reason, such as `accepted_offset`."""
    violations: tuple[Violation, ...]
    """All faults of the request."""
    retry_after: float | None = None
    """Seconds after which the server suggests another try."""
    is_retryable: bool = False
    """Whether the same call may succeed later."""
    run_id: str | None = None
    """Run that the call was for."""
    reasons: ClassVar[dict[str, type[KennelError]]] = {}

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        violations: Iterable[Violation] = (),
        retry_after: float | None = None,
        is_retryable: bool = False,
        run_id: str | None = None,
    ) -> None:
        Exception.__init__(self, message)
        self.message = message
        self.code = code
        if reason is not None:
            self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.is_retryable = is_retryable
        self.run_id = run_id
        number = _ERRNOS.get(self.reason)
        if number is not None and isinstance(self, OSError):
            object.__setattr__(self, "errno", number)
            object.__setattr__(self, "strerror", message)

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.reason else self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, code={self.code!r}, reason={self.reason!r})"


class Violation:
    """One fault of a request."""

    __slots__ = ("description", "field")

    def __init__(self, field: str, description: str) -> None:
        self.field = field
        """Path of the field, such as `spec.cwd`."""
        self.description = description
        """Fault in plain words."""

    def __repr__(self) -> str:
        return f"Violation({self.field!r}, {self.description!r})"


class _Status(Protocol):
    """What a call that failed has, with asyncio and without."""

    def code(self) -> grpc.StatusCode | None: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


_LOST = {"UNAVAILABLE", "CANCELLED", "INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED"}


class Failure:
    """How a call failed: lost, not now, or for good."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        self.reason = ""
        self.metadata: dict[str, str] = {}
        self.violations: list[Violation] = []
        self.retry_after: float | None = None
        self.is_of_server = False
        """Whether Kennel answered: the status has its ErrorInfo."""

    @property
    def is_lost(self) -> bool:
        """Whether no answer of the server came."""
        return not self.is_of_server and self.code in _LOST

    def not_now(self, *, is_spawn: bool, is_stream: bool) -> bool:
        """Whether the server asks to repeat the call later."""
        if self.reason in _rules.NOT_NOW_ALWAYS:
            return True
        if self.reason in _rules.NOT_NOW_NOT_SPAWN:
            return not is_spawn
        has_time = is_stream and self.retry_after is not None
        return has_time and self.reason in _rules.NOT_NOW_STREAM_WITH_RETRY_INFO

    def error(self, run_id: str | None = None) -> KennelError:
        """Returns the error that a caller gets."""
        from kennel import _reasons

        if self.is_of_server and self.reason == "UNIMPLEMENTED":
            return _reasons.ServerTooOld(f"the server has no such call: {self.message}", code=self.code)
        if not self.is_of_server and self.code == "UNIMPLEMENTED":
            return _reasons.NotKennel(f"the server does not answer as Kennel does: {self.message}", code=self.code)
        of_reason = _reasons.BY_REASON.get(self.reason)
        later = self.reason in _rules.NOT_NOW_ALWAYS or self.reason in _rules.NOT_NOW_NOT_SPAWN
        return (of_reason or KennelError)(
            self.message,
            code=self.code,
            reason=self.reason,
            metadata=self.metadata,
            violations=self.violations,
            retry_after=self.retry_after,
            is_retryable=later or self.retry_after is not None or self.is_lost,
            run_id=run_id,
        )


def failure_of(error: grpc.RpcError) -> Failure:
    """Reads the status of a call."""
    from kennel._internal import status_pb2

    status = cast(_Status, error)
    code = status.code() or grpc.StatusCode.UNKNOWN
    failure = Failure(code.name, status.details() or code.name)
    for key, value in status.trailing_metadata() or ():
        if key != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        try:
            details = status_pb2.Status.FromString(value).details
        except Exception:  # protobuf has no public class for this in all its forms; a proxy may send anything
            continue
        for detail in details:
            kind = detail.type_url.rpartition("/")[2]
            if kind == "google.rpc.ErrorInfo":
                info = status_pb2.ErrorInfo.FromString(detail.value)
                if info.domain == _rules.DOMAIN:
                    failure.reason = info.reason
                    failure.metadata = dict(info.metadata)
                    failure.is_of_server = True
            elif kind == "google.rpc.RetryInfo":
                delay = status_pb2.RetryInfo.FromString(detail.value).retry_delay
                failure.retry_after = delay.seconds + delay.nanos / 1e9
            elif kind == "google.rpc.BadRequest":
                for fault in status_pb2.BadRequest.FromString(detail.value).field_violations:
                    failure.violations.append(Violation(fault.field, fault.description))
    return failure
