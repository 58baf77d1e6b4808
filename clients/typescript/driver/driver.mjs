// Conformance driver of the TypeScript package: requests of clients/conformance/README.md, on Node and Bun.

import { createHash } from "node:crypto";
import { readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { fromJson, toJson } from "@bufbuild/protobuf";
import { CONTRACT_LEVEL, Kennel, KennelError, resolveTarget } from "@kennel/client";
import about from "@kennel/client/package.json" with { type: "json" };
import { AdminService, ProcessService, RunSpecSchema } from "@kennel/client/raw";

const objects = new Map();
const open = new Map();
const clients = new Set();
const counts = { lost: 0, resumed: 0 };

const send = (message) => process.stdout.write(`${JSON.stringify(message, (_, value) => (typeof value === "bigint" ? Number(value) : value))}\n`);
const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const upper = (name) => name && snake(name).toUpperCase();

/** Sum of bytes or lines over the calls of one reader. */
class Total {
  len = 0;
  #hash = createHash("sha256");
  add(data, len = data.length) {
    this.len += len;
    this.#hash.update(data);
  }
  get result() {
    return { len: this.len, sha256: this.#hash.copy().digest("hex") };
  }
}

function bytesIn(data) {
  if (data.text !== undefined) return Buffer.from(data.text);
  if (data.b64 !== undefined) return Buffer.from(data.b64, "base64");
  return Uint8Array.from({ length: data.pattern }, (_, i) => i * 31 + Math.floor(i / 251));
}

function bytesOut(data) {
  const sha256 = createHash("sha256").update(data).digest("hex");
  return { len: data.length, sha256, ...(data.length <= 65_536 && { b64: data.toString("base64") }) };
}

function exitOf(exit) {
  if (!exit) return null;
  if (exit.code !== null) return { code: exit.code };
  return exit.signal === null ? { unknown: true } : { signal: exit.signal };
}

function runOf(run) {
  const { id, state, isLive, attempt, endReason, verdict, readyBy, annotations, labels, name, pid, info } = run;
  return {
    ...{
      id,
      state,
      live: isLive,
      attempt: attempt ?? 0,
      exit: exitOf(run.exit),
      end_reason: snake(endReason ?? ""),
      labels,
      name,
    },
    ...{
      verdict: upper(verdict?.kind) ?? "",
      ready_by: readyBy,
      annotations,
      annotations_version: info?.annotationsVersion ?? 0n,
      pid: pid ?? 0,
    },
  };
}

/** Options of a command, with those that are protobuf JSON as fields of `spec`. */
function specOf(args) {
  const { argv, shell, request_key, restart, ready, output, spec, max_output, check, ...rest } = args;
  const options = Object.fromEntries(Object.entries(rest).map(([name, value]) => [camel(name), value]));
  const json = { ...spec, ...(restart && { restart }), ...(ready && { readiness: ready }), ...(output && { output }) };
  if (Object.keys(json).length > 0) options.spec = fromJson(RunSpecSchema, json);
  if (request_key !== undefined) options.key = request_key;
  if (max_output !== undefined) options.maxOutput = max_output;
  if (args.input !== undefined) options.input = bytesIn(args.input);
  if (shell !== undefined) options.shell = true;
  const [file = shell, ...words] = argv ?? [];
  return [file, words, options];
}

const times = (args, signal) => ({ signal, ...(args.timeout_ms !== undefined && { timeoutMs: args.timeout_ms }) });
const saved = (object, name, make) => {
  object.driver ??= {};
  object.driver[name] ??= make();
  return object.driver[name];
};

/** Reads at most so many bytes of a reader, whose rest stays for the next call. */
async function take(reader, most = Number.POSITIVE_INFINITY) {
  const parts = [];
  for (let left = most; left > 0 && !reader.eof; ) {
    if (!reader.rest?.length) {
      const { done, value } = await reader.chunks.next();
      reader.eof = done === true;
      reader.rest = value;
      continue;
    }
    const part = reader.rest.subarray(0, left);
    reader.rest = reader.rest.subarray(part.length);
    parts.push(part);
    left -= part.length;
  }
  const data = Buffer.concat(parts);
  reader.total.add(data);
  return { data: bytesOut(data), total: reader.total.result, eof: reader.eof };
}

async function* chunksOf(readable) {
  const reader = readable.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield Buffer.from(value);
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const ops = {
  hello: () => ({
    language: process.versions.bun ? "bun" : "node",
    version: about.version,
    level: CONTRACT_LEVEL,
    ops: Object.keys(ops),
  }),
  async connect(args, _, { as = "c", signal }) {
    const { patience_ms, call_timeout_ms, connect_patience_ms, ...rest } = args;
    const names = { patience: patience_ms, callTimeout: call_timeout_ms, connectPatience: connect_patience_ms };
    const options = Object.fromEntries(Object.entries(rest).map(([name, value]) => [camel(name), value]));
    const client = await Kennel.connect({ ...options, ...names, signal });
    for (const event of ["lost", "resumed"])
      client.on(event, () => {
        counts[event] += 1;
        send({ event, of: as });
      });
    clients.add(client);
    objects.set(as, client);
  },
  async close(_, client) {
    clients.delete(client);
    await client.close();
  },
  resolve({ env, root, ...args }) {
    const options = Object.fromEntries(Object.entries(args).map(([name, value]) => [camel(name), value]));
    const { address, credentials: of, node } = resolveTarget(options, { env, isRoot: root });
    const tcp = (host) => `tcp://${host.includes(":") ? `[${host}]` : host}`;
    const orNull = (value) => value ?? null;
    return {
      address: address.kind === "unix" ? `unix:${address.path}` : `${tcp(address.host)}:${address.port}`,
      ...{
        ca: orNull(of.caFile),
        certificate: orNull(of.certFile),
        key: orNull(of.keyFile),
        server_name: orNull(of.serverName),
      },
      ...{ token_file: orNull(of.tokenFile), node: orNull(node), server_user: orNull(of.serverUser) },
    };
  },
  info: async (_, client, { signal }) => ({ version: (await client.info({ signal })).version, level: null }),
  stats: () => ({
    rss_peak: process.resourceUsage().maxRSS * 1024,
    tasks: open.size - 1,
    fds: readdirSync("/proc/self/fd").length,
    streams: [...clients].reduce((sum, { stats }) => sum + stats.streams, 0),
    probes: [...clients].reduce((sum, { stats }) => sum + stats.probes, 0),
    ...counts,
  }),
  async spawn(args, client, { signal }) {
    const [file, words, options] = specOf(args);
    return await client.spawn(file, words, { ...options, signal });
  },
  async run(args, client, { signal }) {
    const [file, words, options] = specOf(args);
    const done = await client.execFile(file, words, { ...options, encoding: "buffer", signal });
    const exit = exitOf({ code: done.exitCode, signal: done.signalCode });
    const { state, omitted, endReason } = done;
    const timedOut = endReason === "deadlineExceeded";
    const output = { stdout: bytesOut(done.stdout), stderr: bytesOut(done.stderr) };
    const missing = { omitted_stdout: omitted.stdout, omitted_stderr: omitted.stderr, timed_out: timedOut };
    return { exit, state, end_reason: snake(endReason ?? ""), ...output, ...missing };
  },
  handle: ({ run_id }, client) => client.handle(run_id),
  get: ({ run_id }, client, { signal }) => client.get(run_id, { signal }),
  async find(args, client, { signal }) {
    return { ids: (await client.find(args, { signal }).all()).map(({ id }) => id) };
  },
  refresh: (_, run, { signal }) => run.refresh({ signal }),
  async wait(args, run, { signal }) {
    const reached = await run.waitFor(args.for ?? "ended", times(args, signal));
    return { ...runOf(run), reached };
  },
  async ready(args, run, { signal }) {
    await run.ready(times(args, signal));
    return runOf(run);
  },
  async wait_output(args, run, { signal }) {
    const found = await run.waitForOutput(args.literal ?? new RegExp(args.regex.replaceAll("(?P<", "(?<")), times(args, signal));
    return {
      line: found.line,
      text: found.text,
      seq: found.seq,
      groups: Object.fromEntries(found.groups.map(({ name, text }) => [name, text])),
    };
  },
  async abort({ grace_ms, wait }, run, { signal }) {
    const { state, verdict, proof } = await run.abort({ graceMs: grace_ms, wait, signal });
    return { state, verdict: upper(verdict?.kind) ?? "", proof: proof ?? "", exit: exitOf(run.exit) };
  },
  kill: (args, run, { signal }) => run.kill(args.signal, { signal }),
  signal: async (args, run, { signal }) => ({
    repeated: (await run.signal(args.signal, { target: args.target, signal })).repeatedRequest,
  }),
  async interrupt(_, run, { signal }) {
    await run.interrupt({ signal });
    return runOf(run);
  },
  pause: (_, run, { signal }) => run.pause({ signal }),
  resume: (_, run, { signal }) => run.resume({ signal }),
  restart: (args, run, { signal }) => run.restart({ ...args, signal }),
  annotate({ set = {}, remove = [], expected_version: version }, run, { signal }) {
    const changes = { ...set, ...Object.fromEntries(remove.map((key) => [key, undefined])) };
    return run.annotate(changes, { signal, ...(version !== undefined && { version: BigInt(version) }) });
  },
  extend: ({ by_ms }, run, { signal }) => run.extend(by_ms, { signal }),
  async tree(_, run, { signal }) {
    const processes = await run.tree({ signal });
    return { processes: processes.length, names: processes.map(({ name }) => name) };
  },
  async read_output(args, run, { signal }) {
    const { stream, offset, bytes_max, head, tail } = args;
    const ends = { ...(head !== undefined && { headBytes: head }), ...(tail !== undefined && { tailBytes: tail }) };
    const read = await run.readOutput(stream, { offset: BigInt(offset ?? 0), bytesMax: bytes_max, ...ends, signal });
    const data = Buffer.concat(read.parts.flatMap(({ part }) => (part.case === "data" ? [part.value] : [])));
    const omitted = read.parts.reduce((sum, { part }) => (part.case === "omittedBytes" ? sum + part.value : sum), 0n);
    return { data: bytesOut(data), omitted, end_offset: read.endOffset, final: read.isFinal };
  },
  read({ stream = "stdout", at_most, on_gap }, run) {
    const reader = saved(run, stream, () => {
      const readable = on_gap ? run.output(stream, { onGap: on_gap }) : run[stream];
      return { readable, chunks: readable[Symbol.asyncIterator](), total: new Total(), eof: false };
    });
    return take(reader, at_most);
  },
  async lines({ at_most = Number.POSITIVE_INFINITY, stream, json, line_bytes_max, tail, on_gap }, run) {
    const reader = saved(run, "lines", () => {
      const from = tail === undefined ? {} : { from: { tailLines: tail } };
      const options = { ...from, ...(stream && { streams: [stream] }), ...(on_gap && { onGap: on_gap }) };
      return {
        lines: run.lines({ ...options, plain: json, lineBytesMax: line_bytes_max }),
        total: new Total(),
        eof: false,
      };
    });
    const lines = [];
    let count = 0;
    while (count < at_most) {
      const { done, value } = await reader.lines.next();
      if (done) {
        reader.eof = true;
        break;
      }
      count += 1;
      reader.total.add(`${value.text}\n`, 1);
      if (count <= 1_000) lines.push({ ...value, truncated: value.isTruncated, json: json ? parsed(value.text) : null });
    }
    return { lines, count, total: reader.total.result, eof: reader.eof };
  },
  async events({ at_most = Number.POSITIVE_INFINITY, until, on_gap, consumer }, run) {
    const feed = saved(run, "events", () => run.events({ consumer, ...(on_gap && { onGap: on_gap }) }));
    const events = [];
    while (events.length < at_most) {
      const { done, value } = await feed.next();
      if (done) return { events, eof: true };
      const { kind, seq, attempt } = value;
      const output = kind === "output" ? { stream: value.value.stream === 2 ? "stderr" : "stdout", len: value.value.data.length } : {};
      events.push({ kind: snake(kind), seq, attempt, ...output });
      if (snake(kind) === until) break;
    }
    return { events, eof: false };
  },
  async events_of({ selector, until_ended }, client, { signal }) {
    const totals = new Map();
    const ended = new Set();
    for await (const event of client.events({ selector, live: false }, { signal })) {
      if (!totals.has(event.runId)) totals.set(event.runId, new Total());
      if (event.kind === "output" && event.value.stream === 1) totals.get(event.runId).add(event.value.data);
      if (event.kind === "ended") ended.add(event.runId);
      if (ended.size >= until_ended) break;
    }
    return { runs: totals.size, bytes: Object.fromEntries([...totals].map(([id, total]) => [id, total.result])) };
  },
  async break({ stream = "stdout" }, run) {
    const reader = run.driver?.[stream];
    reader?.readable?.destroy();
    await (reader?.lines ?? reader)?.return?.();
    delete run.driver?.[stream];
  },
  async ack({ consumer, seq }, run, { signal }) {
    await run.ack(consumer, { seq: BigInt(seq) }, { signal });
    return { acked_seq: seq };
  },
  async write({ data, shared }, run, { signal }) {
    const name = shared ? "shared" : "input";
    const input = saved(run, name, () => run.input({ shared }).on("error", () => {}));
    const stop = () => input.destroy(signal.reason);
    signal.addEventListener("abort", stop);
    try {
      await new Promise((done, failed) => input.write(bytesIn(data), (error) => (error ? failed(error) : done())));
    } catch (error) {
      delete run.driver[name];
      throw signal.aborted ? signal.reason : error;
    } finally {
      signal.removeEventListener("abort", stop);
    }
    return { offset: input.accepted };
  },
  async end_input(_, run) {
    const input = saved(run, "input", () => run.input().on("error", () => {}));
    await new Promise((done, failed) => input.once("error", failed).end(done));
  },
  duplex: ({ take_over }, run) => run.duplex({ takeOver: take_over ?? false }),
  async duplex_write({ data }, { writable }) {
    const writer = saved(writable, "writer", () => writable.getWriter());
    // A stream of the web that is closed throws a TypeError at once, whatever its sink would say.
    if (writable.isClosed) throw Object.assign(new TypeError("closed"), { reason: "INPUT_CLOSED" });
    await writer.write(bytesIn(data));
  },
  async duplex_end(_, { writable }) {
    writable.isClosed = true;
    await saved(writable, "writer", () => writable.getWriter()).close();
  },
  duplex_read: ({ at_most }, { readable }) =>
    take(
      saved(readable, "reader", () => ({ chunks: chunksOf(readable), total: new Total(), eof: false })),
      at_most,
    ),
  async attach({ rows, cols, read_only }, run) {
    const terminal = await run.attach({ readOnly: read_only ?? false, ...(rows && { size: { rows, cols } }) });
    terminal.text = "";
    terminal.onData((text) => {
      terminal.text += text;
    });
    return terminal;
  },
  t_write: ({ data }, terminal) => terminal.write(bytesIn(data)),
  async t_expect({ text, timeout_ms }, terminal, { signal }) {
    const { before } = await terminal.expect(text, { timeoutMs: timeout_ms, signal });
    terminal.text = terminal.text.slice(before.length + text.length);
    return { before: Buffer.byteLength(before) };
  },
  async t_read(_, terminal) {
    await terminal.closed;
    return { data: bytesOut(Buffer.from(terminal.text)), eof: true };
  },
  t_resize: ({ rows, cols }, terminal) => terminal.resize(cols, rows),
  t_take: (_, terminal) => terminal.take(),
  t_detach: (_, terminal) => terminal.detach(),
  t_state: (_, terminal) => ({ writer: terminal.isWriter, ...terminal.size }),
  async screen(_, run) {
    const screen = await run.screen();
    return {
      lines: screen.lines.map(({ spans }) => spans.map(({ text }) => text).join("")),
      rows: screen.size.rows,
      cols: screen.size.cols,
    };
  },
  async many({ count, argv: [file, ...words], read, labels }, client) {
    const errors = {};
    let [ok, bytes] = [0, 0];
    const one = async () => {
      try {
        const run = await client.spawn(file, words, { labels });
        if (read) for await (const chunk of run.stdout) bytes += chunk.length;
        await run.wait();
        ok += 1;
      } catch (error) {
        errors[error.reason ?? error.name] = (errors[error.reason ?? error.name] ?? 0) + 1;
      }
    };
    await Promise.all(Array.from({ length: count }, one));
    return { ok, errors, bytes };
  },
  async raw({ rpc, request }, client) {
    const [stub, service] = rpc[0].toLowerCase() + rpc.slice(1) in client.raw.process ? [client.raw.process, ProcessService] : [client.raw.admin, AdminService];
    const name = rpc[0].toLowerCase() + rpc.slice(1);
    const method = service.method[name];
    return { response: toJson(method.output, await stub[name](fromJson(method.input, request))) };
  },
  cancel({ n }) {
    open.get(n)?.abort();
  },
  async scope(args, client) {
    const [file, words, options] = specOf(args);
    const run = await client.spawn(file, words, options);
    await run[Symbol.asyncDispose]();
    return run;
  },
};

function failure(error, { timeout_ms }) {
  const { reason, code = "", message, metadata = {}, violations = [], isRetryable = false } = error;
  const name = error.name === "AbortError" ? "CANCELLED" : reason === "DEADLINE_EXCEEDED" && timeout_ms !== undefined ? "TIMEOUT" : reason;
  const shown = {
    reason: name ?? "",
    code: code === "EPIPE" ? "FAILED_PRECONDITION" : String(code),
    type: error.constructor.name,
  };
  return {
    ...shown,
    retryable: isRetryable,
    message: `${message}`,
    metadata,
    violations: violations.map(({ field }) => field),
  };
}

async function answer({ n, op, as, of, on = "c", args = {} }) {
  const own = new AbortController();
  open.set(n, own);
  try {
    if (!ops[op]) throw new TypeError(`no operation ${op}`);
    const done = await ops[op](args, objects.get(of ?? on), { as, signal: own.signal });
    if (as !== undefined && done) objects.set(as, done);
    send({ n, ok: done?.waitFor ? runOf(done) : done?.readable || done?.onData ? {} : (done ?? {}) });
  } catch (error) {
    send({ n, error: failure(KennelError.from(error) ?? error, args) });
  } finally {
    open.delete(n);
  }
}

for await (const line of createInterface({ input: process.stdin })) if (line.trim() !== "") void answer(JSON.parse(line));
await Promise.all([...clients].map((client) => client.close()));
