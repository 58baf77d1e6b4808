"""Spawns a run, reads its events, breaks off, resumes, and aborts: over a unix socket, with generated stubs.

usage: client.py unix:PATH      prints the run's id as its last line
"""

import sys

import grpc
from kennel.v1 import consumer_pb2 as consumer
from kennel.v1 import process_service_pb2 as api
from kennel.v1 import process_service_pb2_grpc as service
from kennel.v1 import run_pb2 as run

LINES = 400
# A call that takes longer than this has failed.
TIMEOUT = 60


def events_of(message):
    """seq and event of everything in one message that is an event of the run."""
    for of_run in message.run_events:
        for event in of_run.events:
            if event.WhichOneof("payload") not in ("snapshot", "heartbeat"):
                yield of_run.base_seq + event.seq_delta, event


def output_of(messages):
    """All output that comes, whatever run it is of."""
    events = (event for message in messages for _, event in events_of(message))
    return b"".join(event.output.data for event in events if event.WhichOneof("payload") == "output")


def positions(kennel, run_id, wanted):
    """From the last lines, by a filter, and in the name of a consumer: of a run that has written all that is wanted."""

    def stream(**words):
        return kennel.StreamEvents(api.StreamEventsRequest(until=api.STREAM_UNTIL_HEAD, **words), timeout=TIMEOUT)

    last = b"".join(wanted.splitlines(keepends=True)[-3:])
    assert output_of(stream(run_id=run_id, tail=api.FromTail(lines=3))) == last
    labelled = api.RunFilter(labels={"client": "python"})
    messages = list(stream(filter=labelled))
    assert output_of(messages) == wanted
    # Behind its cursor nothing comes again.
    cursor = [message.cursor for message in messages if message.cursor][-1]
    assert output_of(stream(filter=labelled, cursor=cursor)) == b""

    # Given, acknowledged in part, and given again from there.
    given = list(stream(run_id=run_id, consumer="python"))
    assert output_of(given) == wanted
    assert output_of(stream(run_id=run_id, consumer="python")) == wanted
    seqs = [seq for message in given for seq, _ in events_of(message)]
    half = seqs[len(seqs) // 2]
    request = consumer.AckEventsRequest(run_id=run_id, consumer="python", seq=half)
    acked = kennel.AckEvents(request, timeout=TIMEOUT).consumer
    assert acked.acked_seq == half, acked
    rest = [seq for message in stream(run_id=run_id, consumer="python") for seq, _ in events_of(message)]
    assert rest == seqs[len(seqs) // 2 + 1 :], rest
    request = consumer.AckEventsRequest(run_id=run_id, consumer="python", cursor=given[-1].cursor)
    kennel.AckEvents(request, timeout=TIMEOUT)
    assert output_of(stream(run_id=run_id, consumer="python")) == b""
    older = consumer.AckEventsRequest(run_id=run_id, consumer="python", seq=1)
    assert kennel.AckEvents(older, timeout=TIMEOUT).consumer.acked_seq == seqs[-1]


def main(address):
    # Without an authority, grpcio sends the socket's path as one, which is not a valid header.
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(address, options=options) as channel:
        kennel = service.ProcessServiceStub(channel)
        script = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done; exec sleep 300"
        spec = run.RunSpec(argv=run.Argv(args=["/bin/sh", "-c", script]), cwd="/", labels={"client": "python"})
        spawned = kennel.Spawn(api.SpawnRequest(spec=spec), timeout=TIMEOUT)
        run_id = spawned.run.run_id
        assert spawned.run.current_attempt.pid > 0, spawned
        wanted = b"".join(b"line %d\n" % i for i in range(LINES))

        # An input that is written twice arrives once.
        pipes = run.Pipes(input=run.INPUT_MODE_OPEN)
        reader = run.RunSpec(argv=run.Argv(args=["/bin/sh", "-c", '[ "$(cat)" = "one two" ]']), cwd="/", pipes=pipes)
        reads = kennel.Spawn(api.SpawnRequest(spec=reader), timeout=TIMEOUT).run.run_id
        for offset, data in ((0, b"one "), (0, b"one "), (4, b"two")):
            written = kennel.WriteInput(
                api.WriteInputRequest(run_id=reads, offset=offset, data=data), timeout=TIMEOUT
            )
            assert written.start_offset == offset, written
        closed = kennel.CloseInput(api.CloseInputRequest(run_id=reads, offset=7), timeout=TIMEOUT)
        assert closed.input.accepted_offset == 7, closed
        waited = kennel.WaitRun(api.WaitRunRequest(run_id=reads), timeout=TIMEOUT)
        assert waited.run.state == run.RUN_STATE_SUCCEEDED, waited

        # Break off after each message that brought something, and go on after the last seq.
        last_seq, output, breaks = 0, b"", 0
        while output != wanted:
            stream = kennel.StreamEvents(
                api.StreamEventsRequest(run_id=run_id, after_seq=last_seq), timeout=TIMEOUT
            )
            before = last_seq
            for message in stream:
                for seq, event in events_of(message):
                    assert seq > last_seq, f"seq {seq} after {last_seq}"
                    last_seq = seq
                    if event.WhichOneof("payload") == "output":
                        assert event.output.offset == len(output), "output goes on where it was"
                        output += event.output.data
                if last_seq > before:
                    break
            stream.cancel()
            breaks += 1
            assert wanted.startswith(output), output[-100:]
        positions(kennel, run_id, wanted)

        try:
            kennel.StreamEvents(api.StreamEventsRequest(run_id=run_id, after_seq=10**9), timeout=TIMEOUT).next()
            raise AssertionError("a position beyond the head was accepted")
        except grpc.RpcError as refused:
            assert refused.code() == grpc.StatusCode.OUT_OF_RANGE, refused

        aborted = kennel.Abort(api.AbortRequest(run_id=run_id), timeout=TIMEOUT).run
        assert aborted.state == run.RUN_STATE_CANCELLED, aborted
        assert aborted.current_attempt.exit.signal.name == "SIGTERM", aborted

        rest = kennel.StreamEvents(api.StreamEventsRequest(run_id=run_id, after_seq=last_seq), timeout=TIMEOUT)
        stations = [
            event.lifecycle.WhichOneof("station")
            for message in rest
            for _, event in events_of(message)
            if event.WhichOneof("payload") == "lifecycle"
        ]
        assert stations[-1] == "ended", stations
        print(f"{breaks} breaks, {len(output)} bytes", file=sys.stderr)
        print(run_id)


if __name__ == "__main__":
    main(sys.argv[1])
