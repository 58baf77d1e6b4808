// A server of this process only: a fresh directory, a process that owns the server, and an end with the client.

import { spawn } from "node:child_process";
import { accessSync, constants, mkdtempSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { KennelError } from "./errors.js";

/** Bytes of the log that are shown. */
const LOG_BYTES = 4096;

/** Settings of a local server. */
export interface LocalOptions {
  /**
   * Path of Kennel's binary. Default: `KENNEL_BINARY`, else `kennel` in PATH, else that of an installed platform
   * package.
   */
  binary?: string;
  /** Directory below which the private one is made. Default: that for temporary files. */
  baseDirectory?: string;
}

/** A server that this process has started. */
export interface LocalServer {
  /** Path of the binary. */
  readonly binary: string;
  /** Process id of the process that owns the server. */
  readonly pid: number;
  /** Private directory with data, socket and log. */
  readonly directory: string;
  /** Path of the socket. */
  readonly socket: string;
  /** Whether this client has started the server. */
  readonly started: true;
  /** Whether the server has ended. */
  readonly hasEnded: boolean;
  /** Adds a listener of the server's end. */
  onEnd(listener: () => void): void;
  /** Last lines of the server's log, once it has ended. */
  readonly log: string;
  /** Ends the server with its runs, and removes the directory. */
  end(): Promise<void>;
}

/**
 * The owner: standard input is a pipe that the kernel closes however this process ends. Then the server ends with all
 * of its
 * runs, and the directory goes.
 */
const OWNER = `
exec 3<&0
"$1" serve --data-dir "$2/data" --listen "unix:$2/s.sock" >"$2/log" 2>&1 </dev/null 3<&- &
server=$!
(cat <&3 >/dev/null; kill -TERM "$server") &
watcher=$!
exec 3<&-
wait "$server"
code=$?
kill "$watcher" 2>/dev/null
tail -n 2 "$2/log"
rm -rf "$2"
exit "$code"
`;

/** Starts a server in a private directory. It may not listen yet. */
export async function startLocal(options: LocalOptions): Promise<LocalServer> {
  if (process.platform !== "linux")
    throw new KennelError("LOCAL_UNSUPPORTED", "a local server needs Linux", { code: "UNIMPLEMENTED" });
  const binary = findBinary(options.binary);
  const directory = mkdtempSync(join(options.baseDirectory ?? tmpdir(), "kennel-"));
  const owner = spawn("/bin/sh", ["-c", OWNER, "kennel-local", binary, directory], {
    // A session of its own: keys of this process's terminal do not reach it.
    detached: true,
    stdio: ["pipe", "pipe", "ignore"],
    cwd: "/",
    env: Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("KENNEL_"))),
  });
  let hasEnded = false;
  const listeners: (() => void)[] = [];
  const ended = new Promise<void>((done) => {
    owner.once("exit", () => done());
    owner.once("error", () => done());
  }).then(() => {
    hasEnded = true;
    for (const listener of listeners) listener();
  });
  owner.stdin.on("error", () => {});
  let log = "";
  owner.stdout.setEncoding("utf8").on("data", (text: string) => {
    log = (log + text).slice(-LOG_BYTES);
  });
  // The process that uses the server ends when its own work does.
  owner.unref();
  for (const pipe of [owner.stdin, owner.stdout]) (pipe as unknown as { unref?: () => void }).unref?.();
  return {
    binary,
    pid: owner.pid ?? 0,
    directory,
    socket: join(directory, "s.sock"),
    started: true,
    get hasEnded() {
      return hasEnded;
    },
    onEnd: (listener) => listeners.push(listener),
    get log() {
      return log.trim();
    },
    async end() {
      owner.ref();
      owner.stdin.end();
      await ended;
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

function findBinary(option: string | undefined): string {
  const tried: string[] = [];
  const isProgram = (path: string) => {
    tried.push(path);
    try {
      accessSync(path, constants.X_OK);
      return statSync(path).isFile();
    } catch {
      return false;
    }
  };
  const named = option ?? (process.env.KENNEL_BINARY || undefined);
  if (named !== undefined) {
    if (isProgram(named)) return named;
  } else {
    for (const directory of (process.env.PATH ?? "").split(delimiter)) {
      if (directory !== "" && isProgram(join(directory, "kennel"))) return join(directory, "kennel");
    }
    const platform = `@kennel/linux-${process.arch}/kennel`;
    try {
      const path = createRequire(import.meta.url).resolve(platform);
      if (isProgram(path)) return path;
    } catch {
      tried.push(platform);
    }
  }
  throw new KennelError("BINARY_NOT_FOUND", `there is no binary of Kennel; tried: ${tried.join(", ")}`, {
    code: "NOT_FOUND",
  });
}
