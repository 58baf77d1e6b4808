// Which server is called, with which credentials, and what shows where that fails.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as listen } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { addressText, Kennel, KennelError, resolveTarget } from "@kennel/client";
import { BINARY, eventually, Service } from "./harness.mjs";

const reason =
  (...reasons) =>
  (error) =>
    KennelError.is(error, ...reasons);
let dir;
before(() => {
  dir = mkdtempSync(join(tmpdir(), "kennel-target-"));
  mkdirSync(join(dir, "kennel"));
});
after(() => rmSync(dir, { recursive: true }));

const context = (name) => `
[context.${name}]
server = "tcp://${name}:1"
ca = "/${name}/ca"
certificate = "/${name}/cert"
key = "/${name}/key"
token_file = "/${name}/token"
`;

function resolved(options, env, isRoot = true) {
  const { address, credentials, node } = resolveTarget(options, { env: { XDG_CONFIG_HOME: dir, ...env }, isRoot });
  const { caFile = "", certFile = "", keyFile = "", tokenFile = "" } = credentials;
  return [addressText(address), caFile, certFile, keyFile, tokenFile, node ?? ""].join(" ").trimEnd();
}

test("options_win_over_variables_and_variables_over_contexts", () => {
  writeFileSync(join(dir, "kennel/contexts.toml"), `current = "prod"\n${context("prod")}${context("test")}`);
  const ca = { KENNEL_TLS_CA: "/v/ca" };
  const prod = "tcp://prod:1 /prod/ca /prod/cert /prod/key /prod/token";
  const other = "tcp://test:1 /test/ca /test/cert /test/key /test/token";
  for (const [options, env, expected] of [
    [{}, {}, prod],
    [{}, { ...ca, KENNEL_TOKEN_FILE: "/v/token" }, "tcp://prod:1 /v/ca /prod/cert /prod/key /v/token"],
    [{ caFile: "/f/ca" }, ca, "tcp://prod:1 /f/ca /prod/cert /prod/key /prod/token"],
    [{}, { ...ca, KENNEL_SERVER: "tcp://v:1" }, "tcp://v:1 /v/ca"],
    [{}, { ...ca, KENNEL_CONTEXT: "test" }, "tcp://test:1 /v/ca /test/cert /test/key /test/token"],
    [{ context: "test" }, ca, other],
    [{ context: "test" }, { KENNEL_SERVER: "tcp://v:1" }, other],
    [{ context: "default" }, ca, "unix:/run/kennel/kennel.sock"],
    [{ server: "unix:/s" }, ca, "unix:/s"],
    [{ server: "unix:///s/./t//u" }, {}, "unix:/s/t/u"],
    [{ server: "tcp://f:1" }, {}, "tcp://f:1"],
    [{ server: "tcp:[0:0::1]:7443" }, {}, "tcp://[::1]:7443"],
    [{ server: "unix:/s" }, { KENNEL_TOKEN_FILE: "/v/t", KENNEL_RUN_TOKEN_FILE: "/r/t" }, "unix:/s    /r/t"],
    [{ server: "tcp://f:1" }, { KENNEL_RUN_TOKEN_FILE: "/r/t", KENNEL_NODE: "n7" }, "tcp://f:1     n7"],
    [{ context: "prod", node: "n8" }, { KENNEL_NODE: "n7" }, `${prod} n8`],
    [{}, { KENNEL_SERVER: "", KENNEL_CONTEXT: "" }, prod],
  ]) {
    assert.equal(resolved(options, env), expected, JSON.stringify([options, env]));
  }
});

test("default_socket_follows_the_user", () => {
  rmSync(join(dir, "kennel/contexts.toml"), { force: true });
  assert.equal(resolved({}, {}), "unix:/run/kennel/kennel.sock");
  assert.equal(resolved({}, { XDG_RUNTIME_DIR: "/run/user/7" }, false), "unix:/run/user/7/kennel/kennel.sock");
  assert.equal(resolved({}, { XDG_STATE_HOME: "/state" }, false), "unix:/state/kennel/kennel.sock");
  const relative = { XDG_RUNTIME_DIR: "run", XDG_STATE_HOME: "state", HOME: "/home/u" };
  assert.equal(resolved({}, relative, false), "unix:/home/u/.local/state/kennel/kennel.sock");
});

test("unusable_settings_are_configuration_errors", () => {
  const file = join(dir, "kennel/contexts.toml");
  writeFileSync(file, context("prod"));
  for (const [options, env, said] of [
    [{ context: "nowhere" }, {}, 'there is no context "nowhere"'],
    [{ server: "unix:/s", caFile: "/x" }, {}, "a unix socket takes neither"],
    [{ context: "default", caFile: "/x" }, {}, "none is named"],
    [{ server: "tcp://x" }, {}, "is not an address"],
    [{ server: "tcp://x:0" }, {}, "is not an address"],
    [{ server: "tcp://::1:1" }, {}, "is not an address"],
    [{ server: "tcp://u@x:1" }, {}, "is not an address"],
    [{ server: "/a/b" }, {}, "is not an address"],
    [{ server: `unix:/${"a".repeat(107)}` }, {}, "longer than 107 bytes"],
    [{ server: "tcp://f:1", certFile: "/f/cert" }, {}, "together"],
    [{}, { KENNEL_SERVER: "unix:/s", KENNEL_CONTEXT: "prod" }, "are both set"],
    [{}, { KENNEL_SERVER: "unix:/s", KENNEL_SERVER_USER: "me" }, "is not the number of a user"],
  ]) {
    const says = (error) => KennelError.is(error, "CONFIGURATION") && error.message.includes(said);
    assert.throws(() => resolved(options, env), says, JSON.stringify([options, env]));
  }
  for (const text of ["bogus = 1", "[context.a]\nserver = 'tcp://a:1'\nfile = 'x'", "[context.a]\nca = '/x'", "= 1"]) {
    writeFileSync(file, text);
    const names = (error) => KennelError.is(error, "CONFIGURATION") && error.message.includes("contexts.toml");
    assert.throws(() => resolved({}, {}), names, text);
  }
});

test("servers_that_cannot_be_trusted_or_reached_are_typed", async () => {
  const shared = join(dir, "shared");
  mkdirSync(shared);
  const socket = join(shared, "s.sock");
  const server = listen().listen(socket);
  await new Promise((done) => server.once("listening", done));
  chmodSync(shared, 0o777);
  await assert.rejects(Kennel.connect({ server: `unix:${socket}` }), reason("FOREIGN_SERVER"));
  server.close();
  await assert.rejects(Kennel.connect({ server: `unix:${join(dir, "none.sock")}` }), reason("CONNECT_FAILED"));
  const web = createServer((_, answer) => answer.end("hello")).listen(0, "127.0.0.1");
  await new Promise((done) => web.once("listening", done));
  const plain = Kennel.connect({ server: `tcp://127.0.0.1:${web.address().port}` });
  await assert.rejects(plain, reason("CONNECT_FAILED", "NOT_KENNEL", "UNTRUSTED_SERVER"));
  web.close();
});

test("network_servers_are_called_with_certificate_or_token", async () => {
  const certs = join(dir, "certs");
  const make = (...args) =>
    execFileSync(BINARY, ["certs", ...args], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  make("init", certs);
  const entries = [
    make("server", certs, "localhost", "::1"),
    make("client", certs, "alice"),
    make("token", certs, "ci"),
  ];
  const access = join(dir, "access.toml");
  writeFileSync(access, entries.join("\n"), { mode: 0o600 });
  const service = new Service();
  const port = 20_000 + (process.pid % 20_000);
  service.args = ["--listen", `tcp:127.0.0.1:${port}`, "--listen", `tcp:[::1]:${port}`, "--access", access];
  await service.startKeeper();
  try {
    const at = { server: `tcp://localhost:${port}`, caFile: join(certs, "ca.pem") };
    const pair = { certFile: join(certs, "alice.pem"), keyFile: join(certs, "alice-key.pem") };
    await eventually("a port", () =>
      Kennel.connect({ ...at, ...pair }).then(
        (kennel) => kennel.close().then(() => true),
        () => false,
      ),
    );
    const byCertificate = await service.client({ ...at, ...pair });
    const run = await byCertificate.spawn("echo", ["by certificate"]);
    assert.equal(Buffer.concat(await run.stdout.toArray()).toString(), "by certificate\n");
    assert.equal((await run.refresh()).info.owner, "spiffe://kennel/alice");
    const byAddress = await service.client({ ...at, ...pair, server: `tcp://[0:0::1]:${port}` });
    assert.equal((await byAddress.get(run.id)).id, run.id);
    const tokenFile = join(dir, "token");
    copyFileSync(join(certs, "ci.token"), tokenFile);
    const byToken = await service.client({ ...at, tokenFile });
    const waits = (await byToken.spawn("sleep", ["600"], { labels: { a: "b" } })).wait();
    // While the file is being replaced its last content is used.
    renameSync(tokenFile, `${tokenFile}.old`);
    const [found] = await byToken.find("a=b").all();
    assert.equal(found.info.owner, "token:ci");
    await service.killServer();
    await found.abort({ graceMs: 0 });
    assert.equal((await waits).signal, "SIGKILL");
    for (const [options, wanted] of [
      [at, ["UNAUTHENTICATED"]],
      [{ ...at, token: "planted-wrong-token" }, ["UNAUTHENTICATED"]],
      [{ ...at, ...pair, caFile: undefined }, ["UNTRUSTED_SERVER"]],
      [{ ...at, ...pair, serverName: "other.example" }, ["UNTRUSTED_SERVER"]],
      [{ ...at, ...pair, caFile: join(dir, "no-file") }, ["CONFIGURATION"]],
    ]) {
      const error = await Kennel.connect(options).then(
        () => undefined,
        (error) => error,
      );
      assert.ok(KennelError.is(error, ...wanted), `${JSON.stringify(options)}: ${error?.reason} ${error?.message}`);
      assert.ok(!String(error.stack).includes("planted"));
    }
  } finally {
    await service.end();
  }
});

test("client_in_another_process_finds_the_server_by_its_variables", async () => {
  const service = await Service.start();
  try {
    const script = `
      import { Kennel } from "@kennel/client";
      const kennel = await Kennel.connect();
      process.stdout.write((await kennel.execFile("echo", ["found"])).stdout);
      await kennel.close();`;
    const env = { ...process.env, KENNEL_SERVER: `unix:${service.socket}` };
    const file = service.file("find.mjs");
    writeFileSync(file, script.replace("@kennel/client", import.meta.resolve("@kennel/client")));
    const child = spawn(process.execPath, [file], { env, stdio: ["ignore", "pipe", "inherit"] });
    let printed = "";
    child.stdout.on("data", (text) => {
      printed += text;
    });
    await new Promise((done) => child.once("exit", done));
    assert.equal(printed, "found\n");
  } finally {
    await service.end();
  }
});
