// What a run is and does, against a real server.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { Kennel, KennelError } from "@kennel/client";
import { context, propagation } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { BasicTracerProvider } from "@opentelemetry/sdk-trace-base";
import { eventually, processesWith, Service } from "./harness.mjs";

let service;
let kennel;
before(async () => {
  service = await Service.start();
  kennel = await service.client();
});
after(() => service.end());

const reason =
  (...reasons) =>
  (error) =>
    KennelError.is(error, ...reasons);

test("command_that_fails_is_a_result", async () => {
  const done = await kennel.execFile("sh", ["-c", "echo out; echo err >&2; exit 3"]);
  assert.deepEqual(
    [done.exitCode, done.signalCode, done.stdout, done.stderr, done.state],
    [3, null, "out\n", "err\n", "FAILED"],
  );
  const killed = await kennel.exec("kill -KILL $$");
  assert.deepEqual([killed.exitCode, killed.signalCode], [null, "SIGKILL"]);
});

test("inherit_takes_environment_and_directory_of_this_process", async () => {
  process.env.OWN = "1";
  process.env.KENNEL_ELSEWHERE = "2";
  try {
    const done = await kennel.execFile("sh", ["-c", 'echo "$OWN$KENNEL_ELSEWHERE"; pwd'], { inherit: true });
    assert.equal(done.stdout, `1\n${process.cwd()}\n`);
  } finally {
    delete process.env.OWN;
    delete process.env.KENNEL_ELSEWHERE;
  }
});

test("active_span_is_the_parent_of_a_spawn", async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  const tracer = new BasicTracerProvider().getTracer("caller");
  const metadata = () => {
    const found = {};
    propagation.inject(context.active(), found);
    return found;
  };
  const traced = await service.client({ metadata });
  await tracer.startActiveSpan("a step of the caller", async (span) => {
    const done = await traced.exec("echo $TRACEPARENT");
    assert.equal(done.stdout.split("-")[1], span.spanContext().traceId);
    span.end();
  });
});

test("input_longer_than_a_spec_is_written_whole", async () => {
  const input = randomBytes(3_000_000);
  const done = await kennel.execFile("cat", [], { input, encoding: "buffer" });
  assert.equal(done.stdout.compare(input), 0);
  const short = await kennel.execFile("cat", [], { input: "short" });
  assert.equal(short.stdout, "short");
});

test("output_beyond_the_bound_keeps_head_and_tail", async () => {
  const done = await kennel.exec("seq 1 500000", { maxOutput: 1_000_000 });
  const whole = `${Array.from({ length: 500_000 }, (_, i) => i + 1).join("\n")}\n`;
  assert.equal(done.stdout, whole.slice(0, 500_000) + whole.slice(-500_000));
  assert.equal(done.omitted.stdout, BigInt(whole.length - 1_000_000));
});

test("streams_end_with_the_last_byte", async () => {
  const run = await kennel.spawn("sh", ["-c", "cat; echo done >&2"], { stdin: "pipe" });
  run.stdin.end("a\nb");
  const [out, err] = await Promise.all([run.stdout.toArray(), run.stderr.toArray()]);
  assert.deepEqual([Buffer.concat(out).toString(), Buffer.concat(err).toString()], ["a\nb", "done\n"]);
  assert.equal((await run.wait()).code, 0);
});

test("lines_are_whole_and_json_is_parsed_from_text", async () => {
  const run = await kennel.spawn("printf", ["one\\r\\ntwo\\nlast"]);
  const lines = [];
  for await (const { stream, text } of run.lines()) lines.push([stream, text]);
  assert.deepEqual(lines, [
    ["stdout", "one"],
    ["stdout", "two"],
    ["stdout", "last"],
  ]);
  const long = "x".repeat(200_000);
  const json = await kennel.spawn("sh", [
    "-c",
    `echo '{"a":1}'; echo '[0.1234567890123456]'; printf '"'; head -c 200000 /dev/zero | tr '\\0' x; echo '"'`,
  ]);
  const values = [];
  for await (const value of json.jsonLines()) values.push(value);
  assert.deepEqual(values, [{ a: 1 }, [0.1234567890123456], long]);
  const noise = await kennel.spawn("echo", ["no json"]);
  await assert.rejects(async () => {
    for await (const _ of noise.jsonLines({ onInvalid: "error" }));
  }, SyntaxError);
});

test("lines_that_are_left_early_close_their_stream", async () => {
  const run = await kennel.spawn("sh", ["-c", "echo first; sleep 600"]);
  for await (const { text } of run.lines()) {
    assert.equal(text, "first");
    break;
  }
  const waiting = run.events();
  const next = (async () => {
    for await (const event of waiting) if (event.kind === "ended") return "ended";
    return "left";
  })();
  await waiting.return();
  assert.equal(await next, "left");
  await eventually("no stream is open", () => kennel.stats.streams === 0);
  await run.abort();
});

test("handle_emits_exit_and_close_in_order", async () => {
  const run = await kennel.spawn("sh", ["-c", "read x; echo out; exit 4"], { stdin: "pipe" });
  const seen = [];
  for (const event of ["attempt", "exit", "close"]) run.on(event, (...values) => seen.push([event, ...values]));
  const text = (async () => Buffer.concat(await run.stdout.toArray()).toString())();
  run.stdin.end("go\n");
  await new Promise((done) => run.once("close", done));
  assert.equal(await text, "out\n");
  assert.deepEqual(seen, [
    ["attempt", 1],
    ["exit", 4, null],
    ["close", 4, null],
  ]);
});

test("abort_proves_that_the_tree_is_empty", async () => {
  const run = await kennel.spawn("sh", ["-c", "trap '' TERM; sleep 654321 & setsid sleep 654321 & wait; sleep 654321"]);
  await eventually("three sleepers", () => processesWith("sleep 654321").length >= 2);
  const stopped = await run.abort({ graceMs: 100 });
  assert.deepEqual([stopped.state, stopped.verdict.kind], ["CANCELLED", "empty"]);
  assert.match(stopped.proof, /ECHILD|CGROUP|PIDNS/);
  assert.deepEqual(processesWith("sleep 654321"), []);
});

test("kill_is_an_abort_and_other_signals_are_sent", async () => {
  const run = await kennel.spawn("sh", ["-c", "trap 'echo got' USR1; echo up; while :; do sleep 0.1; done"]);
  await run.waitForOutput("up");
  await run.kill("SIGUSR1");
  assert.equal((await run.waitForOutput(/^g(o)t$/)).groups[0].text, "o");
  await run.kill("SIGKILL");
  assert.equal((await run.wait()).signal, "SIGKILL");
  assert.equal(run.state, "CANCELLED");
});

test("ready_reports_readiness_or_the_end", async () => {
  const run = await kennel.spawn("sh", ["-c", "echo listening; sleep 600"], { ready: { line: "listening" } });
  assert.equal(await run.ready(), "readiness");
  await run.abort();
  const early = await kennel.spawn("true", { ready: { line: "never" } });
  await assert.rejects(early.ready(), reason("NOT_READY"));
});

test("runs_are_found_by_label_and_annotated_by_version", async () => {
  const run = await kennel.spawn("sleep", ["600"], { labels: { app: "nb" }, name: "note" });
  await run.annotate({ port: "8888", extra: "x" });
  const [found, ...others] = await kennel.find("app=nb").all();
  assert.deepEqual([found.id, found.annotations.port, others.length], [run.id, "8888", 0]);
  const version = found.info.annotationsVersion;
  await run.annotate({ extra: undefined }, { version });
  await assert.rejects(run.annotate({ port: "1" }, { version }), reason("ANNOTATIONS_CHANGED"));
  const named = await kennel.get("note");
  assert.deepEqual([named.id, named.annotations], [run.id, { port: "8888" }]);
  await run.abort();
  assert.deepEqual(await kennel.find("app=nb").all(), []);
  assert.equal((await kennel.find({ selector: "app=nb", live: false }).all()).length, 1);
});

test("names_and_keys_make_one_run_of_two_spawns", async () => {
  const options = { name: "single", onNameConflict: "return" };
  const [one, two] = [await kennel.spawn("sleep", ["600"], options), await kennel.spawn("sleep", ["600"], options)];
  assert.equal(two.id, one.id);
  await assert.rejects(kennel.spawn("sleep", ["600"], { name: "single" }), reason("NAME_TAKEN"));
  await one.abort();
  const first = await kennel.spawn("true", [], { key: "job 7" });
  assert.equal((await kennel.spawn("true", [], { key: "job 7" })).id, first.id);
});

test("selection_is_acted_upon_once_for_each_run", async () => {
  for (let i = 0; i < 3; i += 1) await kennel.spawn("sleep", ["600"], { labels: { set: "each" } });
  const dry = await kennel.forEach("set=each", { abort: { graceMs: 0 } }, { dryRun: true });
  assert.deepEqual(
    dry.outcomes.map(({ outcome }) => outcome),
    ["WOULD", "WOULD", "WOULD"],
  );
  const done = await kennel.forEach("set=each", { abort: { graceMs: 0 } }, { selection: dry.selection });
  assert.deepEqual({ ...done.counts }, { done: 3 });
  await assert.rejects(kennel.forEach({}, "pause"), reason("INVALID_FIELD"));
  await assert.rejects(
    kennel.forEach({ selector: "set=each", live: false }, "remove", { atMost: 2 }),
    reason("TOO_MANY_MATCHES"),
  );
  const removed = await kennel.forEach({ selector: "set=each" }, "remove");
  assert.deepEqual({ ...removed.counts }, { done: 3 });
});

test("restart_continues_output_and_counts_attempts", async () => {
  const run = await kennel.spawn("sh", ["-c", "echo attempt; sleep 600"], { restart: { mode: "always", delayMs: 10 } });
  const attempts = [];
  run.on("attempt", (number) => attempts.push(number));
  const lines = run.lines();
  await lines.next();
  await run.restart({ graceMs: 0 });
  assert.equal((await lines.next()).value.attempt, 2);
  assert.deepEqual([run.attempt, attempts.at(-1)], [2, 2]);
  await run.abort({ graceMs: 0 });
  const again = await run.restart();
  assert.notEqual(again.id, run.id);
  await again.abort({ graceMs: 0 });
});

test("pause_resume_interrupt_and_extend_are_applied", async () => {
  const run = await kennel.spawn("sh", ["-c", "trap 'echo int; exit 5' INT; echo up; while :; do sleep 0.1; done"], {
    timeoutMs: 600_000,
  });
  await run.waitForOutput("up");
  assert.equal((await run.pause()).state, "PAUSED");
  assert.equal((await run.resume()).state, "RUNNING");
  assert.ok((await run.tree()).some(({ name }) => name === "sh"));
  await run.extend(3_600_000);
  assert.equal(await run.interrupt(), "PROCESS_GROUP");
  assert.equal((await run.wait()).code, 5);
});

test("events_of_many_runs_come_once", async () => {
  const labels = { feed: "many" };
  const feed = kennel.events("feed=many");
  const runs = [];
  for (let i = 0; i < 5; i += 1) runs.push(await kennel.spawn("sh", ["-c", "seq 1 1000"], { labels }));
  const bytes = new Map();
  let ended = 0;
  for await (const event of feed) {
    if (event.kind === "output") bytes.set(event.runId, (bytes.get(event.runId) ?? 0) + event.value.data.length);
    if (event.kind === "ended") ended += 1;
    if (ended === 5) break;
  }
  assert.deepEqual([...bytes.values()], Array(5).fill(3893));
});

test("saved_cursor_continues_after_the_events_that_were_given", async () => {
  const run = await kennel.spawn("seq", ["1", "1000"]);
  await run.wait();
  const first = run.events();
  const seqs = [];
  for await (const event of first) {
    seqs.push(event.seq);
    if (event.kind === "streamsClosed") break;
  }
  const later = [];
  for await (const event of run.events({ from: { cursor: first.cursor } }))
    if (event.kind !== "snapshot") later.push(event.seq);
  // A message that was not given whole comes again: each event at least once, and none is skipped.
  assert.ok(later[0] <= seqs.at(-1) + 1n, `${seqs} and ${later}`);
  const all = [];
  for await (const event of run.events()) if (event.kind !== "snapshot") all.push(event.seq);
  assert.deepEqual(later, all.slice(all.indexOf(later[0])));
});

test("duplex_echoes_and_half_closes", async () => {
  const run = await kennel.spawn("cat", { stdin: "pipe" });
  const { readable, writable } = run.duplex();
  const data = randomBytes(1_000_000);
  const writer = writable.getWriter();
  const written = writer.write(data).then(() => writer.close());
  const hash = createHash("sha256");
  for await (const chunk of readable) hash.update(chunk);
  await written;
  assert.equal(hash.digest("hex"), createHash("sha256").update(data).digest("hex"));
});

test("restart_ends_both_directions_of_a_duplex", async () => {
  const run = await kennel.spawn("sh", ["-c", "echo up; exec cat"], {
    stdin: "pipe",
    restart: { mode: "always", delayMs: 10 },
  });
  const { readable, writable } = run.duplex();
  const [reader, writer] = [readable.getReader(), writable.getWriter()];
  writer.closed.catch(() => {});
  assert.equal(Buffer.from((await reader.read()).value).toString(), "up\n");
  await run.restart({ graceMs: 0 });
  await assert.rejects(reader.read(), reason("ATTEMPT_ENDED"));
  await assert.rejects(writer.write(Buffer.from("x")), reason("ATTEMPT_ENDED"));
  const next = run.duplex({ takeOver: true });
  const typed = next.writable.getWriter();
  const answer = next.readable.getReader();
  const echoed = answer.read();
  await typed.write(Buffer.from("again"));
  assert.equal(Buffer.from((await echoed).value).toString(), "again");
  await run.abort({ graceMs: 0 });
});

test("terminal_of_an_ended_run_shows_its_last_screen", async () => {
  const tty = await kennel.pty("sh", ["-c", "echo last words; exit 6"]);
  await tty.closed;
  const again = await tty.run.attach();
  let shown = "";
  again.onData((text) => {
    shown += text;
  });
  const exit = new Promise((done) => again.onExit(done));
  await again.closed;
  assert.match(shown, /last words/);
  assert.deepEqual(await exit, { exitCode: 6, signal: null });
  assert.match((await tty.run.screen()).lines[0].spans[0].text, /last words/);
});

test("terminal_writer_is_taken_and_watchers_are_refused", async () => {
  const tty = await kennel.pty("cat");
  const other = await tty.run.attach();
  assert.deepEqual([tty.isWriter, other.isWriter], [true, false]);
  await other.take();
  await eventually("the writer", () => !tty.isWriter);
  await assert.rejects(tty.write("refused"), reason("NOT_WRITER"));
  await other.write("typed\r");
  await tty.expect(/typed\r\ntyped/);
  await assert.rejects(other.expect("never shown", { timeoutMs: 50 }), reason("DEADLINE_EXCEEDED"));
  await other.detach();
  await tty.run.abort({ graceMs: 0 });
  await assert.rejects(tty.write("late"));
});

test("two_writers_get_a_typed_mismatch_and_another_process_continues", async () => {
  const run = await kennel.spawn("cat", { stdin: "pipe" });
  const write = (input, text) =>
    new Promise((done, failed) => input.write(text, (error) => (error ? failed(error) : done())));
  await write(run.stdin, "one ");
  const other = kennel.handle(run.id).input();
  await write(other, "two ");
  assert.equal(other.accepted, 8n);
  run.stdin.on("error", () => {});
  await assert.rejects(write(run.stdin, "lost"), reason("INPUT_OFFSET_MISMATCH"));
  const shared = [kennel.handle(run.id).input({ shared: true }), kennel.handle(run.id).input({ shared: true })];
  await Promise.all(shared.map((input) => write(input, "both ")));
  other.destroy();
  await new Promise((done) => shared[0].end(done));
  assert.equal(Buffer.concat(await run.stdout.toArray()).toString(), "one two both both ");
});

test("closed_input_is_epipe", async () => {
  const run = await kennel.spawn("sh", ["-c", "exec <&-; echo closed; sleep 600"], { stdin: "pipe" });
  await run.waitForOutput("closed");
  const error = await new Promise((failed) => {
    run.stdin.on("error", failed);
    run.stdin.write("x".repeat(1_000_000));
  });
  assert.deepEqual([error.code, error.reason], ["EPIPE", "INPUT_CLOSED"]);
  await run.abort({ graceMs: 0 });
});

test("unknown_options_are_type_errors", async () => {
  await assert.rejects(kennel.spawn("true", { bogus: 1 }), TypeError);
  await assert.rejects(kennel.spawn("true", { cwd: "/", spec: { cwd: "/tmp" } }), TypeError);
  await assert.rejects(kennel.spawn("true", { spec: { bogus: 1 } }), TypeError);
  await assert.rejects(kennel.spawn("true", { kind: "bogus" }), TypeError);
  const raw = await kennel.spawn("pwd", { spec: { cwd: "/tmp" } });
  assert.equal((await raw.lines().next()).value.text, "/tmp");
});

test("errors_have_reason_code_and_violations", async () => {
  await assert.rejects(kennel.get("01ARZ3NDEKTSV4RRFFQ69G5FAV"), (error) => {
    assert.deepEqual([error.reason, error.code, error.isRetryable], ["RUN_NOT_FOUND", "NOT_FOUND", false]);
    assert.equal(error.runId, "01ARZ3NDEKTSV4RRFFQ69G5FAV");
    return true;
  });
  await assert.rejects(kennel.spawn("true", { cwd: "relative", labels: { "bad key!": "x" } }), (error) => {
    assert.equal(error.reason, "INVALID_FIELD");
    assert.ok(error.violations.length >= 2, JSON.stringify(error.violations));
    return true;
  });
  await assert.rejects(kennel.spawn("no-such-command"), reason("COMMAND_NOT_FOUND"));
});

test("secret_values_are_in_no_text_of_an_error", async () => {
  const secret = "planted-5d2c";
  const { inspect } = await import("node:util");
  const spec = {
    env: { KEY: secret },
    input: secret,
    cwd: "relative",
    secrets: [{ name: "s", source: { case: "value", value: Buffer.from(secret) } }],
  };
  const error = await kennel.spawn("no-such-command", spec).catch((error) => error);
  assert.ok(KennelError.is(error));
  assert.ok(!inspect(error, { depth: 9, showHidden: true }).includes(secret) && !String(error.stack).includes(secret));
});

test("aborted_signal_sends_nothing_and_a_later_one_ends_the_run", async () => {
  const signal = AbortSignal.abort();
  const before = kennel.stats.streams;
  await assert.rejects(kennel.spawn("true", { signal }), { name: "AbortError" });
  assert.equal(kennel.stats.streams, before);
  const own = new AbortController();
  const run = await kennel.spawn("sleep", ["600"], { signal: own.signal });
  own.abort();
  await run.wait();
  assert.equal(run.state, "CANCELLED");
});

test("cancelled_wait_and_late_wait_leave_the_run", async () => {
  const run = await kennel.spawn("sleep", ["600"]);
  const own = new AbortController();
  const waits = run.wait({ signal: own.signal });
  own.abort();
  await assert.rejects(waits, { name: "AbortError" });
  await assert.rejects(run.wait({ timeoutMs: 50 }), reason("DEADLINE_EXCEEDED"));
  assert.equal((await run.refresh()).state, "RUNNING");
  await run[Symbol.asyncDispose]();
  assert.equal((await run.refresh()).state, "CANCELLED");
});

test("consumer_continues_after_what_it_acknowledged", async () => {
  const run = await kennel.spawn("seq", ["1", "10"]);
  await run.wait();
  const seqs = [];
  for await (const event of run.events({ consumer: "c1" })) if (event.kind !== "snapshot") seqs.push(event.seq);
  await run.ack("c1", { seq: seqs[2] });
  const next = [];
  for await (const event of run.events({ consumer: "c1" })) if (event.kind !== "snapshot") next.push(event.seq);
  assert.deepEqual(next, seqs.slice(3));
});

test("removed_run_is_not_found", async () => {
  const run = await kennel.spawn("true");
  await run.wait();
  await run.remove();
  await assert.rejects(run.refresh(), reason("RUN_NOT_FOUND"));
  await assert.rejects(run.remove(), reason("RUN_NOT_FOUND"));
});

test("missing_output_is_an_error_or_a_gap", async () => {
  const output = { maxBytes: 1n << 20n };
  const run = await kennel.spawn("sh", ["-c", "seq 1 1000000"], { output });
  await run.wait();
  await assert.rejects(run.stdout.toArray(), reason("DATA_GAP"));
  const rest = Buffer.concat(await run.output("stdout", { onGap: "skip" }).toArray()).toString();
  assert.ok(rest.endsWith("\n999999\n1000000\n"), rest.slice(-40));
  const kinds = new Set();
  for await (const { kind } of run.events()) kinds.add(kind);
  assert.ok(kinds.has("gap"));
  await assert.rejects(kennel.exec("seq 1 1000000", { output }), reason("DATA_GAP"));
});

test("raw_stubs_repeat_nothing_and_share_the_connection", async () => {
  const { runs } = await kennel.raw.process.listRuns({ pageSize: 1 });
  assert.equal(runs.length, 1);
});

test("states_of_a_newer_server_stay_open_and_are_counted", async () => {
  const inner = (name) => import(new URL(name, import.meta.resolve("@kennel/client")).href);
  const [{ Run }, { create }, { RunSchema }] = await Promise.all([
    inner("./run.js"),
    import("@bufbuild/protobuf"),
    import("@kennel/client/raw"),
  ]);
  const calls = { stats: { unknownValues: 0 } };
  const run = new Run(calls, "x", create(RunSchema, { runId: "x", state: 99 }));
  assert.deepEqual([run.state, run.isLive, run.exit, calls.stats.unknownValues], ["UNKNOWN(99)", true, undefined, 1]);
});

test("closed_client_refuses_calls_and_leaves_runs", async () => {
  const client = await Kennel.connect({ server: `unix:${service.socket}` });
  const run = await client.spawn("sleep", ["600"]);
  const waits = assert.rejects(run.wait(), reason("CLOSED"));
  const reads = assert.rejects(run.stdout.toArray(), reason("CLOSED"));
  await eventually("two streams", () => client.stats.streams === 2);
  await client.close();
  await Promise.all([waits, reads]);
  await assert.rejects(client.spawn("true"), reason("CLOSED"));
  const again = await kennel.get(run.id);
  assert.equal(again.state, "RUNNING");
  await again.abort({ graceMs: 0 });
});

test("idle_client_lets_its_process_end", () => {
  const script = `
    const { Kennel } = require("@kennel/client");
    Kennel.connect({ server: "unix:${service.socket}" }).then(async (kennel) => {
      console.log((await kennel.execFile("echo", ["hi"])).stdout);
    });`;
  const printed = execFileSync(process.execPath, ["-e", script], {
    cwd: import.meta.dirname,
    encoding: "utf8",
    timeout: 60_000,
  });
  assert.equal(printed, "hi\n\n");
});

test("commonjs_gets_the_same_package", () => {
  const required = createRequire(import.meta.url)("@kennel/client");
  assert.equal(required.Kennel, Kennel);
});
