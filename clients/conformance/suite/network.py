"""What cases on the network need: an authority, certificates, tokens, and servers that are none of Kennel's."""

import os
import socket
import subprocess
import sys
import time


class Network:
    """Certificates and tokens for a server that listens on a port of this host."""

    def __init__(self, binary, directory, host):
        self.binary, self.host = binary, host
        self.certs, self.other = directory / "certs", directory / "other"
        self.access = directory / "access.toml"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as found:
            found.bind((host, 0))
            self.port = found.getsockname()[1]
        for place in (self.certs, self.other):
            self.make("init", place)
        self.add("server", self.certs, host, "localhost")
        self.add("client", self.certs, "alice", "--role", "operator")
        self.add("token", self.certs, "ci", "--role", "operator", "--days", "90")

    @property
    def tcp(self):
        return f"tcp://{self.place}:{self.port}"

    @property
    def place(self):
        return f"[{self.host}]" if ":" in self.host else self.host

    def words(self):
        return ["--listen", f"tcp:{self.place}:{self.port}", "--access", str(self.access)]

    def make(self, *words):
        """Runs `kennel certs`, and returns what it prints."""
        return subprocess.run([self.binary, "certs", *words], check=True, capture_output=True, text=True).stdout

    def add(self, *words):
        with open(self.access, "a", encoding="utf-8") as file:
            file.write(self.make(*words))

    def rotate_token(self):
        """Makes another token in the same file; the access file takes both."""
        printed = self.make("token", self.certs, "ci", "--role", "operator", "--days", "90", "--force")
        entry = printed.split("[[principal]]")[0]
        with open(self.access, "a", encoding="utf-8") as file:
            file.write(entry)


def wait_for(path, process):
    """Waits until a process listens on a socket."""
    until = time.monotonic() + 30
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
                return process
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"nothing listens at {path}") from None
        time.sleep(0.01)


LISTEN = """
import socket, sys
found = socket.socket(socket.AF_UNIX)
found.bind(sys.argv[1])
found.listen(8)
while True:
    found.accept()
"""

OTHER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
server = grpc.server(ThreadPoolExecutor(2))
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
server.wait_for_termination()
"""


VERSIONED = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc

def message(*fields):
    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            made += varint(number << 3 | 2) + varint(len(value)) + value
    return made

def varint(value):
    made = b""
    while value > 127:
        made += bytes([value & 127 | 128])
        value >>= 7
    return made + bytes([value])

RUN = "01J00000000000000000000000"
# A state and an activity that no client knows.
run = message((1, RUN), (7, 99), (33, 99))
# An event of an unknown kind, a lifecycle event of an unknown kind, output, and the end.
events = [
    message((1, 0), (99, b"")),
    message((1, 1), (3, message((99, b"")))),
    message((1, 2), (4, message((1, 1), (2, b"known")))),
    message((1, 3), (3, message((9, b"")))),
]
stream = message((1, message((1, RUN), (2, 1), (3, 1), *((5, event) for event in events))))
answers = {
    "GetServerInfo": message((1, message((1, "9.0.0"), (24, 9)))),
    "GetRun": message((1, run)),
}

class Service(grpc.GenericRpcHandler):
    def service(self, details):
        name = details.method.rpartition("/")[2]
        def refuse(request, context):
            context.set_trailing_metadata((("kennel-level", level), ("grpc-status-details-bin", refusal)))
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no method " + name)
        def answer(request, context):
            context.send_initial_metadata((("kennel-level", level),))
            return answers[name]
        if level == "9" and name == "StreamEvents":
            return grpc.unary_stream_rpc_method_handler(lambda request, context: iter([stream]))
        return grpc.unary_unary_rpc_method_handler(answer if level == "9" and name in answers else refuse)

level = sys.argv[2]
info = message((1, "UNIMPLEMENTED"), (2, "kennel.v1"))
detail = message((1, "type.googleapis.com/google.rpc.ErrorInfo"), (2, info))
refusal = message((1, 12), (3, detail))
server = grpc.server(ThreadPoolExecutor(4), handlers=[Service()])
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
server.wait_for_termination()
"""


def listen_as(user, path):
    """Starts a process of another user that listens on a socket."""
    os.chmod(path.parent, 0o777)
    command = [sys.executable, "-c", LISTEN, str(path)]
    python = os.path.realpath("/usr/bin/python3")
    if os.path.exists(python):
        command[0] = python
    return wait_for(path, subprocess.Popen(command, user=user, group=user, extra_groups=[]))


def other_service(path):
    """Starts a gRPC server that has no services."""
    return wait_for(path, subprocess.Popen([sys.executable, "-c", OTHER, str(path)]))


def versioned_service(path, level):
    """Starts a server of another level of the contract: 0 has none of the methods, 9 answers what no client knows."""
    return wait_for(path, subprocess.Popen([sys.executable, "-c", VERSIONED, str(path), str(level)]))
