import { Kennel } from "@kennel/client";

await using kennel = await Kennel.connect();
const run = await kennel.spawn("sh", [
  "-c",
  "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); sleep 0.02; done",
]);
let lines = 0;
for await (const _ of run.lines()) lines += 1;
console.log(lines, "lines");
