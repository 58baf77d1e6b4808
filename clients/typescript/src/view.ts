// Values of the contract in the forms of this language.

import { create, type DescEnum } from "@bufbuild/protobuf";
import { type Duration, DurationSchema, type Timestamp } from "@bufbuild/protobuf/wkt";
import { KennelError } from "./errors.js";
import type { Exit as ExitMessage, Run as RunMessage } from "./gen/kennel/v1/run_pb.js";
import { EmptyProofSchema, type RunState, RunStateSchema } from "./gen/kennel/v1/run_pb.js";
import { LIVE_STATES } from "./gen/rules.js";

const LIVE = new Set<string>(LIVE_STATES);

/**
 * Returns the name of a value without the prefix of its enum; of a value that this version does not know `UNKNOWN(n)`.
 */
export function enumName(schema: DescEnum, value: number): string {
  return schema.value[value]?.localName ?? `UNKNOWN(${value})`;
}

/** Returns the value of a name, in upper or lower case, with `-` or `_`. */
export function enumValue(schema: DescEnum, name: string): number {
  const wanted = name.toUpperCase().replaceAll("-", "_");
  const found = schema.values.find((value) => value.localName === wanted && value.number !== 0);
  if (!found) throw new TypeError(`${name} is no value of ${schema.name}`);
  return found.number;
}

/** Returns a time in milliseconds as a message. */
export function duration(ms: number): Duration {
  if (!Number.isFinite(ms) || ms < 0) throw new TypeError(`${ms} is no time in milliseconds`);
  const seconds = Math.floor(ms / 1000);
  return create(DurationSchema, { seconds: BigInt(seconds), nanos: Math.round((ms - seconds * 1000) * 1e6) });
}

/** Returns a message as a time in milliseconds. */
export function milliseconds(value: Duration): number {
  return Number(value.seconds) * 1000 + value.nanos / 1e6;
}

/** Returns a point in time in nanoseconds since 1970. */
export function nanos(time: Timestamp): bigint {
  return time.seconds * 1_000_000_000n + BigInt(time.nanos);
}

/** How a command has exited. */
export interface Exit {
  /** Exit code; `null`: a signal ended the command, it has not exited, or its exit is not known. */
  readonly code: number | null;
  /** Name of the signal that ended the command; `null`: none did. */
  readonly signal: string | null;
  /** False: the command has exited, and the record of how is lost. */
  readonly isKnown: boolean;
  /** Whether the command has left a core file. */
  readonly coreDumped: boolean;
}

/** Returns the exit of a message; `undefined`: the command has not exited. */
export function exitOf(exit: ExitMessage | undefined): Exit | undefined {
  if (!exit) return undefined;
  const { result, coreDumped } = exit;
  return {
    code: result.case === "code" ? result.value : null,
    signal: result.case === "signal" ? result.value.name : null,
    isKnown: result.case === "code" || result.case === "signal",
    coreDumped,
  };
}

/** What is known of the processes of a run. */
export interface Verdict {
  /**
   * `empty`: none is left, `neverRan`, `kept`: detached by policy; `survivors`, `unverified`, `stuck`: some may live.
   */
  readonly kind: "empty" | "survivors" | "unverified" | "neverRan" | "stuck" | "kept" | "unknown";
  /** Name of the proof that none is left. */
  readonly proof: string | undefined;
}

/** Returns the verdict of a run; `undefined`: there is none yet. */
export function verdictOf(run: RunMessage): Verdict | undefined {
  const verdict = run.treeVerdict?.verdict;
  if (!verdict) return undefined;
  const proof = verdict.case === "empty" ? enumName(EmptyProofSchema, verdict.value.proof) : undefined;
  return { kind: verdict.case ?? "unknown", proof };
}

/** Returns the name of a run's state. */
export function stateName(state: RunState): string {
  return enumName(RunStateSchema, state);
}

/**
 * Says whether a state is one of a run that has not ended. A state that this version does not know is taken as live.
 */
export function isLiveState(state: RunState): boolean {
  const name = RunStateSchema.value[state]?.name;
  return name === undefined || LIVE.has(name);
}

/** Values of the states that are live. */
export const LIVE_STATE_VALUES: RunState[] = RunStateSchema.values
  .filter(({ name }) => LIVE.has(name))
  .map(({ number }) => number);

/** What a run asks. */
export interface Question {
  /** Number in the run, from 1. */
  readonly number: bigint;
  /** What it asks, as far as it said so; of at most 4096 bytes. */
  readonly text: string;
  /** Whether a longer text was cut. */
  readonly isTruncated: boolean;
  /** Named groups of the rule that saw it. */
  readonly captures: Readonly<Record<string, string>>;
  /** Name of that rule, `notify` for the command itself, or a principal. */
  readonly by: string;
  /** Time since which it waits. */
  readonly since: Date;
  /** Number of the attempt that asks. */
  readonly attempt: number;
  /** Whether the terminal does not show what is typed, as for a password. */
  readonly isHidden: boolean;
}

/** Returns what a run asks, the oldest question first. */
export function questionsOf(run: RunMessage): Question[] {
  return run.questions.map(({ number, text, truncated, captures, by, sinceTime, attempt, echoOff }) => ({
    number,
    text,
    isTruncated: truncated,
    captures,
    by,
    since: new Date(sinceTime ? Number(nanos(sinceTime) / 1_000_000n) : 0),
    attempt,
    isHidden: echoOff,
  }));
}

/** Returns the run of an answer, which always has one. */
export function present(run: RunMessage | undefined): RunMessage {
  if (!run) throw new KennelError("NOT_KENNEL", "the answer has no run", { code: "INTERNAL" });
  return run;
}
