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
