// A server for tests, its faults, and a relay before it.

import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Kennel } from "@kennel/client";

/** Path of the binary that is tested. */
export const BINARY = process.env.KENNEL_BINARY ?? "kennel";
/** Time in which a condition must be met: a bound for faults, which no test comes near to. */
const PATIENCE = 60_000;

/** Waits until a function returns something. */
export async function eventually(what, look) {
  const until = Date.now() + PATIENCE;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > until) throw new Error(`not in time: ${what}`);
    await sleep(10);
  }
}

/** Keepers that are still there: they end with this process, however a test ends. */
const keepers = new Set();
process.once("exit", () => {
  for (const keeper of keepers) keeper.kill("SIGTERM");
});
process.once("SIGTERM", () => process.exit(1));

/** A service of its own for one test. */
export class Service {
  dir = mkdtempSync(join(tmpdir(), "kennel-test-"));
  socket = join(this.dir, "s.sock");
  #clients = [];
  #relays = [];

  static async start(...args) {
    const service = new Service();
    service.args = args;
    await service.startKeeper();
    return service;
  }

  async startKeeper() {
    const args = ["serve", "--data-dir", join(this.dir, "data"), "--listen", `unix:${this.socket}`, ...this.args];
    const env = { PATH: process.env.PATH, HOME: this.dir };
    this.keeper = spawn(BINARY, args, { stdio: ["ignore", "ignore", "pipe"], env });
    keepers.add(this.keeper);
    this.keeper.once("exit", (_) => keepers.delete(this.keeper));
    this.log = "";
    this.keeper.stderr.on("data", (text) => {
      this.log = (this.log + text).slice(-20_000);
    });
    await eventually(`a server: ${this.log}`, () => canConnect(this.socket));
  }

  /** Returns a client, closed with the service. */
  async client(options = {}) {
    const client = await Kennel.connect({ server: `unix:${this.socket}`, ...options });
    this.#clients.push(client);
    return client;
  }

  /** Process id of the server; the keeper starts the next one. */
  get serverPid() {
    const { pid } = this.keeper;
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim().split(" ").filter(Boolean);
    return children.map(Number).find((child) => commandOf(child)[1] === "server");
  }

  /** Kills the server by SIGKILL, and waits until another one runs. */
  async killServer() {
    const pid = await eventually("a server", () => this.serverPid);
    process.kill(pid, "SIGKILL");
    await eventually("another server", () => this.serverPid && this.serverPid !== pid);
  }

  /** Makes a relay before the server. */
  async relay() {
    const relay = new Relay(this.socket, join(this.dir, `relay${this.#relays.length}.sock`));
    this.#relays.push(relay);
    await relay.listening;
    return relay;
  }

  /** Path of a file of the test. */
  file(name) {
    return join(this.dir, name);
  }

  /** Ends everything. */
  async end() {
    for (const client of this.#clients) await client.close();
    for (const relay of this.#relays) relay.end();
    if (this.keeper.exitCode === null && this.keeper.signalCode === null) {
      const ended = new Promise((done) => this.keeper.once("exit", done));
      this.keeper.kill("SIGTERM");
      await ended;
    }
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** Forwards connections, and loses answers. */
export class Relay {
  #sockets = new Set();
  #armed;
  #held;
  #holding;

  constructor(to, path) {
    this.path = path;
    this.server = createServer((client) => this.#forward(client, connect(to)));
    this.listening = new Promise((done) => this.server.listen(path, done));
  }

  #forward(client, server) {
    for (const [one, other] of [
      [client, server],
      [server, client],
    ]) {
      this.#sockets.add(one);
      one.on("error", () => {});
      one.on("close", () => {
        this.#sockets.delete(one);
        other.destroy();
      });
    }
    let rest = Buffer.alloc(0);
    client.on("data", (data) => server.write(data));
    client.on("end", () => server.end());
    server.on("data", async (data) => {
      rest = Buffer.concat([rest, data]);
      if (this.#armed && hasHeaders(rest)) {
        const armed = this.#armed;
        this.#armed = undefined;
        client.destroy();
        server.destroy();
        armed();
        return;
      }
      rest = restOfFrames(rest);
      if (this.#held) {
        this.#holding?.();
        await this.#held;
      }
      client.write(data);
    });
    server.on("end", () => client.end());
  }

  /** The next answer is lost with its connection. Resolves when that has happened. */
  loseAnswer() {
    return new Promise((done) => {
      this.#armed = done;
    });
  }

  /** Holds what the server sends. Returns a promise of the first held bytes, and a function that lets them go. */
  hold() {
    let release;
    this.#held = new Promise((done) => {
      release = done;
    });
    const held = new Promise((done) => {
      this.#holding = done;
    });
    return {
      held,
      release: () => {
        this.#held = undefined;
        this.#holding = undefined;
        release();
      },
    };
  }

  /** Ends all connections. */
  cut() {
    for (const socket of this.#sockets) socket.destroy();
  }

  end() {
    this.cut();
    this.server.close();
  }
}

/** Says whether bytes of whole and partial HTTP/2 frames have a frame HEADERS: the beginning of an answer. */
function hasHeaders(bytes) {
  for (let at = 0; at + 9 <= bytes.length; at += 9 + bytes.readUIntBE(at, 3)) if (bytes[at + 3] === 1) return true;
  return false;
}

/** Returns the frame that is not whole yet. */
function restOfFrames(bytes) {
  let at = 0;
  while (at + 9 <= bytes.length && at + 9 + bytes.readUIntBE(at, 3) <= bytes.length) at += 9 + bytes.readUIntBE(at, 3);
  return bytes.subarray(at);
}

function commandOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}

async function canConnect(path) {
  return await new Promise((done) => {
    const socket = connect(path);
    socket.once("connect", () => {
      socket.destroy();
      done(true);
    });
    socket.once("error", () => done(false));
  });
}

/** Returns the processes whose command line has a text. */
export function processesWith(text) {
  return readdirSync("/proc").filter((pid) => /^\d+$/.test(pid) && commandOf(pid).join(" ").includes(text));
}

/** Number of lines of a file; 0: it does not exist. */
export function linesIn(path) {
  try {
    return readFileSync(path, "utf8").split("\n").length - 1;
  } catch {
    return 0;
  }
}

/** Makes a program of Python in the directory of a service, and returns its command. */
export function program(service, name, text) {
  const path = service.file(`${name}.py`);
  writeFileSync(path, text);
  return ["python3", ["-u", path]];
}
