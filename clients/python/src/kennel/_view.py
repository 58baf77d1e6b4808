"""A run as it was seen last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kennel import _rules
from kennel._reasons import ExitUnknown
from kennel._values import Exit, Question, Stats, enum_text, exit_of, moment, question_of
from kennel.v1 import run_pb2

_LIVE = frozenset(state.removeprefix("RUN_STATE_") for state in _rules.LIVE_STATES)


def verdict_of(message: run_pb2.TreeVerdict) -> tuple[str, str | None]:
    """Returns a verdict and its proof. An empty text: there is none yet."""
    kind = message.WhichOneof("verdict") or ""
    proof = enum_text(run_pb2.EmptyProof, "EMPTY_PROOF_", message.empty.proof) if kind == "empty" else None
    return kind, proof


class RunView:
    """What is known of a run since the last answer that had it; `refresh` reads it anew."""

    _message: run_pb2.Run
    _stats: Stats

    @property
    def id(self) -> str:
        """Id, a ULID."""
        return self._message.run_id

    @property
    def info(self) -> run_pb2.Run:
        """The whole Run of the contract."""
        return self._message

    @property
    def name(self) -> str:
        """Name. Empty: it has none."""
        return self._message.spec.name

    @property
    def pid(self) -> int | None:
        """Process id of the command: information, never an address."""
        return self._message.current_attempt.pid or None

    @property
    def state(self) -> str:
        """State, such as `RUNNING` or `SUCCEEDED`."""
        state = enum_text(run_pb2.RunState, "RUN_STATE_", self._message.state)
        if state.startswith("UNKNOWN("):
            self._stats.unknown_values += 1
        return state

    @property
    def is_live(self) -> bool:
        """Whether it has not ended: starting, running, paused, stopping, or between two attempts."""
        return self.state in _LIVE

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 1."""
        return self._message.current_attempt.number

    @property
    def ready_by(self) -> str | None:
        """What made it ready, such as `http`. None: it is not, or it needs nothing to be."""
        return self._message.ready_by or None

    @property
    def activity(self) -> str:
        """What it does: `WORKING`, `AWAITING_INPUT`, `IDLE`; `UNSPECIFIED`: not known."""
        return enum_text(run_pb2.Activity, "ACTIVITY_", self._message.activity)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What it asks, the oldest first."""
        return tuple(question_of(question) for question in self._message.questions)

    @property
    def status(self) -> str:
        """Its status in its own words."""
        return self._message.status

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels."""
        return dict(self._message.labels)

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations."""
        return dict(self._message.annotations)

    @property
    def annotations_version(self) -> int:
        """Number of their changes, for `annotate(expected_version=...)`."""
        return self._message.annotations_version

    @property
    def warnings(self) -> tuple[str, ...]:
        """Gaps in what holds its processes together, in plain words."""
        return tuple(gap.text for gap in self._message.coverage.gaps)

    @property
    def end_reason(self) -> str | None:
        """Why it ended, such as `exited` or `aborted`. None: it has not ended."""
        reason: str | None = self._message.end_reason.WhichOneof("reason")
        return reason

    @property
    def verdict(self) -> str:
        """Verdict on its processes, such as `empty`. Empty text: there is none yet."""
        return verdict_of(self._message.tree_verdict)[0]

    @property
    def proof(self) -> str | None:
        """Proof that no process is left."""
        return verdict_of(self._message.tree_verdict)[1]

    @property
    def exit(self) -> Exit | None:
        """Exit of the command in the present attempt. None: it has not exited, or never ran."""
        return exit_of(self._message.current_attempt.exit)

    @property
    def returncode(self) -> int | None:
        """Exit code, or the negative number of a signal; None while it runs. Raises ExitUnknown."""
        found = self.exit
        if found is None and not self.is_live:
            raise ExitUnknown("the command never ran", run_id=self.id)
        return None if found is None else found.returncode

    @property
    def create_time(self) -> datetime:
        """Time when it was accepted, in UTC."""
        return moment(self._message.create_time)

    @property
    def end_time(self) -> datetime | None:
        """Time when it was complete, in UTC. None: it is not."""
        return moment(self._message.end_time) if self._message.HasField("end_time") else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._message.run_id} {self.state}>"
