import { Kennel } from "@kennel/client";

await using kennel = await Kennel.connect();
const args = ["-m", "http.server", process.argv[2] ?? "18081", "--bind", "127.0.0.1"];
await using run = await kennel.spawn("python3", args, { ready: { http: Number(args[2]), startTimeoutMs: 20_000 } });
console.log("ready", await run.ready());
