"""Options of `spawn`, and the spec that they make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from kennel._ulid import new_id
from kennel._values import Seconds, duration
from kennel.v1 import access_pb2, process_service_pb2, run_pb2


class SpawnOptions(TypedDict, total=False):
    """Options of a command. A field that `spec` has too, and an unknown option, is a TypeError."""

    env: Mapping[str, str]
    """Variables of the command."""
    env_mode: str
    """Variables that it has from the server: `minimal` (default), `inherit_all`, `none`."""
    inherit: bool
    """True: environment and directory of this process, as a child of it would have, below `env` and `cwd`. They are not
    part of what makes a repeated spawn the same."""
    cwd: str | os.PathLike[str]
    """Working directory, absolute."""
    shell: bool
    """The command is one line for /bin/sh."""
    input: bytes | str
    """Whole standard input."""
    stdin: str
    """`null` (default), or `pipe` for `Run.stdin`."""
    tty: bool | tuple[int, int] | run_pb2.Terminal
    """Runs on a terminal: rows and columns."""
    kind: str
    """`heartbeat`, `service`, `terminal`, `job`."""
    labels: Mapping[str, str]
    """Labels to find it by."""
    annotations: Mapping[str, str]
    """Annotations that it begins with."""
    name: str
    """Name, unique among the open runs of the owner."""
    on_name_conflict: str
    """Where an open run has the name: `fail` (default) or `return`, which returns that run."""
    run_id: str
    """Id, a ULID. Default: a new one."""
    request_key: str
    """Key of the caller in place of `run_id`."""
    ready: run_pb2.Readiness
    """When it counts as ready, see `kennel.ready`."""
    rules: Sequence[run_pb2.OutputRule]
    """Rules on lines of its output."""
    timeout: Seconds
    """Longest run time: then the run is stopped, and ends with `deadline_exceeded`."""
    idle: Seconds
    """Longest time without output and input."""
    grace: Seconds
    """Time between the first signal of a stop and SIGKILL."""
    stop_signal: str
    """First signal of a stop."""
    stop_steps: Sequence[run_pb2.StopAction]
    """Actions of a stop before its first signal."""
    restart: str | run_pb2.RestartPolicy
    """`never` (default), `on_failure`, `always`, or a policy."""
    recovery: str
    """Where the whole service dies: `terminate` or `adopt`."""
    on_leader_exit: str
    """What happens to other processes: `stop` (default), `drain`, `keep`."""
    limits: run_pb2.RunLimits
    """Limits of resources."""
    sandbox: bool | run_pb2.Sandbox
    """Sandbox of its files."""
    user: int | run_pb2.RunUser
    """User of the command, by number."""
    secrets: Mapping[str, str | bytes] | Sequence[run_pb2.Secret]
    """Values of variables that no caller can read."""
    parent: str | run_pb2.Parent
    """Run that it belongs to."""
    api_access: str
    """What its processes may call: `own_run`, `children`."""
    output: int | run_pb2.OutputPolicy
    """Bytes of output that are kept, or a policy."""
    umask: int
    """File mode creation mask."""
    success_exit_codes: Sequence[int]
    """Codes beside 0 that count as success."""
    validate_only: bool
    """Checks, and runs nothing."""
    spec: run_pb2.RunSpec
    """A RunSpec of the contract, under the options."""


_KNOWN = frozenset(SpawnOptions.__annotations__)


def _value(enum: Any, prefix: str, option: str, text: str) -> Any:
    try:
        return enum.Value(prefix + text.upper())
    except ValueError:
        words = [name.removeprefix(prefix).lower() for name in list(enum.keys()) if not name.endswith("_UNSPECIFIED")]
        raise ValueError(f"{option}={text!r}: it is one of {', '.join(words)}") from None


class _Builder:
    """A spec, of which each field is set once."""

    def __init__(self, under: run_pb2.RunSpec | None) -> None:
        self.spec = run_pb2.RunSpec()
        self._under = under
        if under is not None:
            self.spec.CopyFrom(under)

    def claim(self, option: str, *path: str) -> Any:
        """Checks that the spec under the options does not have the field, and returns the message that holds it."""
        under: Any = self._under
        here: Any = self.spec
        for index, name in enumerate(path):
            if under is not None:
                field = under.DESCRIPTOR.fields_by_name[name]
                is_set = bool(getattr(under, name)) if field.is_repeated else _is_set(under, field)
                if not is_set:
                    under = None
                elif index == len(path) - 1:
                    raise TypeError(f"{option} and spec.{'.'.join(path)} are both given")
                else:
                    under = getattr(under, name)
            if index < len(path) - 1:
                here = getattr(here, name)
        return here

    def put(self, option: str, value: Any, *path: str) -> None:
        """Sets a field."""
        holder, name = self.claim(option, *path), path[-1]
        field = holder.DESCRIPTOR.fields_by_name[name]
        if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(holder, name).update(value)
        elif field.is_repeated:
            getattr(holder, name).extend(value)
        elif field.message_type is not None:
            getattr(holder, name).CopyFrom(value)
        else:
            setattr(holder, name, value)


def _is_set(message: Any, field: Any) -> bool:
    if field.has_presence:
        return bool(message.HasField(field.name))
    return bool(getattr(message, field.name))


def spawn_request(args: Sequence[str] | str | None, options: SpawnOptions) -> process_service_pb2.SpawnRequest:
    """Makes the request of a Spawn, with a new id unless it has an id or a key."""
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise TypeError(f"unknown option {', '.join(unknown)}")
    under = options.get("spec")
    builder = _Builder(under)
    if options.get("shell"):
        if not isinstance(args, str):
            raise TypeError("with shell=True the command is one text")
        args = ["/bin/sh", "-c", args]
    elif isinstance(args, str):
        raise TypeError("a command is a list of words; with shell=True it is one text")
    if args is not None:
        builder.put("args", run_pb2.Argv(args=[os.fspath(word) for word in args]), "argv")
    _standard_streams(builder, options)
    for option, path in _PLAIN.items():
        if option in options:
            builder.put(option, cast(Any, options)[option], *path)
    for option, path in _DURATIONS.items():
        if option in options:
            builder.put(option, duration(cast(Any, options)[option]), *path)
    for option, (enum, prefix, path) in _ENUMS.items():
        if option in options:
            builder.put(option, _value(enum, prefix, option, cast(Any, options)[option]), *path)
    if options.get("inherit"):
        # The server sets the other ones itself. Bytes that are no UTF-8 have no place in the message.
        known = {name: value for name, value in os.environ.items() if not name.startswith("KENNEL_")}
        known = {name: value for name, value in known.items() if _is_text(name + value)}
        builder.put("inherit", run_pb2.Inherited(vars=known, cwd=os.getcwd()), "inherited")
    if "cwd" in options:
        builder.put("cwd", os.fspath(options["cwd"]), "cwd")
    _policies(builder, options)
    request = process_service_pb2.SpawnRequest(
        spec=builder.spec,
        run_id=options.get("run_id", ""),
        request_key=options.get("request_key", ""),
        validate_only=options.get("validate_only", False),
    )
    if "on_name_conflict" in options:
        request.on_name_conflict = _value(
            process_service_pb2.OnNameConflict, "ON_NAME_CONFLICT_", "on_name_conflict", options["on_name_conflict"]
        )
    if not request.run_id and not request.request_key:
        request.run_id = new_id()
    return request


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_PLAIN: dict[str, tuple[str, ...]] = {
    "env": ("env", "vars"),
    "labels": ("labels",),
    "annotations": ("annotations",),
    "name": ("name",),
    "ready": ("readiness",),
    "rules": ("output_rules",),
    "stop_signal": ("stop", "signal"),
    "stop_steps": ("stop", "steps"),
    "limits": ("limits",),
    "umask": ("umask",),
    "success_exit_codes": ("success_exit_codes",),
}
_DURATIONS: dict[str, tuple[str, ...]] = {
    "timeout": ("timeouts", "max_runtime"),
    "idle": ("timeouts", "inactivity"),
    "grace": ("stop", "grace"),
}
_ENUMS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "env_mode": (run_pb2.EnvMode, "ENV_MODE_", ("env", "mode")),
    "kind": (run_pb2.RunKind, "RUN_KIND_", ("kind",)),
    "recovery": (run_pb2.RecoveryPolicy, "RECOVERY_POLICY_", ("recovery",)),
    "on_leader_exit": (run_pb2.LeaderExitAction, "LEADER_EXIT_ACTION_", ("on_leader_exit", "action")),
    "api_access": (access_pb2.ApiAccess, "API_ACCESS_", ("api_access",)),
}


def _standard_streams(builder: _Builder, options: SpawnOptions) -> None:
    stdin = options.get("stdin", "null")
    if stdin not in ("null", "pipe"):
        raise ValueError(f"stdin={stdin!r}: it is one of null, pipe")
    if "input" in options:
        if stdin == "pipe":
            raise TypeError("input and stdin='pipe' are both given")
        data = options["input"]
        builder.put("input", data.encode() if isinstance(data, str) else data, "initial_input")
    tty = options.get("tty", False)
    if tty is not False:
        if stdin == "pipe":
            raise TypeError("tty and stdin='pipe' are both given")
        if isinstance(tty, tuple):
            terminal = run_pb2.Terminal(rows=tty[0], cols=tty[1])
        else:
            terminal = run_pb2.Terminal() if tty is True else tty
        builder.put("tty", terminal, "terminal")
    elif stdin == "pipe":
        builder.put("stdin", run_pb2.INPUT_MODE_OPEN, "pipes", "input")


def _policies(builder: _Builder, options: SpawnOptions) -> None:
    if "restart" in options:
        restart = options["restart"]
        if isinstance(restart, str):
            mode = _value(run_pb2.RestartMode, "RESTART_MODE_", "restart", restart)
            restart = run_pb2.RestartPolicy(mode=mode)
        builder.put("restart", restart, "restart")
    sandbox = options.get("sandbox", False)
    if sandbox is not False:
        builder.put("sandbox", run_pb2.Sandbox() if sandbox is True else sandbox, "privileges", "sandbox")
    if "user" in options:
        user = options["user"]
        user = run_pb2.RunUser(user_id=user) if isinstance(user, int) else user
        builder.put("user", user, "privileges", "user")
    if "secrets" in options:
        secrets = options["secrets"]
        if isinstance(secrets, Mapping):
            secrets = [
                run_pb2.Secret(name=name, value=value.encode() if isinstance(value, str) else value)
                for name, value in secrets.items()
            ]
        builder.put("secrets", secrets, "secrets")
    if "parent" in options:
        parent = options["parent"]
        builder.put("parent", run_pb2.Parent(run_id=parent) if isinstance(parent, str) else parent, "parent")
    if "output" in options:
        output = options["output"]
        output = run_pb2.OutputPolicy(max_bytes=output) if isinstance(output, int) else output
        builder.put("output", output, "output")
