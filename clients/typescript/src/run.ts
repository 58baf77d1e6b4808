// A run: a handle of something that is the server's. A handle that is dropped ends nothing.

import { EventEmitter } from "node:events";
import type { Readable, Writable } from "node:stream";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { ABORT_TIMEOUT, type CallOptions, type Calls } from "./calls.js";
import { KennelError } from "./errors.js";
import { EventFeed, type EventOptions, type FeedOptions, type RunEvent } from "./events.js";
import { type Gap, OutputView } from "./gen/kennel/v1/event_pb.js";
import {
  AbortUnknown,
  AbortWait,
  AbortWaitSchema,
  InterruptMethodSchema,
  type OutputMatch,
  type OutputPart,
  ProcessService,
  type RestartRequestSchema,
  type SignalResponse,
  SignalTargetSchema,
  type TreeProcess,
  type WaitCondition,
  WaitConditionSchema,
} from "./gen/kennel/v1/process_service_pb.js";
import {
  ActivitySchema,
  DeadlineSchema,
  OutputStream,
  RestartMode,
  RunKind,
  type Run as RunMessage,
  RunStateSchema,
} from "./gen/kennel/v1/run_pb.js";
import type { Screen } from "./gen/kennel/v1/terminal_pb.js";
import { type Duplex, duplexOf, type InputOptions, InputPosition, InputStream } from "./input.js";
import {
  iterate,
  type JsonOptions,
  jsonParser,
  type Line,
  type LineOptions,
  lineOf,
  OutputReadable,
} from "./output.js";
import { linePattern, type Pattern, streamOf } from "./spec.js";
import { type AttachOptions, Terminal } from "./terminal.js";
import { isUlid, ulid } from "./ulid.js";
import {
  duration,
  type Exit,
  enumName,
  enumValue,
  exitOf,
  isLiveState,
  milliseconds,
  present,
  type Question,
  questionsOf,
  stateName,
  type Verdict,
  verdictOf,
} from "./view.js";

const rpc = ProcessService.method;

/** Result of a stop. */
export interface Stopped {
  /** State of the run. */
  readonly state: string;
  /** What is known of its processes. */
  readonly verdict: Verdict | undefined;
  /** Name of the proof that none is left. */
  readonly proof: string | undefined;
}

/** Settings of a stop. */
export interface AbortOptions extends CallOptions {
  /** Time between SIGTERM and SIGKILL in milliseconds. Default: the run's own. */
  graceMs?: number;
  /** What is waited for: `tree-empty` (default), `leader-exited` or `none`. */
  wait?: string;
}

/** Output that was read by offset. */
export interface ReadOutput {
  /** Parts that exist and parts that are missing, in order. */
  readonly parts: OutputPart[];
  /** Offset at which a later read continues. */
  readonly nextOffset: bigint;
  /** Length of the stream so far. */
  readonly endOffset: bigint;
  /** Whether the stream grows no more. */
  readonly isFinal: boolean;
}

/** Events of a run as a handle emits them. */
export interface RunEvents {
  /** The command has exited; with restarts, in its last attempt. */
  exit: [code: number | null, signal: string | null];
  /** The run has ended, and what is read of its output has been read. */
  close: [code: number | null, signal: string | null];
  /** An attempt is ready. */
  ready: [by: string];
  /** The activity of an attempt has changed. */
  activity: [activity: string];
  /** An attempt has begun. */
  attempt: [number: number];
  /** A warning for people. */
  warning: [message: string];
  /** Events are missing. */
  gap: [gap: Gap];
  /** The server is lost; calls wait for it. */
  lost: [cause: unknown];
  /** The server answers again. */
  resumed: [];
  /** The events of the run cannot be read. */
  error: [error: unknown];
}

/** Events that need a stream of the server. */
const STREAMED = ["exit", "close", "ready", "activity", "attempt", "warning", "gap"];

/** One run. */
export class Run extends EventEmitter<RunEvents> {
  #info: RunMessage | undefined;
  #exit: Exit | undefined;
  #stdout: OutputReadable | undefined;
  #stderr: OutputReadable | undefined;
  #stdin: InputStream | undefined;
  readonly #warnings: string[] = [];
  #watch: EventFeed | undefined;
  #hasGate = false;
  #hasInput = false;
  #onEnd: (() => void) | undefined;
  readonly #lost = (cause: unknown) => this.emit("lost", cause);
  readonly #resumed = () => this.emit("resumed");

  /** @internal */
  constructor(
    private readonly calls: Calls,
    private readonly ref: string,
    info?: RunMessage,
    /** Whether this client has spawned the run. */
    private readonly isOwn = false,
  ) {
    super();
    if (info) this.#note(info);
    (this as EventEmitter).on("newListener", (event: string) => this.#follow(event));
  }

  /** Id of the run; of a handle by name, the name until an answer has the id. */
  get id(): string {
    return this.#info?.runId ?? this.ref;
  }

  /** The run as the last answer had it. */
  get info(): RunMessage | undefined {
    return this.#info;
  }

  /** Name of the run; empty: it has none. */
  get name(): string {
    return this.#info?.spec?.name ?? "";
  }

  /** Process id of the leader. */
  get pid(): number | undefined {
    return this.#info?.currentAttempt?.pid || undefined;
  }

  /** State, such as `RUNNING`. */
  get state(): string | undefined {
    return this.#info && stateName(this.#info.state);
  }

  /** Whether the run has not ended. */
  get isLive(): boolean {
    return this.#info === undefined || isLiveState(this.#info.state);
  }

  /** What the run asks, the oldest question first. */
  get questions(): Question[] {
    return this.#info ? questionsOf(this.#info) : [];
  }

  /** Number of the present attempt. */
  get attempt(): number | undefined {
    return this.#info?.currentAttempt?.number;
  }

  /** What has made the attempt ready; empty: it is not. */
  get readyBy(): string {
    return this.#info?.readyBy ?? "";
  }

  /** Activity, such as `WORKING`. */
  get activity(): string {
    return enumName(ActivitySchema, this.#info?.activity ?? 0);
  }

  /** Labels. */
  get labels(): Readonly<Record<string, string>> {
    return this.#info?.labels ?? {};
  }

  /** Annotations. */
  get annotations(): Readonly<Record<string, string>> {
    return this.#info?.annotations ?? {};
  }

  /** Warnings that the events of this handle had. */
  get warnings(): readonly string[] {
    return this.#warnings;
  }

  /** Why the run has ended, such as `exited`. */
  get endReason(): string | undefined {
    return this.#info?.endReason?.reason.case;
  }

  /** What is known of the run's processes. */
  get verdict(): Verdict | undefined {
    return this.#info && verdictOf(this.#info);
  }

  /** How the command of the present attempt has exited; `undefined`: it has not, as far as is known. */
  get exit(): Exit | undefined {
    return this.#exit;
  }

  /** Exit code; `null`: none is known. */
  get exitCode(): number | null {
    return this.#exit?.code ?? null;
  }

  /** Name of the signal that ended the command; `null`: none is known. */
  get signalCode(): string | null {
    return this.#exit?.signal ?? null;
  }

  /** Reads the run. */
  async refresh(options?: CallOptions): Promise<this> {
    const { run } = await this.calls.unary(rpc.getRun, { runId: this.ref }, this.#with(options));
    return this.#note(present(run));
  }

  /** Waits until the run has ended, or meets another condition, such as `started` or `leader-exited`. */
  async wait(options: CallOptions & { for?: string } = {}): Promise<Exit | undefined> {
    await this.waitFor(options.for ?? "ended", options);
    return this.#exit;
  }

  /** Waits for a condition, such as `started`, and says whether it was met; false: it can be met no more. */
  async waitFor(condition: string, options?: CallOptions): Promise<boolean> {
    const value: WaitCondition = enumValue(WaitConditionSchema, condition);
    const { run, reached } = await this.calls.unary(
      rpc.waitRun,
      { runId: this.id, condition: value },
      this.#with(options),
    );
    this.#note(present(run));
    return reached;
  }

  /** Waits until the run is ready, and returns what has made it so. */
  async ready(options?: CallOptions): Promise<string> {
    if (await this.waitFor("ready", options)) return this.readyBy;
    const content = { runId: this.id, metadata: { state: this.state ?? "", end_reason: this.endReason ?? "" } };
    throw new KennelError("NOT_READY", `run ${this.id} has ended before it was ready: ${this.endReason}`, content);
  }

  /** Waits for a line that matches. RUN_ENDED: the run has ended without one. */
  async waitForOutput(
    pattern: Pattern,
    options: CallOptions & { streams?: ("stdout" | "stderr")[]; afterSeq?: bigint } = {},
  ): Promise<OutputMatch> {
    const { streams = [], afterSeq = 0n } = options;
    const request = { runId: this.id, pattern: linePattern(pattern), streams: streams.map(streamOf), afterSeq };
    const { result, run } = await this.calls.unary(rpc.waitForOutput, request, this.#with(options));
    this.#note(present(run));
    if (result.case === "match") return result.value;
    throw new KennelError("RUN_ENDED", `run ${this.id} has ended, and no line of its output matches`, {
      runId: this.id,
    });
  }

  /** Ends the run: SIGTERM to its tree, the grace, SIGKILL. Resolves when its tree is proved empty. */
  async abort(options: AbortOptions = {}): Promise<Stopped> {
    const { graceMs, wait = "tree-empty" } = options;
    const own = this.#info?.grace && milliseconds(this.#info.grace);
    const run = await this.#abort(graceMs, enumValue(AbortWaitSchema, wait), {
      timeoutMs: (graceMs ?? own ?? 0) + ABORT_TIMEOUT,
      ...this.#with(options),
    });
    const verdict = verdictOf(run);
    return { state: stateName(run.state), verdict, proof: verdict?.proof };
  }

  /** Ends the run with SIGTERM (default) or SIGKILL, without a wait; another signal goes to the leader. */
  async kill(signal = "SIGTERM", options?: CallOptions): Promise<void> {
    if (signal !== "SIGTERM" && signal !== "SIGKILL") await this.signal(signal, options);
    else await this.#abort(signal === "SIGKILL" ? 0 : undefined, AbortWait.NONE, this.#with(options));
  }

  /** Sends one signal, to the leader or to `group`, `tree` or `terminal-foreground`. */
  async signal(signal: string, options: CallOptions & { target?: string } = {}): Promise<SignalResponse> {
    const target = enumValue(SignalTargetSchema, options.target ?? "leader");
    const request = { runId: this.id, requestId: ulid(), signal, target };
    const answer = await this.calls.unary(rpc.signal, request, this.#with(options));
    this.#note(present(answer.run));
    return answer;
  }

  /** Sends SIGINT as a key would, and returns how. */
  async interrupt(options?: CallOptions): Promise<string> {
    const { run, method } = await this.calls.unary(
      rpc.interrupt,
      { runId: this.id, requestId: ulid() },
      this.#with(options),
    );
    this.#note(present(run));
    return enumName(InterruptMethodSchema, method);
  }

  /** Stops every task. A repeat after a lost answer may undo another client's `resume`. */
  async pause(options?: CallOptions): Promise<this> {
    return this.#note(present((await this.calls.unary(rpc.pause, { runId: this.id }, this.#with(options))).run));
  }

  /** Continues a paused run. */
  async resume(options?: CallOptions): Promise<this> {
    return this.#note(present((await this.calls.unary(rpc.resume, { runId: this.id }, this.#with(options))).run));
  }

  /** Begins the next attempt; of an ended run, a new run. Returns the run that goes. */
  async restart(
    options: CallOptions & { graceMs?: number } & Pick<
        MessageInitShape<typeof RestartRequestSchema>,
        "env" | "initialInput" | "secrets"
      > = {},
  ): Promise<Run> {
    // The attempt makes all repeats one restart.
    await this.refresh(options);
    const { graceMs, env, initialInput, secrets } = options;
    const newRunId = ulid();
    const request = {
      runId: this.id,
      requestId: ulid(),
      grace: graceMs === undefined ? undefined : duration(graceMs),
      ...(this.isLive ? { expectedAttempt: this.attempt } : { newRunId, env, initialInput, secrets }),
    };
    const timeoutMs = (graceMs ?? (this.#info?.grace ? milliseconds(this.#info.grace) : 0)) + ABORT_TIMEOUT;
    const { run } = await this.calls.unary(rpc.restart, request, { timeoutMs, ...this.#with(options) });
    const message = present(run);
    return message.runId === this.id ? this.#note(message) : new Run(this.calls, message.runId, message, true);
  }

  /** Changes annotations: `undefined` removes a key. With `version` only if the run has that version of them. */
  async annotate(
    changes: Readonly<Record<string, string | undefined>>,
    options: CallOptions & { version?: bigint; activity?: string } = {},
  ): Promise<this> {
    const { version, activity } = options;
    const pairs = Object.entries(changes);
    const request = {
      runId: this.id,
      set: Object.fromEntries(pairs.filter((pair): pair is [string, string] => pair[1] !== undefined)),
      remove: pairs.filter(([, value]) => value === undefined).map(([key]) => key),
      expectedVersion: version,
      activity: activity === undefined ? 0 : enumValue(ActivitySchema, activity),
    };
    return this.#note(present((await this.calls.unary(rpc.annotateRun, request, this.#with(options))).run));
  }

  /** Extends limits of time: each is reached in `ms` milliseconds at the earliest. Default: all limits. */
  async extend(ms: number, options: CallOptions & { limits?: string[] } = {}): Promise<this> {
    const limits = (options.limits ?? []).map((limit) => enumValue(DeadlineSchema, limit));
    const request = { runId: this.id, limits, duration: duration(ms) };
    return this.#note(present((await this.calls.unary(rpc.extendTimeouts, request, this.#with(options))).run));
  }

  /** Returns the processes of the run. */
  async tree(options?: CallOptions): Promise<TreeProcess[]> {
    const { run, processes } = await this.calls.unary(rpc.getTree, { runId: this.id }, this.#with(options));
    this.#note(present(run));
    return processes;
  }

  /** Reads output by offset: what was written so far, or both ends of it. */
  async readOutput(
    stream: "stdout" | "stderr",
    options: CallOptions & {
      offset?: bigint;
      bytesMax?: number;
      headBytes?: number;
      tailBytes?: number;
      plain?: boolean;
    } = {},
  ): Promise<ReadOutput> {
    const { offset, bytesMax, headBytes, tailBytes, plain } = options;
    const ends = { headBytes: headBytes ?? 0, tailBytes: tailBytes ?? 0 };
    const range =
      headBytes === undefined && tailBytes === undefined
        ? ({ case: "offset", value: offset ?? 0n } as const)
        : ({ case: "headTail", value: ends } as const);
    const view = plain ? OutputView.TEXT : OutputView.RAW;
    const request = { runId: this.id, stream: streamOf(stream), range, bytesMax: bytesMax ?? 0, view };
    const answer = await this.calls.unary(rpc.readOutput, request, this.#with(options));
    const { parts, nextOffset, endOffset } = answer;
    return { parts, nextOffset, endOffset, isFinal: answer.final };
  }

  /** Acknowledges events of a consumer up to a position. */
  async ack(
    consumer: string,
    position: { cursor: Uint8Array } | { seq: bigint },
    options?: CallOptions,
  ): Promise<void> {
    const at =
      "cursor" in position
        ? ({ case: "cursor", value: position.cursor as Uint8Array<ArrayBuffer> } as const)
        : ({ case: "seq", value: position.seq } as const);
    await this.calls.unary(rpc.ackEvents, { runId: this.id, consumer, position: at }, this.#with(options));
  }

  /**
   * Answers a question, if it still waits: of several answers one is accepted, over every death of the server. Others
   * get ANSWERED_ALREADY, with who answered in `metadata`, or QUESTION_GONE.
   *
   * A string gets the end of a line, bytes are written as they are. `question` is its number; without it there must be
   * one that waits.
   */
  async answer(text: string | Uint8Array, options: CallOptions & { question?: bigint } = {}): Promise<void> {
    const asked = (await this.refresh(options)).questions;
    const [found, ...others] = asked.filter(({ number }) => number === (options.question ?? number));
    if (options.question === undefined && (!found || others.length > 0))
      throw new TypeError(`${asked.length} questions wait: choose one by its number, of \`questions\``);
    const end = this.info?.kind === RunKind.TERMINAL ? "\r" : "\n";
    const data = (typeof text === "string" ? Buffer.from(text + end) : text) as Uint8Array<ArrayBuffer>;
    const request = {
      runId: this.id,
      data,
      writeId: ulid(),
      expectedAttempt: found?.attempt ?? this.attempt,
      ifAwaiting: found?.number ?? options.question,
    };
    const { input } = await this.calls.unary(rpc.writeInput, request, this.#with(options));
    this.#stdin ??= this.input();
    this.#stdin.continueAt(input);
  }

  /** Removes an ended run: its record and its output. */
  async remove(options?: CallOptions): Promise<void> {
    await this.calls.unary(rpc.removeRun, { runId: this.id, requestId: ulid() }, this.#with(options));
  }

  /** Standard output from its beginning; the stream is opened at the first read. */
  get stdout(): Readable {
    this.#stdout ??= this.#readable(OutputStream.STDOUT, {});
    return this.#stdout;
  }

  /** Standard error from its beginning; the stream is opened at the first read. */
  get stderr(): Readable {
    this.#stderr ??= this.#readable(OutputStream.STDERR, {});
    return this.#stderr;
  }

  /** Another reader of a stream of output, with a position, or over missing output. */
  output(stream: "stdout" | "stderr", options: Omit<EventOptions, "kinds"> = {}): Readable {
    return this.#readable(streamOf(stream), options);
  }

  /** Standard input of a run with `stdin: "pipe"`. Its end closes the input. */
  get stdin(): Writable {
    this.#stdin ??= this.input();
    return this.#stdin;
  }

  /** Another writer of standard input, which continues at the bytes that were accepted, or shares it with others. */
  input(options: InputOptions = {}): InputStream {
    return new InputStream(this.#position(options));
  }

  /** Lines of output, each once. */
  lines(options: LineOptions = {}): AsyncIterableIterator<Line> {
    const { streams = ["stdout", "stderr"], plain, ...rest } = options;
    const view = plain ? OutputView.TEXT_LINES : OutputView.LINES;
    return iterate(() => this.#feed({ onGap: "error", ...rest, kinds: streams, view }), lineOf);
  }

  /** Values of those lines that are JSON, each once; of standard output where no stream is named. */
  jsonLines<T = unknown>(options: JsonOptions = {}): AsyncIterableIterator<T> {
    const { streams = ["stdout"], onInvalid = "skip", ...rest } = options;
    const open = () => this.#feed({ onGap: "error", ...rest, kinds: streams, view: OutputView.TEXT_LINES });
    const values = iterate(open, jsonParser<T>(onInvalid));
    const iterator: AsyncIterableIterator<T> = {
      [Symbol.asyncIterator]: () => iterator,
      async next() {
        const { done, value } = await values.next();
        return done ? { done, value: undefined } : { done: false, value: value.value };
      },
      async return() {
        await values.return?.();
        return { done: true, value: undefined };
      },
    };
    return iterator;
  }

  /** Events of the run. `cursor` of the result is a position to save. */
  events(options: EventOptions = {}): EventFeed {
    return this.#feed(options);
  }

  /** Standard input and output of the present attempt as web streams; its end ends both. */
  duplex(options: { takeOver?: boolean } = {}): Duplex {
    const { takeOver = false } = options;
    const feed = this.#feed({ kinds: ["stdout"], onGap: "error", from: takeOver ? "live" : "beginning" });
    return duplexOf(feed, this.#position({}), this.id, takeOver);
  }

  /** Attaches to the terminal of the run. */
  async attach(options: AttachOptions = {}): Promise<Terminal> {
    const terminal = new Terminal(this.calls, this.id, options);
    await terminal.opened;
    return terminal;
  }

  /** Returns what the terminal of the run shows; of an ended run, what it showed last. */
  async screen(options?: CallOptions): Promise<Screen> {
    const { screen } = await this.calls.unary(rpc.readScreen, { runId: this.id }, this.#with(options));
    if (!screen) throw new KennelError("NOT_KENNEL", "the answer has no screen", { code: "INTERNAL" });
    return screen;
  }

  /** Ends the run, if it is live. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.refresh();
    if (this.isLive) await this.abort();
  }

  /** @internal Ends the run when the signal is aborted. */
  bind(signal: AbortSignal): void {
    const end = () => this.abort({ wait: "none" }).catch(() => {});
    this.#onEnd = () => signal.removeEventListener("abort", end);
    if (signal.aborted) void end();
    else signal.addEventListener("abort", end, { once: true });
  }

  #with(options: CallOptions | undefined) {
    return {
      signal: options?.signal,
      runId: this.id,
      ...(options?.timeoutMs === undefined ? {} : { timeoutMs: options.timeoutMs }),
    };
  }

  #note(info: RunMessage): this {
    this.#info = info;
    this.#exit = exitOf(info.currentAttempt?.exit);
    const isKnown = RunStateSchema.value[info.state] && ActivitySchema.value[info.activity];
    if (!isKnown) this.calls.stats.unknownValues += 1;
    if (isLiveState(info.state)) return this;
    this.#onEnd?.();
    this.#onEnd = undefined;
    // The record of a lost run may have no exit at all.
    this.#exit ??= { code: null, signal: null, isKnown: false, coreDumped: false };
    return this;
  }

  #feed(options: FeedOptions): EventFeed {
    return new EventFeed(this.calls, { ...options, runId: this.id });
  }

  #readable(stream: OutputStream, options: Omit<EventOptions, "kinds">): OutputReadable {
    const kinds: ("stdout" | "stderr")[] = [stream === OutputStream.STDERR ? "stderr" : "stdout"];
    return new OutputReadable(() => this.#feed({ onGap: "error", ...options, kinds }), stream);
  }

  /**
   * Returns the position of a writer: the first one of the client that has spawned the run begins at its first byte.
   */
  #position(options: InputOptions): InputPosition {
    const isNew = this.isOwn && !this.#hasInput && (this.attempt ?? 1) === 1;
    this.#hasInput = true;
    return new InputPosition(this.calls, () => this.id, isNew, options);
  }

  async #abort(graceMs: number | undefined, wait: AbortWait, options: CallOptions): Promise<RunMessage> {
    const request = {
      runId: this.id,
      requestId: ulid(),
      grace: graceMs === undefined ? undefined : duration(graceMs),
      wait,
      // An unknown id is fenced only where it may be that of a Spawn of this client.
      ifUnknown: this.isOwn && isUlid(this.id) ? AbortUnknown.FENCE : AbortUnknown.REFUSE,
    };
    const { run } = await this.calls.unary(rpc.abort, request, options);
    const message = present(run);
    this.#note(message);
    return message;
  }

  /** Opens what a listener needs. */
  #follow(event: string): void {
    if (event === "lost" || event === "resumed") {
      if (this.#hasGate) return;
      this.#hasGate = true;
      this.calls.gate.on("lost", this.#lost);
      this.calls.gate.on("resumed", this.#resumed);
    } else if (STREAMED.includes(event) && !this.#watch) {
      this.#watch = this.#feed({ kinds: ["warnings"] });
      const watching = this.#watch;
      queueMicrotask(() => {
        this.#emitAll(watching).catch((error) => {
          if (!this.calls.isClosed && this.listenerCount("error") > 0) this.emit("error", error);
        });
      });
    }
  }

  async #emitAll(feed: EventFeed): Promise<void> {
    for await (const event of feed) this.#emitOne(event);
    await this.refresh();
    const [code, signal] = [this.exitCode, this.signalCode];
    if (this.#restarts || this.#exits === 0) this.emit("exit", code, signal);
    const open = [this.#stdout, this.#stderr].filter(
      (stream) => stream !== undefined && !stream.closed && stream.readableFlowing !== null,
    );
    await Promise.all(open.map((stream) => new Promise<void>((done) => stream?.once("close", done))));
    this.emit("close", code, signal);
    this.calls.gate.off("lost", this.#lost);
    this.calls.gate.off("resumed", this.#resumed);
  }

  #exits = 0;

  /** Whether another attempt may follow. */
  get #restarts(): boolean {
    const policy = this.#info?.spec?.restart;
    return (
      policy !== undefined &&
      (policy.preset !== 0 || (policy.mode !== RestartMode.UNSPECIFIED && policy.mode !== RestartMode.NEVER))
    );
  }

  #emitOne(event: RunEvent): void {
    if (event.kind === "snapshot" && event.value.run) this.#note(event.value.run);
    else if (event.kind === "recorded") this.emit("attempt", event.attempt);
    else if (event.kind === "ready") this.emit("ready", event.value.by);
    else if (event.kind === "activityChanged") this.emit("activity", enumName(ActivitySchema, event.value.activity));
    else if (event.kind === "gap") this.emit("gap", event.value);
    else if (event.kind === "leaderExited") {
      this.#exit = exitOf(event.value.exit);
      this.#exits += 1;
      if (!this.#restarts) this.emit("exit", this.exitCode, this.signalCode);
    } else if (event.kind === "warning") {
      this.#warnings.push(event.value.message);
      this.emit("warning", event.value.message);
    }
  }
}
