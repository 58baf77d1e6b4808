// Events of a run or of many, each once and in order, over the loss of servers and connections.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Calls, only, Tries } from "./calls.js";
import { aborted, closed, KennelError } from "./errors.js";
import {
  type Event,
  GapReason,
  GapSchema,
  type Lifecycle,
  type Output,
  OutputView,
  WarningSchema,
} from "./gen/kennel/v1/event_pb.js";
import {
  EventKind,
  OnGap,
  ProcessService,
  type StreamEventsRequestSchema,
  type StreamEventsResponse,
} from "./gen/kennel/v1/process_service_pb.js";
import { OutputStream } from "./gen/kennel/v1/run_pb.js";
import { isLiveState, nanos } from "./view.js";

type Bytes = Uint8Array<ArrayBuffer>;
type Request = MessageInitShape<typeof StreamEventsRequestSchema>;
type Position = NonNullable<Request["position"]>;
type Named<T> = T extends { case: infer K extends string; value: infer V }
  ? { readonly kind: K; readonly value: V }
  : never;

/** Common part of events. */
export interface EventBase {
  /** Run that the event is of. */
  readonly runId: string;
  /** Number of the attempt, from 1. */
  readonly attempt: number;
  /** Number of the event in its run. */
  readonly seq: bigint;
  /** Time of the event. Absent: a Snapshot. */
  readonly time: Date | undefined;
  /** The same time in nanoseconds since 1970. */
  readonly timeNanos: bigint | undefined;
}

/** Event of a run: `kind` says which, and `value` is the message of the contract. */
export type RunEvent = EventBase &
  (Named<Exclude<Event["payload"], { case: "lifecycle" }>> | Named<Lifecycle["station"]>);

/** Where a stream of events begins: at the first event, at new ones, near the end, or after a saved position. */
export type From =
  | "beginning"
  | "live"
  | { readonly tailLines: number | bigint }
  | { readonly tailBytes: number | bigint }
  | { readonly afterSeq: bigint }
  | { readonly cursor: Uint8Array | undefined };

/** Settings of a stream of events. */
export interface EventOptions {
  /** Ends the stream, and not the run, when it is aborted. */
  signal?: AbortSignal;
  /** Position. Default: the beginning. */
  from?: From;
  /** Kinds of events. Default: all. Lifecycle events are always among them. */
  kinds?: ("stdout" | "stderr" | "signals" | "warnings")[];
  /** Named consumer, whose position the server stores. */
  consumer?: string;
  /** What missing output means: an error, or an event `gap`. Default: `skip`. */
  onGap?: "error" | "skip";
}

/** Settings of a stream inside the package. */
export interface FeedOptions extends EventOptions {
  /** Run; absent: those of the filter. */
  runId?: string | undefined;
  /** Filter of many runs. */
  filter?: Request["filter"];
  /** Form of output. */
  view?: OutputView;
  /** Longest line in bytes. */
  lineBytesMax?: number | undefined;
}

const KINDS = {
  stdout: EventKind.STDOUT,
  stderr: EventKind.STDERR,
  signals: EventKind.SIGNAL_SENT,
  warnings: EventKind.WARNING,
};

/** Returns a position as a request has it. */
export function positionOf(from: From): Position {
  if (from === "beginning") return { case: "beginning", value: {} };
  if (from === "live") return { case: "live", value: {} };
  if ("afterSeq" in from) return { case: "afterSeq", value: from.afterSeq };
  if ("cursor" in from) {
    // Before the first cursor of a stream the position is its beginning.
    return from.cursor ? { case: "cursor", value: from.cursor as Bytes } : { case: "beginning", value: {} };
  }
  const amount =
    "tailLines" in from
      ? ({ case: "lines", value: BigInt(from.tailLines) } as const)
      : ({ case: "bytes", value: BigInt(from.tailBytes) } as const);
  return { case: "tail", value: { amount } };
}

/** Last event of a run since the last cursor: several lines may have one seq. */
interface Mark {
  seq: bigint;
  count: number;
}

/** Events in order. An iteration that is left ends its stream at the server. */
export class EventFeed implements AsyncIterableIterator<RunEvent> {
  readonly #own = new AbortController();
  readonly #tries: Tries;
  readonly #offsets = new Map<OutputStream, bigint>();
  #messages: AsyncIterator<StreamEventsResponse> | undefined;
  #queue: RunEvent[] = [];
  #pendingCursor: Bytes | undefined;
  #cursor: Bytes | undefined;
  #lastSeq: bigint | undefined;
  #came = new Map<string, Mark>();
  #skip = new Map<string, Mark>();
  #isReopened = false;
  #hasReplaced = false;
  #isDone = false;
  #hasEnded = false;
  #turn: Promise<unknown> = Promise.resolve();
  readonly #stop: () => void;

  constructor(
    private readonly calls: Calls,
    private readonly options: FeedOptions,
  ) {
    if (calls.isClosed) throw closed("client");
    const { signal } = options;
    this.#stop = () => this.#own.abort(signal && aborted(signal));
    if (signal?.aborted) this.#stop();
    signal?.addEventListener("abort", this.#stop, { once: true });
    this.#tries = new Tries(calls, "StreamEvents", { signal: this.#own.signal, runId: options.runId });
    const isFromStart = options.from === undefined || options.from === "beginning";
    if (isFromStart && options.consumer === undefined && this.#hasBytes) {
      for (const stream of [OutputStream.STDOUT, OutputStream.STDERR]) this.#offsets.set(stream, 0n);
    }
  }

  /** Cursor after the last message whose events were all given: a later stream continues there. */
  get cursor(): Uint8Array | undefined {
    return this.#cursor;
  }

  get #hasBytes(): boolean {
    const { view, runId } = this.options;
    return runId !== undefined && (view === undefined || view === OutputView.RAW);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Returns the next event. */
  next(): Promise<IteratorResult<RunEvent, undefined>> {
    const turn = this.#turn.then(() => this.#next());
    this.#turn = turn.catch(() => {});
    return turn;
  }

  /** Opens the stream, so that events from now on are of it. */
  async start(): Promise<void> {
    const turn = this.#turn.then(async () => {
      while (!this.#messages && !this.#isDone && !this.#hasEnded) {
        await this.#receive();
        // The Snapshot has the position: a stream that is lost now continues there.
        if (this.#queue.every(({ kind }) => kind === "snapshot")) {
          this.#queue = [];
          this.#commit();
        }
      }
    });
    this.#turn = turn.catch(() => {});
    await turn;
  }

  /** Ends the stream. */
  async return(): Promise<IteratorResult<RunEvent, undefined>> {
    this.#finish();
    return { done: true, value: undefined };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#finish();
  }

  #finish(): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#queue = [];
    this.options.signal?.removeEventListener("abort", this.#stop);
    // The transport leaves a stream open that is not read to its end.
    this.#own.abort();
    this.#tries.dropped();
  }

  async #next(): Promise<IteratorResult<RunEvent, undefined>> {
    for (;;) {
      if (this.#isDone) return { done: true, value: undefined };
      if (this.#own.signal.aborted) {
        this.#finish();
        throw this.options.signal ? aborted(this.options.signal) : closed("stream");
      }
      const event = this.#queue.shift();
      try {
        if (event) {
          const given = this.#admit(event);
          if (this.#queue.length === 0) this.#commit();
          if (given) return { done: false, value: given };
          continue;
        }
        if (this.#hasEnded) {
          this.#finish();
          return { done: true, value: undefined };
        }
        await this.#receive();
      } catch (error) {
        if (this.#isDone) return { done: true, value: undefined };
        this.#finish();
        throw error;
      }
    }
  }

  /** Notes that all events of a message were given. */
  #commit(): void {
    if (!this.#pendingCursor) return;
    this.#cursor = this.#pendingCursor;
    this.#pendingCursor = undefined;
    this.#came.clear();
    this.#skip.clear();
  }

  /** Receives a message, or opens the stream anew where it is lost. */
  async #receive(): Promise<void> {
    try {
      if (!this.#messages) {
        this.#sinceOpen = 0;
        this.#endedHead = undefined;
        const request = this.#request();
        this.#messages = await this.calls.open(ProcessService.method.streamEvents, only(request), this.#own.signal);
      }
      const { done, value: message } = await this.#messages.next();
      if (done) {
        // A stream from beyond the last event of an ended run has its Snapshot only.
        const head = this.#endedHead;
        const isWhole = head !== undefined && (this.#sinceOpen === 0 || (this.#lastSeq ?? 0n) >= head);
        if (!this.#sawEnded && !isWhole) throw new Error("the stream ended before the run");
        this.#hasEnded = true;
        this.#tries.answered();
        return;
      }
      this.#tries.answered();
      this.#take(message);
    } catch (fault) {
      this.#messages = undefined;
      if (this.#isDone) return;
      try {
        await this.#tries.after(fault);
      } catch (error) {
        if (!this.#repair(error)) throw error;
      }
      this.#isReopened = true;
      this.#skip = this.#merge();
    }
  }

  #sawEnded = false;
  #sinceOpen = 0;
  #endedHead: bigint | undefined;

  #request(): Request {
    const { runId, filter, view, kinds, consumer, lineBytesMax, from = "beginning" } = this.options;
    const wanted = kinds && [EventKind.LIFECYCLE, ...kinds.map((kind) => KINDS[kind])];
    const position = this.#cursor
      ? ({ case: "cursor", value: this.#cursor } as const)
      : this.#isReopened && this.#afterSeq !== undefined
        ? ({ case: "afterSeq", value: this.#afterSeq } as const)
        : from === "beginning"
          ? undefined
          : positionOf(from);
    return { runId, filter, position, outputView: view, kinds: wanted, consumer, lineBytesMax, onGap: OnGap.CONTINUE };
  }

  #afterSeq: bigint | undefined;

  /** Finds another position where the server refuses that of this feed. */
  #repair(error: unknown): boolean {
    if (!this.#cursor || !this.#isReopened) return false;
    if (KennelError.is(error, "CURSOR_AHEAD") && /^\d+$/.test(error.metadata.head_seq ?? "")) {
      // The host lost the last events.
      const head = BigInt(error.metadata.head_seq ?? 0);
      this.#afterSeq = head;
      this.#offsets.clear();
      const gap = create(GapSchema, {
        firstSeq: head + 1n,
        lastSeq: this.#lastSeq ?? head,
        reason: GapReason.HOST_LOST,
      });
      this.#queue.push({ ...this.#synthetic(), kind: "gap", value: gap });
    } else if (
      KennelError.is(error, "INVALID_FIELD") &&
      !this.#hasReplaced &&
      this.#lastSeq !== undefined &&
      this.options.runId !== undefined
    ) {
      this.#hasReplaced = true;
      this.#afterSeq = this.#lastSeq;
      const message = "the server refuses the position of the stream, which continues after the last event";
      this.#queue.push({ ...this.#synthetic(), kind: "warning", value: create(WarningSchema, { message }) });
    } else return false;
    this.#cursor = undefined;
    this.#came.clear();
    return true;
  }

  #synthetic(): EventBase {
    const runId = this.options.runId ?? "";
    return { runId, attempt: 0, seq: this.#lastSeq ?? 0n, time: undefined, timeNanos: undefined };
  }

  /** Returns up to where events are repeated: what was given since the last cursor. */
  #merge(): Map<string, Mark> {
    const merged = new Map(this.#skip);
    for (const [run, mark] of this.#came) {
      const before = merged.get(run);
      if (!before || before.seq < mark.seq) merged.set(run, mark);
      else if (before.seq === mark.seq) merged.set(run, { seq: mark.seq, count: before.count + mark.count });
    }
    this.#came.clear();
    return merged;
  }

  #take(message: StreamEventsResponse): void {
    for (const { runId, attempt, baseSeq, baseTime, events } of message.runEvents) {
      const base = baseTime && nanos(baseTime);
      for (const event of events) {
        const { payload } = event;
        if (payload.case === undefined || payload.case === "heartbeat") {
          if (payload.case === undefined) this.calls.stats.unknownEvents += 1;
          continue;
        }
        if (payload.case !== "snapshot") this.#sinceOpen += 1;
        else if (payload.value.run && !isLiveState(payload.value.run.state)) this.#endedHead = payload.value.headSeq;
        const delta = event.timeDelta ? event.timeDelta.seconds * 1_000_000_000n + BigInt(event.timeDelta.nanos) : 0n;
        const timeNanos = base === undefined ? undefined : base + delta;
        const time = timeNanos === undefined ? undefined : new Date(Number(timeNanos / 1_000_000n));
        const common = { runId, attempt, seq: baseSeq + event.seqDelta, time, timeNanos };
        if (payload.case !== "lifecycle") {
          this.#queue.push({ ...common, kind: payload.case, value: payload.value } as RunEvent);
          continue;
        }
        const { station } = payload.value;
        if (station.case === undefined) this.calls.stats.unknownEvents += 1;
        else this.#queue.push({ ...common, kind: station.case, value: station.value } as RunEvent);
      }
    }
    if (message.cursor.length > 0) this.#pendingCursor = message.cursor as Bytes;
    if (this.#queue.length === 0) this.#commit();
  }

  /** Returns an event that is new, cut where a part of it came before. */
  #admit(event: RunEvent): RunEvent | undefined {
    if (event.kind === "snapshot") return this.#isReopened && this.options.runId !== undefined ? undefined : event;
    if (event.attempt === 0 && event.time === undefined) return event;
    this.#lastSeq = event.seq;
    if (event.kind === "ended" && this.options.runId !== undefined) this.#sawEnded = true;
    const mark = this.#came.get(event.runId);
    if (mark?.seq === event.seq) mark.count += 1;
    else this.#came.set(event.runId, { seq: event.seq, count: 1 });
    if (this.#isRepeat(event)) return undefined;
    if (event.kind === "gap") {
      for (const { stream, endOffset } of event.value.missing) if (this.#hasBytes) this.#offsets.set(stream, endOffset);
      if (this.options.onGap !== "error" || !this.#isMissing(event.value.missing)) return event;
      throw dataGap(
        event.runId,
        `output of the run is no longer kept: ${GapReason[event.value.reason] ?? event.value.reason}`,
      );
    }
    if (event.kind !== "output" || !this.#hasBytes) return event;
    return this.#inOrder(event);
  }

  #isMissing(missing: { stream: OutputStream; bytes?: bigint }[]): boolean {
    const { kinds } = this.options;
    const wanted = (stream: OutputStream) =>
      !kinds || kinds.includes(stream === OutputStream.STDERR ? "stderr" : "stdout");
    return missing.length === 0 || missing.some(({ stream, bytes }) => wanted(stream) && bytes !== 0n);
  }

  #isRepeat(event: RunEvent): boolean {
    const skip = this.#skip.get(event.runId);
    if (!skip) return false;
    if (event.seq < skip.seq) return true;
    if (event.seq === skip.seq && skip.count > 0) {
      this.#skip.set(event.runId, { seq: skip.seq, count: skip.count - 1 });
      return true;
    }
    this.#skip.delete(event.runId);
    return false;
  }

  #inOrder(event: RunEvent & { kind: "output"; value: Output }): RunEvent | undefined {
    const { stream, data, offset } = event.value;
    const expected = this.#offsets.get(stream) ?? offset;
    if (offset > expected) {
      throw dataGap(event.runId, `output of the run is missing: offset ${offset} follows ${expected}`);
    }
    const end = offset + BigInt(data.length);
    if (end <= expected && data.length > 0) return undefined;
    this.#offsets.set(stream, end);
    if (offset === expected) return event;
    return { ...event, value: { ...event.value, data: data.subarray(Number(expected - offset)), offset: expected } };
  }
}

function dataGap(runId: string, message: string): KennelError {
  return new KennelError("DATA_GAP", message, { code: "DATA_LOSS", runId });
}
