// A command that is run to its end, and what it wrote.

import { KennelError } from "./errors.js";
import { DEFAULTS } from "./gen/rules.js";
import { HeadTail } from "./output.js";
import type { Run } from "./run.js";
import type { SpawnOptions } from "./spec.js";

/** Bytes that one ReadOutput returns at most. */
const READ_BYTES = 1024 * 1024;
/** Longest standard input that a spec has. */
const INPUT_BYTES_MAX = 1024 * 1024;

/** Result of a command that has ended. */
export interface CompletedRun {
  /** Id of the run. */
  readonly id: string;
  /** Exit code; `null`: a signal ended the command, or its exit is not known. */
  readonly exitCode: number | null;
  /** Name of the signal that ended the command. */
  readonly signalCode: string | null;
  /** Standard output: text, or bytes with `encoding: "buffer"`. */
  readonly stdout: string;
  /** Standard error. */
  readonly stderr: string;
  /** Bytes of each stream that are missing between its head and its tail. */
  readonly omitted: { readonly stdout: bigint; readonly stderr: bigint };
  /** Final state, such as `SUCCEEDED`. */
  readonly state: string;
  /** Why the run has ended, such as `exited`. */
  readonly endReason: string | undefined;
  /** What is known of its processes. */
  readonly verdict: Run["verdict"];
}

/** Result of a command whose output is wanted as bytes. */
export interface CompletedRunBytes extends Omit<CompletedRun, "stdout" | "stderr"> {
  /** Standard output. */
  readonly stdout: Buffer;
  /** Standard error. */
  readonly stderr: Buffer;
}

/** Settings of a command that is run to its end. */
export interface ExecOptions extends SpawnOptions {
  /** Bytes of each stream that are held, head and tail. Default: 16 MiB. */
  maxOutput?: number;
  /** `buffer`: output as bytes. Default: text. */
  encoding?: "utf8" | "buffer";
  /** Missing output beyond `maxOutput`'s bound: an error (default), or counted in `omitted`. */
  onGap?: "error" | "skip";
}

/** Runs a command to its end. */
export async function execute(
  spawn: (words: readonly string[], options: SpawnOptions) => Promise<Run>,
  words: readonly string[],
  options: ExecOptions,
): Promise<CompletedRun | CompletedRunBytes> {
  const { maxOutput = DEFAULTS.max_output_bytes, encoding = "utf8", onGap = "error", input, ...rest } = options;
  const bytes = typeof input === "string" ? new TextEncoder().encode(input) : input;
  const isLong = bytes !== undefined && bytes.length > INPUT_BYTES_MAX;
  const run = await spawn(words, isLong ? { ...rest, stdin: "pipe" } : { ...rest, input });
  const { signal } = options;
  await Promise.all([run.wait({ signal }), isLong ? feedInput(run, bytes) : undefined]);
  const [stdout, stderr] = [
    await readWhole(run, "stdout", maxOutput, onGap, signal),
    await readWhole(run, "stderr", maxOutput, onGap, signal),
  ];
  const { id, exitCode, signalCode, state = "", endReason, verdict } = run;
  const omitted = { stdout: stdout.omitted, stderr: stderr.omitted };
  const result = { id, exitCode, signalCode, omitted, state, endReason, verdict };
  const [out, err] = [stdout.bytes(), stderr.bytes()];
  if (encoding === "buffer") return { ...result, stdout: out, stderr: err };
  return { ...result, stdout: out.toString("utf8"), stderr: err.toString("utf8") };
}

/** Writes a long input. A command that reads no more has had what it wanted. */
async function feedInput(run: Run, bytes: Uint8Array): Promise<void> {
  await new Promise<void>((done, failed) => {
    const stdin = run.stdin;
    stdin.on("error", (error: Error) => ((error as KennelError).code === "EPIPE" ? done() : failed(error)));
    stdin.on("finish", done);
    stdin.end(bytes);
  });
}

/** Reads a stream of an ended run: its head and its tail, where it is longer than the bound. */
async function readWhole(
  run: Run,
  stream: "stdout" | "stderr",
  most: number,
  onGap: "error" | "skip",
  signal: AbortSignal | undefined,
): Promise<HeadTail> {
  const held = new HeadTail(most);
  const half = BigInt(Math.ceil(most / 2));
  let offset = 0n;
  for (;;) {
    const read = await run.readOutput(stream, { offset, bytesMax: READ_BYTES, signal });
    for (const { part } of read.parts) {
      if (part.case === "data") held.add(Buffer.from(part.value));
      else if (part.case === "removedBytes" || part.case === "damagedBytes") {
        if (onGap === "error")
          throw new KennelError("DATA_GAP", `${part.value} bytes of ${stream} are no longer kept`, {
            code: "DATA_LOSS",
            runId: run.id,
          });
        held.omitted += part.value;
      }
    }
    if (read.nextOffset <= offset || read.nextOffset >= read.endOffset) return held;
    offset = read.nextOffset;
    // What would be dropped is not read.
    const tail = read.endOffset - (BigInt(most) - half);
    if (offset >= half && offset < tail) {
      held.omitted += tail - offset;
      offset = tail;
    }
  }
}
