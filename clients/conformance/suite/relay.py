"""A unix socket before the server's, whose connections a case can cut, hold, or end when an answer has come."""

import os
import socket
import threading

PIECE = 65536
PREFACE = 24
HEADERS, CONTINUATION = 1, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20


class Frames:
    """Frames of HTTP/2 in a stream of bytes: type, flags and stream of each, and the payload of those with headers."""

    def __init__(self, skip):
        self.skip, self.data, self.rest = skip, b"", 0

    def feed(self, data):
        while data:
            if self.skip:
                taken = min(self.skip, len(data))
                self.skip -= taken
                data = data[taken:]
                continue
            wanted = 9 - len(self.data) if len(self.data) < 9 else self.rest
            self.data += data[:wanted]
            taken = min(wanted, len(data))
            data = data[taken:]
            if len(self.data) < 9:
                continue
            length, kind, flags = int.from_bytes(self.data[:3], "big"), self.data[3], self.data[4]
            stream = int.from_bytes(self.data[5:9], "big") & 0x7FFFFFFF
            self.rest = 9 + length - len(self.data)
            if kind in (HEADERS, CONTINUATION) and self.rest:
                continue
            payload, self.data = self.data[9:], b""
            self.skip, self.rest = (0 if kind in (HEADERS, CONTINUATION) else length), 0
            yield kind, flags, stream, payload


class Paths:
    """Paths of requests, from their headers."""

    def __init__(self):
        from hpack import Decoder

        self.decoder, self.block = Decoder(), b""

    def feed(self, kind, flags, payload):
        """Returns the path where a block of headers is whole."""
        if kind == HEADERS:
            pad = payload[0] if flags & PADDED else 0
            begin = (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0)
            self.block = payload[begin : len(payload) - pad]
        else:
            self.block += payload
        if not flags & END_HEADERS:
            return None
        return dict(self.decoder.decode(self.block)).get(":path")


class Connection:
    """A connection of a client, and the one to the server."""

    def __init__(self, relay, client):
        self.relay, self.client = relay, client
        self.server = socket.socket(socket.AF_UNIX)
        self.lost_stream = None
        self.lock = threading.Lock()
        self.is_over = False

    def run(self):
        try:
            self.server.connect(self.relay.to)
        except OSError:
            self.end()
            return
        threading.Thread(target=self.pass_up, daemon=True).start()
        self.pass_down()

    def pass_up(self):
        frames, paths = Frames(PREFACE), Paths()
        try:
            while data := self.client.recv(PIECE):
                self.relay.passes.wait()
                for kind, flags, stream, payload in frames.feed(data):
                    if kind in (HEADERS, CONTINUATION):
                        path = paths.feed(kind, flags, payload)
                        if path and self.relay.is_lost(path):
                            with self.lock:
                                self.lost_stream = stream
                self.server.sendall(data)
        except OSError:
            pass
        self.end()

    def pass_down(self):
        frames = Frames(0)
        try:
            while data := self.server.recv(PIECE):
                self.relay.passes.wait()
                found = list(frames.feed(data))
                with self.lock:
                    lost = self.lost_stream
                if lost is not None:
                    if any(kind in (HEADERS, 0) and flags & END_STREAM and at == lost for kind, flags, at, _ in found):
                        break
                    continue
                self.client.sendall(data)
        except OSError:
            pass
        self.end()

    def end(self):
        with self.lock:
            if self.is_over:
                return
            self.is_over = True
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self.relay.forget(self)


class Relay:
    """Passes bytes between the clients of its socket and a server."""

    def __init__(self, at, to):
        self.at, self.to = str(at), str(to)
        self.passes = threading.Event()
        self.passes.set()
        self.lock = threading.Lock()
        self.connections = set()
        self.armed = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.at)
        self.listener.listen(128)
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def address(self):
        return f"unix:{self.at}"

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            connection = Connection(self, client)
            with self.lock:
                self.connections.add(connection)
            threading.Thread(target=connection.run, daemon=True).start()

    def forget(self, connection):
        with self.lock:
            self.connections.discard(connection)

    def cut(self):
        """Ends all connections."""
        with self.lock:
            found = list(self.connections)
        for connection in found:
            connection.end()

    def cut_after_request(self, rpc):
        """The answer to the next request of an rpc is lost, with its connection."""
        with self.lock:
            self.armed.append(rpc)

    def is_lost(self, path):
        """Whether the answer to this request is to be lost."""
        rpc = path.rpartition("/")[2]
        with self.lock:
            if rpc not in self.armed:
                return False
            self.armed.remove(rpc)
            return True

    def hold(self):
        self.passes.clear()

    def release(self):
        self.passes.set()

    def close(self):
        self.release()
        self.listener.close()
        self.cut()
        if os.path.exists(self.at):
            os.unlink(self.at)
