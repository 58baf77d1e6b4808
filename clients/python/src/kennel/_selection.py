"""Things that are done to each run of a selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kennel._ulid import new_id
from kennel._values import Seconds, duration, enum_text
from kennel.v1 import process_service_pb2, run_pb2

Action = Literal["abort", "interrupt", "pause", "resume", "signal", "restart", "annotate", "remove"]
"""What `for_each` does to each run."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What was done to one run."""

    run_id: str
    """Run."""
    outcome: str
    """Such as `DONE`, `WOULD` of a dry run, `REFUSED`, `NO_LONGER_MATCHES`, `GONE`, `NODE_UNREACHABLE`."""
    reason: str
    """Reason of a refusal."""
    message: str
    """Refusal in plain words."""
    info: run_pb2.Run
    """Run of the contract, as it was then."""


@dataclass(frozen=True, slots=True)
class ForEach:
    """What was done to the runs of a selection."""

    outcomes: tuple[RunOutcome, ...]
    """What was done to each."""
    counts: Mapping[str, int]
    """Number of runs by outcome."""
    selection: bytes
    """The runs, for the real call after a dry run."""
    unreachable_nodes: tuple[str, ...]
    """Nodes with some of these runs that cannot be reached."""


def put_action(
    request: process_service_pb2.ForEachRunRequest,
    action: Action,
    *,
    grace: Seconds | None,
    signal: str,
    annotations: Mapping[str, str] | None,
) -> None:
    """Puts an action in a request."""
    for given, of in ((grace, "abort"), (signal or None, "signal"), (annotations, "annotate")):
        if given is not None and action != of:
            raise TypeError(f"action={action!r} has no value of {of}")
    if action == "abort":
        request.abort.request_id = new_id()
        if grace is not None:
            request.abort.grace.CopyFrom(duration(grace))
    elif action == "signal":
        request.signal.CopyFrom(process_service_pb2.SignalRequest(signal=signal, request_id=new_id()))
    elif action == "annotate":
        request.annotate.set.update(annotations or {})
    elif action == "interrupt":
        request.interrupt.request_id = new_id()
    elif action == "restart":
        request.restart.request_id = new_id()
    elif action == "remove":
        request.remove.request_id = new_id()
    elif action == "pause":
        request.pause.SetInParent()
    elif action == "resume":
        request.resume.SetInParent()
    else:
        raise ValueError(f"action={action!r}: it is one of {', '.join(Action.__args__)}")


def outcome_of(message: process_service_pb2.RunOutcome) -> RunOutcome:
    """Reads what was done to one run."""
    return RunOutcome(
        run_id=message.run.run_id,
        outcome=enum_text(process_service_pb2.RunOutcome.Outcome, "OUTCOME_", message.outcome),
        reason=message.reason,
        message=message.message,
        info=message.run,
    )
