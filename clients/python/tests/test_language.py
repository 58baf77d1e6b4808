"""What only Python has: forks, threads, event loops, garbage, and the end of the interpreter."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import kennel
import kennel.aio
import pytest


def fork(function):
    """Runs a function in a forked child, and returns the child's exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fork_opens_own_channel(client):
    run = client.spawn(["sh", "-c", "echo up; exec sleep 600"])

    def child():
        return client.run(["sh", "-c", "exit 7"]).returncode

    assert fork(child) == 7
    assert run.refresh().is_live
    assert client.run(["true"]).returncode == 0


def test_open_stream_is_refused_in_fork(client):
    run = client.spawn(["sh", "-c", "echo up; exec sleep 600"])
    assert run.stdout.read(3) == b"up\n"

    def child():
        try:
            run.stdout.read(1)
        except kennel.Forked:
            return 0
        return 1

    assert fork(child) == 0


def test_client_is_shared_by_threads(client):
    codes = [None] * 32

    def work(index):
        codes[index] = client.run(["sh", "-c", f"exit {index}"]).returncode

    threads = [threading.Thread(target=work, args=(index,)) for index in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == list(range(32))


def test_close_during_calls_of_threads_is_closed(server):
    client = kennel.connect(server=server.address)
    ends = []

    def work():
        try:
            while True:
                client.info()
        except BaseException as error:
            ends.append(type(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    client.find()
    client.close()
    for thread in threads:
        thread.join()
    assert ends == [kennel.Closed] * 8


def test_listener_may_use_client():
    with kennel.local() as client:
        found = []
        client.on("lost", lambda: found.append("lost"))
        client.on("lost", lambda: 1 // 0)
        client.on("resumed", lambda: found.append(client.run(["echo", "hi"]).stdout))
        run = client.spawn(["sh", "-c", "echo up; exec sleep 600"], grace=0)
        assert run.stdout.readline() == b"up\n"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            os.kill(server_of(client.local.pid), signal.SIGKILL)
            reads = threading.Thread(target=run.stdout.read)
            reads.start()
            until = time.monotonic() + 60
            while len(found) < 2:
                assert time.monotonic() < until, found
                time.sleep(0.02)
            run.abort()
            reads.join()
        assert found[:2] == ["lost", b"hi\n"]
        assert any("ZeroDivisionError" in str(warning.message) for warning in caught)


def server_of(keeper):
    """Returns the process of the API server below a keeper."""
    children = subprocess.run(["pgrep", "-P", str(keeper)], capture_output=True, text=True, check=True).stdout.split()
    for child in children:
        with open(f"/proc/{child}/cmdline", "rb") as file:
            if file.read().split(b"\0")[1:2] == [b"server"]:
                return int(child)
    raise AssertionError("there is no server")


def test_client_belongs_to_its_loop(server):
    client = asyncio.run(kennel.aio.connect(server=server.address))

    async def use():
        await client.info()

    asyncio.run(use())
    with pytest.raises(kennel.Closed):
        asyncio.run(use())


def test_other_running_loop_is_refused(server):
    async def main():
        client = await kennel.aio.connect(server=server.address)
        await client.info()

        def elsewhere():
            with pytest.raises(kennel.WrongLoop):
                asyncio.run(client.info())

        await asyncio.to_thread(elsewhere)
        await client.close()

    asyncio.run(main())


def test_no_task_outlives_close(server):
    async def main():
        before = asyncio.all_tasks()
        client = await kennel.aio.connect(server=server.address)
        run = await client.spawn(["sleep", "600"])
        waits = asyncio.create_task(run.wait())
        reads = asyncio.create_task(run.stdout.read())
        await run.refresh()
        await client.close()
        for task in (waits, reads):
            with pytest.raises(kennel.Closed):
                await task
        # A task of the transport may need some turns to see its call's end.
        for _ in range(1000):
            if asyncio.all_tasks() == before:
                break
            await asyncio.sleep(0.005)
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_cancelled_read_loses_nothing(server):
    async def main():
        async with await kennel.aio.connect(server=server.address) as client:
            run = await client.spawn(["sh", "-c", "for i in 1 2 3 4 5 6; do sleep 0.05; echo $i; done"])
            found = b""
            while True:
                try:
                    piece = await asyncio.wait_for(run.stdout.read(64), 0.01)
                except TimeoutError:
                    continue
                if not piece:
                    break
                found += piece
            assert found == b"1\n2\n3\n4\n5\n6\n"

    asyncio.run(main())


def test_collected_handle_ends_nothing(client):
    run_id = client.spawn(["sleep", "600"]).id
    reader = client.get(run_id).stdout
    del reader
    gc.collect()
    assert client.get(run_id).is_live


def test_iterator_left_early_closes_its_stream(client):
    run = client.spawn(["sh", "-c", "seq 100; exec sleep 600"])
    for line in run.lines():
        assert line.text == "1"
        break
    gc.collect()
    assert client.stats.open_streams == 0


def program(server, text):
    """Runs a program to its end."""
    text = f"import kennel, kennel.aio, asyncio, os\nADDRESS = {server.address!r}\n" + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)


def test_interpreter_exits_with_open_streams(server):
    done = program(
        server,
        """
        client = kennel.connect(server=ADDRESS)
        run = client.spawn(["sh", "-c", "echo up; exec sleep 600"])
        print(run.stdout.read(3), run.id)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    run_id = done.stdout.split()[-1]
    with kennel.connect(server=server.address) as client:
        run = client.get(run_id)
        assert run.is_live
        run.abort(grace=0)


def test_interrupted_wait_leaves_run(server):
    text = f"import kennel\nADDRESS = {server.address!r}\n" + textwrap.dedent(
        """
        client = kennel.connect(server=ADDRESS)
        run = client.spawn(["sleep", "600"])
        try:
            print(run.id, flush=True)
            run.wait()
        except KeyboardInterrupt:
            print(run.refresh().is_live, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    run_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "True\n"
    with kennel.connect(server=server.address) as client:
        client.get(run_id).abort(grace=0)


def test_local_server_ends_with_killed_process():
    text = textwrap.dedent(
        """
        import os, kennel
        client = kennel.local()
        run = client.spawn(["sleep", "600"])
        print(client.local.pid, run.pid, client.local.directory, flush=True)
        os.kill(os.getpid(), 9)
        """
    )
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    keeper, command, directory = done.stdout.split()
    for path in (f"/proc/{keeper}", f"/proc/{command}", directory):
        until = time.monotonic() + 60
        while os.path.exists(path):
            assert time.monotonic() < until, f"{path} is left"
            time.sleep(0.02)


def test_plugin_loads_grpc_lazily():
    text = "import sys, kennel_pytest; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


def test_grpc_logs_nothing(server, tmp_path):
    done = program(
        server,
        f"""
        try:
            kennel.connect(server="tcp://127.0.0.1:1", ca_file="{tmp_path}/none", token="t")
        except kennel.Configuration as error:
            print(error)
        assert "GRPC_VERBOSITY" not in os.environ
        """,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
