"""The binary of a server that belongs to this process, and its private directory."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile

from kennel._reasons import BinaryNotFound, LocalUnsupported, ServiceEnded


def find_binary(given: str | os.PathLike[str] | None) -> str:
    """Returns the path of the binary: the given one, KENNEL_BINARY, `kennel` in PATH, or that of the wheel."""
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
    # An environment that is not activated is not in PATH.
    try:
        return str(importlib.import_module("kennel_bin").path())
    except ImportError:
        tried.append("the wheel kennel-bin")
    raise BinaryNotFound(f"there is no binary of kennel; tried {', '.join(tried)}")


# The server ends when its input does: when it is closed here, and when this process dies, however that happens.
_OWNER = """
exec 3<&0
"$1" serve --config "$2/kennel.toml" --data-dir "$2/data" --listen "unix:$2/kennel.sock" \\
    >"$2/log" 2>&1 </dev/null 3<&- &
server=$!
echo "$server"
(cat <&3 >/dev/null; kill -TERM "$server" 2>/dev/null) >/dev/null &
watcher=$!
exec 3<&-
wait "$server"
code=$?
kill "$watcher" 2>/dev/null
tail -n 3 "$2/log"
rm -rf "$2"
exit "$code"
"""


class LocalServer:
    """A server in a fresh directory, for the clients of this process alone. It ends with this process."""

    def __init__(self, binary: str | os.PathLike[str] | None) -> None:
        self.binary = find_binary(binary)
        """Path of the binary."""
        self.directory = tempfile.mkdtemp(prefix="kennel-local-")
        """Directory of the server: its data, its socket, its log."""
        self._own = os.getpid()
        env = {name: value for name, value in os.environ.items() if not name.startswith("KENNEL_")}
        try:
            with open(os.path.join(self.directory, "kennel.toml"), "w", encoding="utf-8"):
                pass
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _OWNER, "kennel-local", self.binary, self.directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            self.pid = int(self._process.stdout.readline())
            """Process id of its keeper."""
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    @property
    def address(self) -> str:
        """Address of the server."""
        return f"unix:{self.directory}/kennel.sock"

    def check(self) -> None:
        """Raises ServiceEnded where it has ended."""
        code = self._process.poll()
        if code is not None:
            last = self._process.stdout.read() if self._process.stdout is not None else b""
            raise ServiceEnded(f"{self.binary} serve ended with {code}: {last.decode(errors='replace').strip()}")

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ends it with its runs, and does not wait."""
        if os.getpid() == self._own and self._process.stdin is not None:
            self._process.stdin.close()

    def remove(self) -> None:
        """Ends what is left of it, and removes its directory."""
        if os.getpid() != self._own:
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)
