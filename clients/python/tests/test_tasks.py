"""Six everyday tasks, as a user writes them: each is run, and all together have at most 40 lines."""

import inspect
import sys

import kennel


def run_and_stream(client):
    with client.spawn(["sh", "-c", "echo out; echo err >&2; exit 3"]) as run:
        for line in run.lines():
            print(line.text, file=sys.stderr if line.stream == "stderr" else sys.stdout)
        return run.wait()


def read_all(client):
    run = client.spawn(["sh", "-c", "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done"])
    return run.stdout.read().splitlines()


def end_tree(client):
    run = client.spawn(["sh", "-c", "trap '' TERM; sleep 100 & setsid sleep 100 & wait; sleep 100"])
    return run.abort(grace=0.2)


def be_ready(client, port):
    command = ["python3", "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with client.spawn(command, ready=kennel.ready.http(port)) as run:
        return run.ready(timeout=20).ready_by


def annotate_and_find(client):
    with client.spawn(["sleep", "60"], labels={"app": "notebook"}) as run:
        run.annotate({"port": "8888"})
        return client.find("app=notebook")[0].annotations["port"]


def type_on_terminal(client):
    run, terminal = client.pty(["sh"], size=(24, 80))
    with run, terminal:
        terminal.sendline("echo $((6*7))")
        terminal.expect("42")
        terminal.resize(40, 120)
        terminal.sendline("stty size")
        terminal.expect("40 120")
        terminal.sendline("exit 5")
        return run.wait()


TASKS = (run_and_stream, read_all, end_tree, be_ready, annotate_and_find, type_on_terminal)


def test_output_is_streamed(client, capsys):
    assert run_and_stream(client) == 3
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("out\n", "err\n")


def test_output_is_read_whole(client):
    assert read_all(client) == [b"line %d" % i for i in range(100)]


def test_tree_is_ended_with_proof(client):
    stopped = end_tree(client)
    assert (stopped.state, stopped.verdict) == ("CANCELLED", "empty")
    assert stopped.proof is not None


def test_readiness_is_awaited(client):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert be_ready(client, port) == "http"


def test_annotations_are_found(client):
    assert annotate_and_find(client) == "8888"


def test_terminal_is_typed_on(client):
    assert type_on_terminal(client) == 5


def test_tasks_are_short():
    lines = [line for task in TASKS for line in inspect.getsource(task).splitlines()]
    assert len(lines) <= 40
