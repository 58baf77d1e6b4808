import { Kennel } from "@kennel/client";

await using kennel = await Kennel.connect();
const run = await kennel.spawn("sh", ["-c", "echo out; echo err >&2; exit 3"]);
for await (const { stream, text } of run.lines()) process[stream].write(`${text}\n`);
console.log("code", (await run.wait())?.code);
