// Conformance driver of the TypeScript package: requests of clients/conformance/README.md, on Node and Bun.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fromJson, toJson } from "@bufbuild/protobuf";
import { addressText, CONTRACT_LEVEL, Kennel, KennelError, resolveTarget } from "@kennel/client";
import about from "@kennel/client/package.json" with { type: "json" };
import { AdminService, ProcessService, RunSpecSchema } from "@kennel/client/raw";

const objects = new Map();
const open = new Map();
const clients = new Set();
const counts = { lost: 0, resumed: 0 };

const send = (message) => process.stdout.write(`${JSON.stringify(message, (_, value) => (typeof value === "bigint" ? Number(value) : value))}\n`);
const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
const camels = (args) => Object.fromEntries(Object.entries(args).map(([name, value]) => [camel(name), value]));
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const upper = (name) => (name ? snake(name).toUpperCase() : "");
const sum = (values) => values.reduce((all, value) => all + value, 0);
const statistics = (name) => sum([...clients].map(({ stats }) => stats[name]));

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
  const { id, state, isLive: live, attempt = 0, endReason = "", verdict, readyBy: ready_by, annotations, labels, name, pid = 0, info } = run;
  const view = { id, state, live, attempt, exit: exitOf(run.exit), end_reason: snake(endReason), verdict: upper(verdict?.kind), labels, name };
  return { ...view, ready_by, annotations, annotations_version: info?.annotationsVersion ?? 0n, pid };
}

/** Options of a command, with those that are protobuf JSON as fields of `spec`. */
function specOf(args) {
  const { argv, shell, request_key: key, restart, ready, output, spec, check, input, ...rest } = args;
  const json = { ...spec, ...(restart && { restart }), ...(ready && { readiness: ready }), ...(output && { output }) };
  const fields = Object.keys(json).length > 0 && { spec: fromJson(RunSpecSchema, json) };
  const [file = shell, ...words] = argv ?? [];
  return [file, words, { ...camels(rest), ...fields, ...(key && { key }), ...(input && { input: bytesIn(input) }), ...(shell && { shell: true }) }];
}

const times = (args, signal) => ({ signal, ...(args.timeout_ms !== undefined && { timeoutMs: args.timeout_ms }) });
const saved = (object, name, make) => {
  object.driver ??= {};
  object.driver[name] ??= make();
  return object.driver[name];
};
const writerOf = (writable) => saved(writable, "writer", () => writable.getWriter());
const inputOf = (run, name, options) => saved(run, name, () => run.input(options).on("error", () => {}));

/** Reads at most so many bytes of a reader, whose rest stays for the next call. */
async function take(reader, most = Number.POSITIVE_INFINITY) {
  const parts = [];
  for (let left = most; left > 0 && !reader.eof; ) {
    if (!reader.rest?.length) {
      const { done, value } = await reader.chunks.next();
      reader.eof = done === true;
      reader.rest = value && Buffer.from(value.buffer, value.byteOffset, value.length);
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

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Operations whose method has their name, takes a signal, and returns the run. */
const plain = ["pause", "resume", "refresh", "interrupt"].map((name) => [
  name,
  async (_, run, { signal }) => {
    await run[name]({ signal });
    return runOf(run);
  },
]);

const ops = {
  ...Object.fromEntries(plain),
  hello: () => ({ language: process.versions.bun ? "bun" : "node", version: about.version, level: CONTRACT_LEVEL, ops: Object.keys(ops) }),
  async connect({ patience_ms: patience, call_timeout_ms: callTimeout, connect_patience_ms: connectPatience, ...rest }, _, { as = "c", signal }) {
    const client = await Kennel.connect({ ...camels(rest), patience, callTimeout, connectPatience, signal });
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
    const { address, credentials: of, node } = resolveTarget(camels(args), { env, isRoot: root });
    const { caFile: ca, certFile: certificate, keyFile: key, serverName: server_name, tokenFile: token_file, serverUser: server_user } = of;
    const found = { ca, certificate, key, server_name, token_file, node, server_user };
    return { address: addressText(address), ...Object.fromEntries(Object.entries(found).map(([name, value]) => [name, value ?? null])) };
  },
  async info(_, client, { signal }) {
    const { version, contractLevel: level } = await client.info({ signal });
    return { version, level };
  },
  stats: () => ({
    // Since its exec: the kernel's ru_maxrss has the peak of the parent too.
    rss_peak: Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) * 1024,
    tasks: open.size - 1,
    fds: readdirSync("/proc/self/fd").length,
    streams: statistics("streams"),
    probes: statistics("probes"),
    unknown_values: statistics("unknownValues"),
    unknown_events: statistics("unknownEvents"),
    ...counts,
  }),
  async spawn(args, client, { signal }) {
    const [file, words, options] = specOf(args);
    return await client.spawn(file, words, { ...options, signal });
  },
  async run(args, client, { signal }) {
    const [file, words, options] = specOf(args);
    const done = await client.execFile(file, words, { ...options, encoding: "buffer", signal });
    const { state, omitted, endReason = "" } = done;
    const view = { exit: exitOf({ code: done.exitCode, signal: done.signalCode }), state, end_reason: snake(endReason) };
    const output = { stdout: bytesOut(done.stdout), stderr: bytesOut(done.stderr), omitted_stdout: omitted.stdout, omitted_stderr: omitted.stderr };
    return { ...view, ...output, timed_out: endReason === "deadlineExceeded" };
  },
  handle: ({ run_id }, client) => client.handle(run_id),
  get: ({ run_id }, client, { signal }) => client.get(run_id, { signal }),
  find: async (args, client, { signal }) => ({ ids: (await client.find(args, { signal }).all()).map(({ id }) => id) }),
  async inbox({ selector = "" }, client, { signal }) {
    const runs = await client.inbox(selector, { signal });
    const asked = runs.flatMap(({ questions }) => questions);
    const of = (name) => asked.map((question) => question[name]);
    return { ids: runs.map(({ id }) => id), texts: of("text"), numbers: of("number"), by: of("by") };
  },
  answer: ({ text, question }, run, { signal }) => run.answer(text, { signal, ...(question !== undefined && { question: BigInt(question) }) }),
  async for_each({ selector = "", action, grace_ms, signal: name, every, selection, ...rest }, client, { signal }) {
    const what = action === "abort" ? { abort: { graceMs: grace_ms } } : action === "signal" ? { signal: name } : action;
    const options = { ...camels(rest), all: every, selection: Buffer.from(selection ?? "", "base64"), signal };
    const done = await client.forEach(selector, what, options);
    const reasons = [...new Set(done.outcomes.map(({ reason }) => reason))].sort();
    const ids = done.outcomes.map(({ run }) => run.id).sort();
    return { ids, reasons, counts: done.counts, selection: Buffer.from(done.selection).toString("base64") };
  },
  remove: (_, run, { signal }) => run.remove({ signal }),
  async wait(args, run, { signal }) {
    const reached = await run.waitFor(args.for ?? "ended", times(args, signal));
    return { ...runOf(run), reached };
  },
  async ready(args, run, { signal }) {
    await run.ready(times(args, signal));
    return runOf(run);
  },
  async wait_output(args, run, { signal }) {
    const pattern = args.literal ?? new RegExp(args.regex.replaceAll("(?P<", "(?<"));
    const { line, text, seq, groups } = await run.waitForOutput(pattern, times(args, signal));
    return { line, text, seq, groups: Object.fromEntries(groups.map(({ name, text }) => [name, text])) };
  },
  async abort({ grace_ms, wait }, run, { signal }) {
    const { state, verdict, proof = "" } = await run.abort({ graceMs: grace_ms, wait, signal });
    return { state, verdict: upper(verdict?.kind), proof, exit: exitOf(run.exit) };
  },
  kill: (args, run, { signal }) => run.kill(args.signal, { signal }),
  signal: async (args, run, { signal }) => ({ repeated: (await run.signal(args.signal, { target: args.target, signal })).repeatedRequest }),
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
  async read_output({ stream, offset = 0, bytes_max, head, tail }, run, { signal }) {
    const range = { offset: BigInt(offset), bytesMax: bytes_max, headBytes: head, tailBytes: tail };
    const { parts, endOffset, isFinal } = await run.readOutput(stream, { ...range, signal });
    const data = Buffer.concat(parts.flatMap(({ part }) => (part.case === "data" ? [part.value] : [])));
    const omitted = sum(parts.map(({ part }) => (part.case === "omittedBytes" ? Number(part.value) : 0)));
    return { data: bytesOut(data), omitted, end_offset: endOffset, final: isFinal };
  },
  read({ stream = "stdout", at_most, on_gap }, run) {
    const reader = saved(run, stream, () => {
      const readable = on_gap ? run.output(stream, { onGap: on_gap }) : run[stream];
      return { readable, chunks: readable[Symbol.asyncIterator](), total: new Total(), eof: false };
    });
    return take(reader, at_most);
  },
  async lines({ at_most = Number.POSITIVE_INFINITY, stream, json, line_bytes_max: lineBytesMax, tail, on_gap: onGap }, run) {
    const reader = saved(run, "lines", () => {
      const some = { ...(tail !== undefined && { from: { tailLines: tail } }), ...(stream && { streams: [stream] }), ...(onGap && { onGap }) };
      return { lines: run.lines({ ...some, plain: json, lineBytesMax }), total: new Total(), eof: false };
    });
    const lines = [];
    let count = 0;
    for (; count < at_most && !reader.eof; count += 1) {
      const { done, value } = await reader.lines.next();
      reader.eof = done === true;
      if (done) break;
      reader.total.add(`${value.text}\n`, 1);
      if (count < 1_000) lines.push({ ...value, truncated: value.isTruncated, json: json ? parsed(value.text) : null });
    }
    return { lines, count, total: reader.total.result, eof: reader.eof };
  },
  async events({ at_most = Number.POSITIVE_INFINITY, until, on_gap, consumer }, run) {
    const feed = saved(run, "events", () => run.events({ consumer, ...(on_gap && { onGap: on_gap }) }));
    const events = [];
    while (events.length < at_most) {
      const { done, value } = await feed.next();
      if (done) return { events, eof: true };
      const output = value.kind === "output" ? { stream: value.value.stream === 2 ? "stderr" : "stdout", len: value.value.data.length } : {};
      events.push({ kind: snake(value.kind), seq: value.seq, attempt: value.attempt, ...output });
      if (snake(value.kind) === until) break;
    }
    return { events, eof: false };
  },
  async events_of({ selector, until_ended }, client, { signal }) {
    const totals = new Map();
    let ended = 0;
    for await (const { runId, kind, value } of client.events({ selector, live: false }, { signal })) {
      if (!totals.has(runId)) totals.set(runId, new Total());
      if (kind === "output" && value.stream === 1) totals.get(runId).add(value.data);
      if (kind === "ended") ended += 1;
      if (ended >= until_ended) break;
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
    const input = inputOf(run, name, { shared });
    const stop = () => input.destroy(signal.reason);
    signal.addEventListener("abort", stop);
    try {
      await new Promise((done, failed) => input.write(bytesIn(data), (error) => (error ? failed(error) : done())));
    } catch (error) {
      delete run.driver[name];
      throw signal.aborted ? signal.reason : error;
    }
    signal.removeEventListener("abort", stop);
    return { offset: input.accepted };
  },
  end_input: (_, run) => new Promise((done, failed) => inputOf(run, "input").once("error", failed).end(done)),
  duplex: ({ take_over }, run) => run.duplex({ takeOver: take_over ?? false }),
  async duplex_write({ data }, { writable }) {
    // A stream of the web that is closed throws a TypeError at once, whatever its sink would say.
    if (writable.isClosed) throw Object.assign(new TypeError("closed"), { reason: "INPUT_CLOSED" });
    await writerOf(writable).write(bytesIn(data));
  },
  async duplex_end(_, { writable }) {
    writable.isClosed = true;
    await writerOf(writable).close();
  },
  duplex_read: ({ at_most }, { readable }) =>
    take(
      saved(readable, "reader", () => ({ chunks: readable.values(), total: new Total(), eof: false })),
      at_most,
    ),
  async attach({ rows, cols, read_only }, run) {
    const terminal = await run.attach({ readOnly: read_only ?? false, ...(rows && { size: { rows, cols } }) });
    terminal.texts = [];
    terminal.onData((text) => terminal.texts.push(text));
    return terminal;
  },
  t_write: ({ data }, terminal) => terminal.write(bytesIn(data)),
  async t_expect({ text, timeout_ms }, terminal, { signal }) {
    const { before } = await terminal.expect(text, { timeoutMs: timeout_ms, signal });
    terminal.texts = [terminal.texts.join("").slice(before.length + text.length)];
    return { before: Buffer.byteLength(before) };
  },
  async t_read(_, terminal) {
    await terminal.closed;
    return { data: bytesOut(Buffer.from(terminal.texts.join(""))), eof: true };
  },
  t_resize: ({ rows, cols }, terminal) => terminal.resize(cols, rows),
  t_take: (_, terminal) => terminal.take(),
  t_detach: (_, terminal) => terminal.detach(),
  t_state: (_, terminal) => ({ writer: terminal.isWriter, ...terminal.size }),
  async screen(_, run) {
    const { lines, size } = await run.screen();
    return { lines: lines.map(({ spans }) => spans.map(({ text }) => text).join("")), rows: size.rows, cols: size.cols };
  },
  async many({ count, argv: [file, ...words], read, labels }, client) {
    const errors = {};
    let [ok, bytes] = [0, 0];
    const one = async () => {
      const run = await client.spawn(file, words, { labels });
      if (read) for await (const chunk of run.stdout) bytes += chunk.length;
      await run.wait();
      ok += 1;
    };
    const failed = ({ reason, name }) => {
      errors[reason ?? name] = (errors[reason ?? name] ?? 0) + 1;
    };
    await Promise.all(Array.from({ length: count }, () => one().catch(failed)));
    return { ok, errors, bytes };
  },
  async raw({ rpc, request }, client) {
    const name = rpc[0].toLowerCase() + rpc.slice(1);
    const [stub, { method }] = name in client.raw.process ? [client.raw.process, ProcessService] : [client.raw.admin, AdminService];
    return { response: toJson(method[name].output, await stub[name](fromJson(method[name].input, request))) };
  },
  cancel: ({ n }) => open.get(n)?.abort(),
  async scope(args, client) {
    const run = await client.spawn(...specOf(args));
    await run[Symbol.asyncDispose]();
    return run;
  },
};

function failure(error, { timeout_ms }) {
  const { reason = "", code = "", message, metadata = {}, violations = [], isRetryable = false } = error;
  const isLate = reason === "DEADLINE_EXCEEDED" && timeout_ms !== undefined;
  const shown = { reason: error.name === "AbortError" ? "CANCELLED" : isLate ? "TIMEOUT" : reason, type: error.constructor.name, message, metadata };
  return { ...shown, code: code === "EPIPE" ? "FAILED_PRECONDITION" : `${code}`, retryable: isRetryable, violations: violations.map(({ field }) => field) };
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
  }
  open.delete(n);
}

for await (const line of createInterface({ input: process.stdin })) if (line.trim() !== "") void answer(JSON.parse(line));
await Promise.all([...clients].map((client) => client.close()));
