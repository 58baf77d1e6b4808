import { Kennel } from "@kennel/client";

await using kennel = await Kennel.connect();
const run = await kennel.spawn("sh", ["-c", "trap '' TERM; sleep 100 & setsid sleep 100 & wait; sleep 100"]);
console.log((await run.abort({ graceMs: 200 })).proof);
