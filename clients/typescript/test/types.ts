// Types as a strict program sees them; it is compiled, and never run.

import { type CompletedRun, type Exit, Kennel, KennelError, type Reason, type Run } from "@kennel/client";
import { RunState } from "@kennel/client/raw";

async function use(): Promise<void> {
  await using kennel = await Kennel.connect({ server: "unix:/run/kennel/kennel.sock", patience: 1_000 });
  const done: CompletedRun = await kennel.execFile("make", ["all"], { cwd: "/src" });
  const text: string = done.stdout;
  const bytes: Buffer = (await kennel.exec("make", { encoding: "buffer" })).stdout;
  const run: Run = await kennel.spawn("sleep", { labels: { app: "web" }, ready: { http: 8080 } });
  const exit: Exit | undefined = await run.wait();
  for await (const line of run.lines()) console.log(line.text.length, line.offset > 0n);
  for await (const value of run.jsonLines<{ id: number }>()) console.log(value.id.toFixed());
  for await (const event of run.events()) {
    if (event.kind === "output") console.log(event.value.data.byteLength, event.seq + 1n);
    else if (event.kind === "leaderExited") console.log(event.value.exit?.coreDumped);
  }
  run.on("exit", (code, signal) => console.log(code?.toFixed(), signal?.length));
  console.log(text, bytes, exit?.code, run.info?.state === RunState.RUNNING);
  // @ts-expect-error: an option that is misspelt.
  await kennel.spawn("true", { label: {} });
}

use().catch((error: unknown) => {
  if (!KennelError.is(error, "RUN_NOT_FOUND")) throw error;
  const reason: Reason = error.reason;
  console.log(reason, error.violations[0]?.field, error.retryAfter);
});
