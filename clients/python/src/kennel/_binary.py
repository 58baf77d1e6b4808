"""The binary of a server that belongs to this process, and its private directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

from kennel._reasons import BinaryNotFound, LocalUnsupported, ServiceEnded


def find_binary(given: str | os.PathLike[str] | None) -> str:
    """Returns the path of the binary: the given one, KENNEL_BINARY, or `kennel` in PATH."""
    if sys.platform != "linux":
        raise LocalUnsupported("a local server runs on Linux only: connect to one by KENNEL_SERVER")
    tried: list[str] = []
    for source, name in (("binary=", given), ("KENNEL_BINARY=", os.environ.get("KENNEL_BINARY")), ("PATH: ", "kennel")):
        if not name:
            continue
        found = shutil.which(os.fspath(name))
        if found:
            return found
        tried.append(f"{source}{os.fspath(name)}")
    raise BinaryNotFound(f"there is no binary of kennel; tried {', '.join(tried)}")


class LocalServer:
    """A server in a fresh directory, for the clients of this process alone."""

    def __init__(self, binary: str | os.PathLike[str] | None) -> None:
        self.binary = find_binary(binary)
        """Path of the binary."""
        self.directory = tempfile.mkdtemp(prefix="kennel-local-")
        """Directory of the server: its data, its socket, its log."""
        self._pid = os.getpid()
        env = {name: value for name, value in os.environ.items() if not name.startswith("KENNEL_")}
        self._log_path = os.path.join(self.directory, "log")
        config = os.path.join(self.directory, "kennel.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write("")
        words = [self.binary, "serve", "--config", config, "--data-dir", os.path.join(self.directory, "data")]
        try:
            with open(self._log_path, "wb") as log:
                self._process = subprocess.Popen(
                    [*words, "--listen", self.address],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    start_new_session=True,
                )
        except OSError:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    @property
    def address(self) -> str:
        """Address of the server."""
        return f"unix:{self.directory}/kennel.sock"

    @property
    def pid(self) -> int:
        """Process id of its keeper."""
        return self._process.pid

    def check(self) -> None:
        """Raises ServiceEnded where it has ended."""
        code = self._process.poll()
        if code is not None:
            with open(self._log_path, encoding="utf-8", errors="replace") as file:
                last = file.read()[-2000:]
            raise ServiceEnded(f"{self.binary} serve ended with {code}: {last}")

    def is_gone(self) -> bool:
        """Whether its keeper has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ends it with its runs, and does not wait."""
        if os.getpid() == self._pid and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends its keeper at once."""
        if os.getpid() == self._pid and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        """Removes its directory."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.directory, ignore_errors=True)
