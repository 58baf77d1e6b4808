// What a run is over the loss of servers, connections and answers.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Kennel, KennelError } from "@kennel/client";
import { eventually, linesIn, processesWith, program, Service } from "./harness.mjs";

const reason =
  (...reasons) =>
  (error) =>
    KennelError.is(error, ...reasons);

/** Runs a test with a service of its own. */
function faulty(name, play) {
  test(name, async () => {
    const service = await Service.start();
    try {
      await play(service, await service.client());
    } finally {
      await service.end();
    }
  });
}

/** Writes numbered lines for some seconds, and a line to a file at its start. */
const COUNTER = (file) => `
import sys, time
open(${JSON.stringify(file)}, "a").write("started\\n")
for i in range(20000):
    print("line", i)
    if i % 500 == 0:
        time.sleep(0.1)
`;
const COUNTED = `${Array.from({ length: 20_000 }, (_, i) => `line ${i}`).join("\n")}\n`;

/** Kills the server each time that so many more bytes were read. */
async function readOverKills(service, stream, kills, whole) {
  const parts = [];
  let [bytes, killed] = [0, 0];
  for await (const chunk of stream) {
    parts.push(Buffer.from(chunk));
    bytes += chunk.length;
    while (killed < kills && bytes > ((killed + 1) * whole) / (kills + 1)) {
      killed += 1;
      await service.killServer();
    }
  }
  assert.equal(killed, kills);
  return Buffer.concat(parts).toString();
}

faulty("bytes_come_once_over_20_sigkills_of_the_server", async (service, kennel) => {
  const starts = service.file("starts");
  const run = await kennel.spawn(...program(service, "counter", COUNTER(starts)));
  const text = await readOverKills(service, run.stdout, 20, COUNTED.length);
  assert.equal(text.length, COUNTED.length);
  assert.ok(text === COUNTED);
  assert.equal((await run.wait()).code, 0);
  assert.equal(linesIn(starts), 1);
  assert.ok(kennel.stats.outages > 0 && kennel.stats.resumed > 0, JSON.stringify(kennel.stats));
});

faulty("lines_and_events_come_once_over_sigkills", async (service, kennel) => {
  const run = await kennel.spawn(...program(service, "counter", COUNTER(service.file("starts"))));
  const seqs = [];
  const events = (async () => {
    for await (const { kind, seq } of run.events()) if (kind !== "snapshot") seqs.push(seq);
  })();
  let text = "";
  for await (const line of run.lines()) {
    text += `${line.text}\n`;
    if (/^line (3000|9000|15000)$/.test(line.text)) await service.killServer();
  }
  await events;
  assert.ok(text === COUNTED);
  assert.ok(seqs.every((seq, at) => at === 0 || seq > seqs[at - 1]));
  const undisturbed = [];
  for await (const { kind, seq } of run.events()) if (kind !== "snapshot") undisturbed.push(seq);
  assert.deepEqual(seqs, undisturbed);
});

faulty("each_byte_of_input_is_read_once_over_sigkills", async (service, kennel) => {
  const run = await kennel.spawn("cat", { stdin: "pipe" });
  const data = Buffer.from(COUNTED.repeat(4));
  const read = run.stdout.toArray();
  let written = 0;
  const killed = [];
  for (let at = 0; at < data.length; at += 64 * 1024) {
    if (!run.stdin.write(data.subarray(at, at + 64 * 1024))) await new Promise((done) => run.stdin.once("drain", done));
    written += 1;
    if (written % 4 === 0 && killed.length < 3) {
      killed.push(written);
      await service.killServer();
    }
  }
  run.stdin.end();
  const text = Buffer.concat(await read);
  assert.equal(killed.length, 3);
  assert.equal(text.compare(data), 0);
});

faulty("duplex_continues_over_sigkills", async (service, kennel) => {
  const run = await kennel.spawn("cat", { stdin: "pipe" });
  const { readable, writable } = run.duplex();
  const [reader, writer] = [readable.getReader(), writable.getWriter()];
  let text = "";
  for (let i = 0; i < 5; i += 1) {
    await writer.write(Buffer.from(`message ${i}\n`));
    while (!text.includes(`message ${i}\n`)) text += Buffer.from((await reader.read()).value).toString();
    await service.killServer();
  }
  await writer.close();
  assert.equal((await reader.read()).done, true);
  assert.equal(text, "message 0\nmessage 1\nmessage 2\nmessage 3\nmessage 4\n");
});

faulty("terminal_types_and_shows_once_over_sigkills", async (service, kennel) => {
  const tty = await kennel.pty("cat");
  let shown = "";
  tty.onData((text) => {
    shown += text;
  });
  for (let i = 0; i < 5; i += 1) {
    const writes = Array.from({ length: 4 }, (_, j) => tty.write(`key ${i}.${j}\r`));
    await service.killServer();
    await Promise.all(writes);
  }
  // Each line is shown twice: by the terminal as it is typed, and by the command.
  const keys = Array.from({ length: 20 }, (_, i) => `key ${Math.floor(i / 4)}.${i % 4}`);
  await tty.expect(/key 4\.3[\s\S]*key 4\.3/);
  for (const key of keys) assert.equal(shown.split(key).length - 1, 2, `${key} in ${JSON.stringify(shown)}`);
  tty.resize(99, 33);
  await eventually("the size", () => tty.size.cols === 99);
  await tty.write("\x04");
  await tty.closed;
  assert.deepEqual([tty.exit.code, tty.run.pid > 0], [0, true]);
});

faulty("lost_answers_make_nothing_twice", async (service) => {
  const relay = await service.relay();
  const kennel = await service.client({ server: `unix:${relay.path}` });
  const lose = async (call) => {
    const lost = relay.loseAnswer();
    const answer = call();
    await lost;
    return await answer;
  };
  await kennel.find().all();
  const starts = service.file("starts");
  const signals = service.file("signals");
  const script = `echo x >>${starts}; trap 'echo x >>${signals}' USR1 INT; cat >${service.file("input")} & while :; do sleep 0.05; done`;
  const run = await lose(() =>
    kennel.spawn("bash", ["-c", `exec 3<&0; ${script.replace("cat", "cat <&3")}`], {
      stdin: "pipe",
      restart: { mode: "always", delayMs: 10 },
    }),
  );
  await eventually("a start", () => linesIn(starts) === 1);
  await eventually("the trap", () => processesWith("sleep 0.05").length > 0);
  await lose(() => run.signal("SIGUSR1"));
  await eventually("a signal", () => linesIn(signals) === 1);
  await lose(() => run.interrupt());
  await eventually("an interrupt", () => linesIn(signals) === 2);
  await lose(() => run.annotate({ a: "1" }));
  await run.refresh();
  assert.deepEqual([run.annotations.a, run.info.annotationsVersion], ["1", 1n]);
  await lose(() => run.pause());
  assert.equal(run.state, "PAUSED");
  await lose(() => run.resume());
  await lose(
    () => new Promise((done, failed) => run.stdin.write("once\n", (error) => (error ? failed(error) : done()))),
  );
  await lose(() => new Promise((done) => run.stdin.end(done)));
  await eventually("the input", () => linesIn(service.file("input")) === 1);
  // Restart reads the attempt first: the answer of the second call is lost.
  await run.refresh();
  const restarted = run.restart({ graceMs: 0 });
  await restarted;
  assert.equal(run.attempt, 2);
  await eventually("another start", () => linesIn(starts) === 2);
  for await (const event of run.events({ consumer: "c" })) if (event.kind === "started") break;
  await lose(() => run.ack("c", { seq: 1n }));
  const stopped = await lose(() => run.abort({ graceMs: 0 }));
  assert.equal(stopped.verdict.kind, "empty");
  await lose(() => run.remove());
  await assert.rejects(run.refresh(), reason("RUN_NOT_FOUND"));
  assert.deepEqual([linesIn(starts), linesIn(signals)], [2, 2]);
  assert.ok(kennel.stats.repeats >= 10, JSON.stringify(kennel.stats));
});

faulty("spawn_that_is_cancelled_before_its_answer_never_runs_on", async (service) => {
  const relay = await service.relay();
  const kennel = await service.client({ server: `unix:${relay.path}` });
  const own = new AbortController();
  const { held, release } = relay.hold();
  const runId = "01M8N3V49YAGA09VJW7DSRFG43";
  const { ulid } = await idsNow();
  const spawned = kennel.spawn("sleep", ["754321"], { signal: own.signal, runId: ulid });
  await held;
  own.abort();
  await assert.rejects(spawned, { name: "AbortError" });
  release();
  const direct = await service.client();
  const run = direct.handle(ulid);
  await eventually("the end", async () => {
    const view = await run
      .refresh()
      .catch((error) => (KennelError.is(error, "RUN_NOT_FOUND") ? undefined : Promise.reject(error)));
    return view && !view.isLive;
  });
  assert.deepEqual(processesWith("sleep 754321"), []);
  assert.notEqual(runId, ulid);
});

faulty("thousand_waits_send_one_probe_at_a_time", async (service, kennel) => {
  const run = await kennel.spawn("sleep", ["600"]);
  const waits = Array.from({ length: 1_000 }, () => run.wait());
  await eventually("a thousand waits", () => kennel.stats.streams === 1_000);
  await service.killServer();
  await eventually("all again", () => kennel.stats.streams === 1_000 && kennel.stats.resumed > 0);
  assert.ok(kennel.stats.probes <= 20, `${kennel.stats.probes} probes`);
  await run.abort({ graceMs: 0 });
  const exits = await Promise.all(waits);
  assert.ok(exits.every(({ signal }) => signal === "SIGKILL" || signal === "SIGTERM"));
});

faulty("abort_passes_a_thousand_streams", async (_, kennel) => {
  const run = await kennel.spawn("sh", ["-c", "while :; do echo line; sleep 0.2; done"]);
  const feeds = Array.from({ length: 1_100 }, () => run.events());
  const ends = feeds.map(async (feed) => {
    let last;
    for await (const { kind } of feed) last = kind;
    return last;
  });
  await eventually("1,100 streams", () => kennel.stats.streams >= 1_100);
  assert.equal((await run.abort({ graceMs: 100 })).verdict.kind, "empty");
  assert.deepEqual(new Set(await Promise.all(ends)), new Set(["ended"]));
});

faulty("thousand_runs_of_one_client_end_as_they_should", async (_, kennel) => {
  const results = await Promise.all(
    Array.from({ length: 1_000 }, async (_, i) => {
      const run = await kennel.spawn("sh", ["-c", `echo ${i}`]);
      const text = Buffer.concat(await run.stdout.toArray()).toString();
      return text === `${i}\n` && (await run.wait()).code === 0;
    }),
  );
  assert.equal(results.filter(Boolean).length, 1_000);
  await eventually("no stream is open", () => kennel.stats.streams === 0);
});

faulty("reader_that_stops_holds_up_no_other_and_little_memory", async (_, kennel) => {
  const output = { maxBytes: 1n << 30n };
  const size = 100_000_000;
  const run = await kennel.spawn("sh", ["-c", `head -c ${size} /dev/zero; echo end >&2; sleep 600`], { output });
  const stopped = run.output("stdout");
  await new Promise((done) => stopped.once("readable", done));
  stopped.read(1);
  // stderr is never read here, and the command is not held up by that.
  await run.waitForOutput("end", { streams: ["stderr"] });
  globalThis.gc?.();
  const before = process.memoryUsage().rss;
  const others = Array.from({ length: 20 }, () => run.output("stdout"));
  for (const other of others) await new Promise((done) => other.once("readable", done));
  let bytes = 0;
  for await (const chunk of run.stdout) {
    bytes += chunk.length;
    if (bytes === size) break;
  }
  const grown = process.memoryUsage().rss - before;
  for (const other of [...others, stopped]) other.destroy();
  assert.equal(bytes, size);
  // Twenty windows of 1 MiB, and the pieces of the reader that has read all.
  assert.ok(grown < 150 * 1024 * 1024, `${Math.round(grown / 1024)} KiB more`);
  await run.abort({ graceMs: 0 });
  await eventually("no stream is open", () => kennel.stats.streams === 0);
});

faulty("patience_ends_as_server_lost_or_service_ended", async (service) => {
  const relay = await service.relay();
  const kennel = await service.client({ server: `unix:${relay.path}`, patience: 300 });
  const run = await kennel.spawn("sleep", ["600"]);
  const waits = run.wait();
  await eventually("a wait", () => kennel.stats.streams === 1);
  service.keeper.kill("SIGKILL");
  // A server that loses its keeper says so, if it has the time.
  await assert.rejects(waits, reason("SERVER_LOST", "SERVICE_ENDED", "NODE_DRAINING"));
  relay.end();
  await assert.rejects(kennel.find().all(), reason("SERVICE_ENDED"));
  const none = await Kennel.connect({ server: `unix:${service.socket}` }).then(
    () => undefined,
    (error) => error,
  );
  assert.ok(KennelError.is(none, "CONNECT_FAILED"), String(none));
});

faulty("client_waits_for_the_next_service", async (service, kennel) => {
  const run = await kennel.spawn("sleep", ["600"]);
  const waits = run.wait();
  const gone = new Promise((done) => service.keeper.once("exit", done));
  const [lost, resumed] = [
    new Promise((done) => run.once("lost", done)),
    new Promise((done) => run.once("resumed", done)),
  ];
  await eventually("a wait", () => kennel.stats.streams === 1);
  service.keeper.kill("SIGKILL");
  await gone;
  await lost;
  await service.startKeeper();
  const exit = await waits;
  await resumed;
  assert.ok(["CANCELLED", "LOST", "FAILED"].includes(run.state), run.state);
  assert.equal(exit.code, null);
});

faulty("patience_zero_repeats_nothing", async (service) => {
  const relay = await service.relay();
  const kennel = await service.client({ server: `unix:${relay.path}`, patience: 0 });
  await kennel.find().all();
  const lost = relay.loseAnswer();
  const call = kennel.find().all();
  await lost;
  await assert.rejects(call, reason("SERVER_LOST"));
});

test("local_server_ends_with_its_user_and_leaves_nothing", async () => {
  const script = `
    import { Kennel } from "@kennel/client";
    const kennel = await Kennel.local();
    await kennel.spawn("sleep", ["854321"]);
    console.log(kennel.local.directory);
    setInterval(() => {}, 1000);`;
  const user = spawn(process.execPath, ["--input-type=module", "-e", script], {
    cwd: import.meta.dirname,
    stdio: ["ignore", "pipe", "inherit"],
  });
  let directory = "";
  user.stdout.on("data", (text) => {
    directory += text;
  });
  await eventually("a local server", () => directory.endsWith("\n"));
  assert.ok(processesWith("sleep 854321").length > 0);
  user.kill("SIGKILL");
  await eventually(
    "nothing is left",
    () => processesWith(directory.trim()).length === 0 && processesWith("sleep 854321").length === 0,
  );
  await eventually("no directory", () => {
    try {
      readFileSync(`${directory.trim()}/log`);
      return false;
    } catch {
      return true;
    }
  });
});

test("calls_end_at_once_where_a_local_server_has_died", async () => {
  // Only the server's end can end this wait: its patience is longer than any test.
  const kennel = await Kennel.local({ patience: 3_600_000 });
  try {
    const waits = Promise.all(Array.from({ length: 10 }, async () => (await kennel.spawn("sleep", ["600"])).wait()));
    await eventually("ten waits", () => kennel.stats.streams >= 10);
    const keepers = processesWith(`serve --data-dir ${kennel.local.directory}`);
    for (const pid of keepers) process.kill(Number(pid), "SIGKILL");
    await assert.rejects(waits, reason("SERVICE_ENDED"));
    await assert.rejects(kennel.find().all(), reason("SERVICE_ENDED"));
  } finally {
    await kennel.close();
  }
});

test("local_server_ends_at_close_and_its_absence_is_typed", async () => {
  const kennel = await Kennel.local();
  const run = await kennel.spawn("sleep", ["954321"]);
  const { pid, directory } = kennel.local;
  await kennel.close();
  assert.deepEqual([processesWith("sleep 954321"), processesWith(directory)], [[], []]);
  assert.ok(run.id && pid > 0);
  await assert.rejects(Kennel.local({ binary: "/no/such/kennel" }), reason("BINARY_NOT_FOUND"));
  await assert.rejects(Kennel.local({ binary: "/bin/false" }), reason("SERVICE_ENDED"));
});

/** Returns an id of a run of now. */
async function idsNow() {
  const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  let [value, text] = [BigInt(Date.now()) << 80n, ""];
  for (let shift = 125n; shift >= 0n; shift -= 5n) text += digits[Number((value >> shift) & 31n)];
  return { ulid: text };
}
