// The six everyday programs of examples/, run as they are.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import { Service } from "./harness.mjs";

/** Bun runs TypeScript with `await using` as it is, and so does Node from 24 on. */
const skip = !process.versions.bun && Number(process.versions.node.split(".")[0]) < 24;

let service;
before(async () => {
  service = await Service.start();
});
after(() => service.end());

const port = `${20_000 + (process.pid % 20_000)}`;
for (const [name, expected, ...args] of [
  ["run", /^(out\nerr|err\nout)\ncode 3\n$/],
  ["ready", /^ready http\n$/, port],
  ["resume", /^100 lines\n$/],
  ["kill", /^(CGROUP_AND_)?ECHILD\n$/],
  ["annotate", /^port 8888\n$/],
  ["tty", /^code 5\n$/],
]) {
  test(`example_${name}_does_as_it_says`, { skip }, async () => {
    const env = { ...process.env, KENNEL_SERVER: `unix:${service.socket}` };
    const file = new URL(`../examples/${name}.ts`, import.meta.url).pathname;
    const child = spawn(process.execPath, [file, ...args], { env, stdio: ["ignore", "pipe", "pipe"] });
    let printed = "";
    for (const stream of [child.stdout, child.stderr])
      stream.on("data", (text) => {
        printed += text;
      });
    await new Promise((done) => child.once("close", done));
    assert.match(printed, expected);
  });
}
