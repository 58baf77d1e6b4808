"""The package: its rules, its names, its options, and its server of its own."""

import ast
import asyncio
import datetime
import os
import re
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import grpc
import kennel
import kennel.aio
import pytest
from kennel import _binary, _rules, v1
from kennel._error import failure_of
from kennel._internal import status_pb2
from kennel._spec import SpawnOptions, spawn_request
from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider

REPOSITORY = Path(os.environ.get("KENNEL_REPOSITORY") or Path(__file__).resolve().parents[3])


def test_reasons_are_those_of_the_server():
    text = (REPOSITORY / "crates/proto/src/reason.rs").read_text()
    wanted = dict(re.findall(r'\w+ = "([A-Z_]+)", (\w+);', text))
    rules = kennel.errors.BY_REASON
    own = {name for name in rules if name not in wanted}
    assert set(wanted) <= set(rules)
    assert {"SERVER_LOST", "DATA_GAP", "LOCAL_UNSAFE"} <= own
    assert all(rules[name].reason == name and issubclass(rules[name], kennel.KennelError) for name in rules)
    with open(REPOSITORY / "clients/rules.toml", "rb") as file:
        codes = {name: rule["code"].replace("_", "").lower() for name, rule in tomllib.load(file)["reason"].items()}
    assert codes == {name: code.lower() for name, code in wanted.items()}
    assert issubclass(kennel.CommandNotFound, FileNotFoundError)
    assert issubclass(kennel.InputClosed, BrokenPipeError)


def test_live_states_are_all_that_do_not_end():
    ended = {"SUCCEEDED", "FAILED", "CANCELLED", "LOST", "UNSPECIFIED"}
    states = {name.removeprefix("RUN_STATE_") for name in list(v1.RunState.keys())}
    assert {state.removeprefix("RUN_STATE_") for state in _rules.LIVE_STATES} == states - ended


def test_public_names_are_documented():
    package = Path(kennel.__file__).parent
    missing = []
    for path in [*package.glob("*.py"), *package.glob("_aio/*.py"), *package.glob("_sync/*.py")]:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for owner in [tree, *classes]:
            for found in owner.body:
                is_named = isinstance(found, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                if is_named and not found.name.startswith("_") and ast.get_docstring(found) is None:
                    missing.append(f"{path.name}: {found.name}")
    assert not missing


def test_both_forms_have_the_same_names():
    for name in kennel.aio.__all__:
        if name in ("connect", "local"):
            continue
        here = {found for found in dir(getattr(kennel, name)) if not found.startswith("_")}
        there = {found for found in dir(getattr(kennel.aio, name)) if not found.startswith("_")}
        assert there - here <= {"aclose"}
        assert here <= there


def test_options_make_the_spec():
    request = spawn_request(
        ["a", "b"],
        SpawnOptions(
            env={"A": "1"}, env_mode="none", cwd="/x", stdin="pipe", labels={"l": "v"}, name="n", kind="service",
            timeout=1.5, idle=datetime.timedelta(minutes=1), grace=0, stop_signal="SIGINT", restart="always",
            recovery="adopt", on_leader_exit="drain", sandbox=True, user=7, secrets={"S": "s"}, parent="P",
            api_access="children", output=1 << 20, umask=0o77, success_exit_codes=[3], on_name_conflict="return",
        ),
    )
    spec = request.spec
    assert list(spec.argv.args) == ["a", "b"]
    assert dict(spec.env.vars) == {"A": "1"}
    assert spec.env.mode == v1.ENV_MODE_NONE
    assert spec.pipes.input == v1.INPUT_MODE_OPEN
    assert (spec.timeouts.max_runtime.seconds, spec.timeouts.max_runtime.nanos) == (1, 500_000_000)
    assert spec.timeouts.inactivity.seconds == 60
    assert spec.stop.HasField("grace")
    assert spec.restart.mode == v1.RESTART_MODE_ALWAYS
    assert spec.recovery == v1.RECOVERY_POLICY_ADOPT
    assert spec.on_leader_exit.action == v1.LEADER_EXIT_ACTION_DRAIN
    assert spec.privileges.HasField("sandbox")
    assert spec.privileges.user.user_id == 7
    assert spec.secrets[0].value == b"s"
    assert spec.parent.run_id == "P"
    assert spec.api_access == v1.API_ACCESS_CHILDREN
    assert spec.output.max_bytes == 1 << 20
    assert request.on_name_conflict == v1.ON_NAME_CONFLICT_RETURN
    assert len(request.run_id) == 26


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ("a line", {}),
        (["word"], {"shell": True}),
        (["a"], {"nonsense": 1}),
        (["a"], {"env": {"A": "1"}, "spec": v1.RunSpec(env=v1.Env(vars={"B": "2"}))}),
        (["a"], {"timeout": 1, "spec": v1.RunSpec(timeouts=v1.Timeouts(max_runtime={"seconds": 1}))}),
        (["a"], {"spec": v1.RunSpec(argv=v1.Argv(args=["b"]))}),
        (["a"], {"stdin": "pipe", "input": b"x"}),
        (["a"], {"stdin": "pipe", "tty": True}),
    ],
)
def test_contradictions_are_type_errors(args, options):
    with pytest.raises(TypeError):
        spawn_request(args, options)


def test_inherit_takes_environment_and_directory_of_this_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KENNEL_SERVER", "unix:/elsewhere")
    monkeypatch.setenv("OWN", "1")
    inherited = spawn_request(["a"], {"inherit": True}).spec.inherited
    assert (inherited.vars["OWN"], inherited.cwd) == ("1", str(tmp_path))
    assert not [name for name in inherited.vars if name.startswith("KENNEL_")]
    assert not spawn_request(["a"], {}).spec.HasField("inherited")


def test_options_and_spec_complete_each_other():
    under = v1.RunSpec(timeouts=v1.Timeouts(inactivity={"seconds": 5}), umask=7)
    spec = spawn_request(["a"], {"timeout": 1, "spec": under}).spec
    assert (spec.timeouts.max_runtime.seconds, spec.timeouts.inactivity.seconds, spec.umask) == (1, 5, 7)
    assert not under.timeouts.HasField("max_runtime")


@pytest.mark.parametrize(
    "options", [{"kind": "nonsense"}, {"env_mode": "all"}, {"stdin": "open"}, {"restart": "sometimes"}]
)
def test_unknown_words_are_value_errors(options):
    with pytest.raises(ValueError, match="it is one of"):
        spawn_request(["a"], options)


def test_fence_counts_as_ended(client):
    run_id = spawn_request(["true"], {}).run_id
    client.raw.call(kennel.calls.Abort, v1.AbortRequest(run_id=run_id))
    fenced = client.get(run_id)
    assert fenced.end_reason == "fenced"
    with pytest.raises(kennel.ExitUnknown):
        _ = fenced.returncode
    assert list(fenced.lines()) == []


def test_events_have_aware_times(client):
    run = client.spawn(["true"])
    events = list(run.events())
    assert events[0].kind == "snapshot"
    assert events[-1].kind == "ended"
    ended = events[-1].time
    assert ended is not None
    assert ended.tzinfo is datetime.UTC
    assert abs(ended.timestamp() - time.time()) < 3600


def test_saved_cursor_continues(client):
    run = client.spawn(["sh", "-c", "seq 5000"])
    with run.lines() as lines:
        first = [next(lines).text for _ in range(10)]
        cursor = lines.cursor
    rest = [line.text for line in run.lines(cursor=cursor)]
    assert first + rest[len(first) + len(rest) - 5000 :] == [str(number) for number in range(1, 5001)]


def test_json_lines_are_parsed_from_text(client):
    run = client.spawn(["sh", "-c", """echo '{"n": 9007199254740993}'; echo no; echo '[1]'"""])
    assert list(run.json_lines()) == [{"n": 9007199254740993}, [1]]


def test_check_raises_with_output(client):
    with pytest.raises(subprocess.CalledProcessError) as raised:
        client.run(["sh", "-c", "echo out; exit 3"], check=True)
    assert (raised.value.returncode, raised.value.stdout) == (3, b"out\n")


def test_communicate_feeds_and_reads(client):
    data = os.urandom(300_000)
    run = client.spawn(["sh", "-c", "cat; echo err >&2"], stdin="pipe")
    assert run.communicate(data) == (data, b"err\n")
    assert client.run(["sha256sum"], input=os.urandom(3 << 20)).returncode == 0


def test_many_runs_are_read_in_one_stream(client):
    runs = [client.spawn(["sh", "-c", f"seq {n}"], labels={"of": "stream"}) for n in range(1, 6)]
    found = {}
    with client.events("of=stream", kinds=["stdout"], follow=False) as events:
        for run in runs:
            run.wait()
        for event in events:
            found[event.run_id] = found.get(event.run_id, b"") + event.data
    wanted = {run.id: "".join(f"{i}\n" for i in range(1, n + 1)).encode() for n, run in enumerate(runs, 1)}
    assert found == wanted


def test_active_span_is_the_parent_of_a_spawn(server):
    tracer = TracerProvider().get_tracer("caller")

    def metadata():
        found = {}
        propagate.inject(found)
        return found

    with (
        kennel.connect(server=server.address, metadata=metadata) as client,
        tracer.start_as_current_span("a step of the caller") as span,
    ):
        printed = client.run(["sh", "-c", "echo $TRACEPARENT"]).text
    assert printed.split("-")[1] == format(span.get_span_context().trace_id, "032x")


def test_on_behalf_and_node_share_connections(client):
    at = client.at("no-such-node")
    with pytest.raises(kennel.NodeNotFound):
        at.find()
    at.close()
    assert client.run(["true"]).returncode == 0


def test_local_server_ends_with_its_runs():
    with kennel.local() as client:
        directory, pid = client.local.directory, client.local.pid
        run = client.spawn(["sh", "-c", "exec sleep 600"])
        command = run.pid
        assert Path(directory).stat().st_mode & 0o777 == 0o700
    assert not Path(directory).exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{command}").exists()


def test_local_server_that_died_is_not_waited_for():
    with kennel.local(patience=3600) as client:
        run = client.spawn(["sleep", "600"])
        os.kill(client.local.pid, signal.SIGKILL)
        with pytest.raises(kennel.ServiceEnded):
            run.wait()
        with pytest.raises(kennel.ServiceEnded):
            client.find()


def test_local_without_binary_says_what_was_tried(monkeypatch):
    monkeypatch.setenv("KENNEL_BINARY", "/no/such/kennel")
    monkeypatch.setenv("PATH", "/no/such")
    with pytest.raises(kennel.BinaryNotFound, match="/no/such/kennel"):
        kennel.local()


def test_local_finds_the_platform_package(monkeypatch, tmp_path):
    (tmp_path / "kennel_bin.py").write_text("def path():\n    return '/the/wheel/kennel'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("KENNEL_BINARY", raising=False)
    monkeypatch.setenv("PATH", "/no/such")
    assert _binary.find_binary(None) == "/the/wheel/kennel"


def test_local_server_for_asyncio():
    async def main():
        async with await kennel.aio.local() as client:
            return (await client.run(["echo", "hi"])).stdout

    assert asyncio.run(main()) == b"hi\n"


def test_fixtures_of_the_plugin(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "ID = []\n"
        "def test_one(kennel):\n    ID.append(kennel.spawn(['sleep', '600']).id)\n"
        "def test_two(kennel):\n    assert not kennel.get(ID[0]).is_live\n"
    )
    import sys

    done = subprocess.run([sys.executable, "-m", "pytest", "-q", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


class Status(grpc.RpcError):
    """A status, as a call has it."""

    def __init__(self, code, details, reason=None, domain="kennel.v1", raw=None):
        self._code, self._details = code, details
        status = status_pb2.Status(code=code.value[0], message=details)
        if reason is not None:
            info = status_pb2.ErrorInfo(reason=reason, domain=domain, metadata={"k": "v"})
            status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
        self._metadata = (("other", "x"), ("grpc-status-details-bin", raw or status.SerializeToString()))

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._metadata


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def test_unknown_reason_stays_text():
    error = failure_of(Status(grpc.StatusCode.FAILED_PRECONDITION, "why", "OF_A_LATER_VERSION")).error("RUN")
    assert type(error) is kennel.KennelError
    assert (error.reason, error.code, error.run_id) == ("OF_A_LATER_VERSION", "FAILED_PRECONDITION", "RUN")
    assert error.metadata == {"k": "v"}
    assert str(error) == "OF_A_LATER_VERSION: why"


@pytest.mark.parametrize(
    ("status", "is_lost"),
    [
        (Status(UNAVAILABLE, "connection reset"), True),
        (Status(UNAVAILABLE, "502", "PROXY", domain="proxy.example"), True),
        (Status(grpc.StatusCode.DEADLINE_EXCEEDED, "of a proxy"), True),
        (Status(grpc.StatusCode.INTERNAL, "stream removed", raw=b"\xff\xff"), True),
        (Status(UNAVAILABLE, "drains", "NODE_DRAINING"), False),
        (Status(grpc.StatusCode.INTERNAL, "a fault", "INTERNAL"), False),
        (Status(grpc.StatusCode.PERMISSION_DENIED, "no"), False),
    ],
)
def test_call_is_lost_without_reason_of_server(status, is_lost):
    assert failure_of(status).is_lost is is_lost


def test_draining_node_is_asked_again_except_for_a_spawn():
    failure = failure_of(Status(UNAVAILABLE, "drains", "NODE_DRAINING"))
    assert failure.not_now(is_spawn=False, is_stream=False)
    assert not failure.not_now(is_spawn=True, is_stream=False)
    assert failure.error().is_retryable
