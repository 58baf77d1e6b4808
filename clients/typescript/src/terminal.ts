// The terminal of a run: what is typed arrives once and in order, and what is shown continues over the loss of servers.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Calls, Tries } from "./calls.js";
import { aborted, closed, KennelError } from "./errors.js";
import { ProcessService } from "./gen/kennel/v1/process_service_pb.js";
import type { AttachRequestSchema, AttachResponse, Screen } from "./gen/kennel/v1/terminal_pb.js";
import { DEFAULTS, TERMINAL } from "./gen/rules.js";
import { ulid } from "./ulid.js";
import { type Exit, exitOf, isLiveState } from "./view.js";

type Request = MessageInitShape<typeof AttachRequestSchema>;
type Bytes = Uint8Array<ArrayBuffer>;

/** Bytes of one write: a terminal takes keys, not files. */
const PIECE_BYTES = 64 * 1024;

/** Settings of an attachment. */
export interface AttachOptions {
  /** True: this client only watches. */
  readOnly?: boolean;
  /** Size that the terminal is given, if this client is the writer. */
  size?: { readonly rows: number; readonly cols: number };
  /** True: this client becomes the writer, whichever client is. */
  take?: boolean;
  /** Ends the attachment, and not the run, when it is aborted. */
  signal?: AbortSignal;
}

/** Text that {@link Terminal.expect} has found. */
export interface Match {
  /** Text before it, since the last match. */
  readonly before: string;
  /** The text itself. */
  readonly text: string;
  /** Groups of the expression. */
  readonly groups: readonly (string | undefined)[];
}

/** Ends a subscription. */
export interface Disposable {
  /** Removes the listener. */
  dispose(): void;
}

interface Write {
  readonly id: string;
  readonly data: Bytes;
  done(error?: KennelError): void;
}

/** Requests of one attachment, in order. */
class RequestQueue {
  #queue: Request[] = [];
  #wake: (() => void) | undefined;
  #isEnded = false;

  push(request: Request): void {
    this.#queue.push(request);
    this.#wake?.();
  }

  end(): void {
    this.#isEnded = true;
    this.#wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Request> {
    for (;;) {
      const next = this.#queue.shift();
      if (next) yield next;
      else if (this.#isEnded) return;
      else
        await new Promise<void>((wake) => {
          this.#wake = wake;
        });
    }
  }
}

/** A terminal. `onData`, `onExit`, `write` and `resize` are those of node-pty. */
export class Terminal {
  readonly #own = new AbortController();
  readonly #tries: Tries;
  readonly #decoder = new TextDecoder();
  readonly #readers = new Set<(text: string) => void>();
  readonly #exits = new Set<(exit: { exitCode: number | null; signal: string | null }) => void>();
  readonly #changes = new Set<() => void>();
  #requests = new RequestQueue();
  #cursor: Bytes = new Uint8Array();
  #waiting: Write[] = [];
  #unanswered: Write[] = [];
  #seen: string[] = [];
  #seenLength = 0;
  #size: { rows: number; cols: number } | undefined;
  #actual: { rows: number; cols: number } | undefined;
  #takes: boolean;
  #isWriter = false;
  #isConnected = false;
  #isDetaching = false;
  #exit: Exit | undefined;
  #hasEnded = false;
  #end: { error: unknown } | undefined;
  #paused: Promise<void> | undefined;
  #resume: (() => void) | undefined;
  readonly #stop: () => void;
  /** @internal Settles when the terminal is open. */
  readonly opened: Promise<void>;
  readonly #closed: Promise<void>;

  /** @internal */
  constructor(
    private readonly calls: Calls,
    private readonly runId: string,
    private readonly options: AttachOptions,
  ) {
    if (options.signal?.aborted) throw aborted(options.signal);
    this.#size = options.size && { rows: options.size.rows, cols: options.size.cols };
    this.#takes = options.take ?? false;
    const { signal } = options;
    this.#stop = () => this.#own.abort(signal && aborted(signal));
    signal?.addEventListener("abort", this.#stop, { once: true });
    this.#tries = new Tries(calls, "Attach", { signal: this.#own.signal, runId });
    let opened: (error?: unknown) => void = () => {};
    this.opened = new Promise((done, failed) => {
      opened = (error) => (error === undefined ? done() : failed(error));
    });
    this.opened.catch(() => {});
    this.#closed = this.#stay(opened).then(
      () => this.#finish(undefined),
      (error) => {
        opened(error);
        this.#finish(error);
      },
    );
  }

  /** Whether this client is the one that may write. */
  get isWriter(): boolean {
    return this.#isWriter;
  }

  /** Size of the terminal, as the server has reported it last. */
  get size(): { readonly rows: number; readonly cols: number } | undefined {
    return this.#actual;
  }

  /** How the command has exited; `undefined`: it has not, or its terminal was left before. */
  get exit(): Exit | undefined {
    return this.#exit;
  }

  /** Settles when the attachment has ended: the run has, or `detach` was called. */
  get closed(): Promise<void> {
    return this.#closed.then(() => {
      if (this.#end?.error !== undefined) throw this.#end.error;
    });
  }

  /** Adds a listener of what the terminal shows. */
  onData(listener: (text: string) => void): Disposable {
    this.#readers.add(listener);
    return { dispose: () => this.#readers.delete(listener) };
  }

  /** Adds a listener of the end of the run, which follows the last data. */
  onExit(listener: (exit: { exitCode: number | null; signal: string | null }) => void): Disposable {
    this.#exits.add(listener);
    return { dispose: () => this.#exits.delete(listener) };
  }

  /** Types. Resolves when the terminal has accepted it; a caller may leave the result, as with node-pty. */
  write(data: string | Uint8Array): Promise<void> {
    const written = this.#write(data);
    written.catch(() => {});
    return written;
  }

  async #write(data: string | Uint8Array): Promise<void> {
    if (this.#end || this.#isDetaching) throw closed("terminal");
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data.slice();
    const writes: Promise<void>[] = [];
    for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
      const piece = bytes.subarray(at, at + PIECE_BYTES) as Bytes;
      writes.push(
        new Promise<void>((accepted, refused) => {
          const done = (error?: KennelError) => (error ? refused(error) : accepted());
          this.#waiting.push({ id: ulid(), data: piece, done });
        }),
      );
    }
    this.#send();
    await Promise.all(writes);
  }

  /** Changes the size. */
  resize(cols: number, rows: number): void {
    this.#size = { rows, cols };
    if (this.#isConnected) this.#requests.push({ request: { case: "resize", value: this.#size } });
  }

  /** Makes this client the writer. Resolves when it is. */
  async take(): Promise<void> {
    this.#takes = true;
    if (this.#isConnected) this.#requests.push({ request: { case: "take", value: {} } });
    await new Promise<void>((done, failed) => {
      const look = () => {
        if (!this.#isWriter && !this.#end) return;
        this.#changes.delete(look);
        if (this.#isWriter) done();
        else failed(this.#end?.error ?? closed("terminal"));
      };
      this.#changes.add(look);
      look();
    });
  }

  /** Stops reading. The command waits for no reader; its output stays at the server. */
  pause(): void {
    this.#paused ??= new Promise((resume) => {
      this.#resume = resume;
    });
  }

  /** Reads on. */
  resume(): void {
    this.#resume?.();
    this.#paused = undefined;
  }

  /** Waits until the terminal shows a text, in the last MiB that no earlier call has found. */
  async expect(pattern: string | RegExp, options: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<Match> {
    const { signal, timeoutMs } = options;
    const find = () => {
      const seen = this.#text();
      const found =
        typeof pattern === "string"
          ? findText(seen, pattern)
          : new RegExp(pattern, pattern.flags.replace(/[gy]/g, "")).exec(seen);
      if (!found) return undefined;
      const [text = "", ...groups] = found;
      const rest = seen.slice(found.index + text.length);
      [this.#seen, this.#seenLength] = [[rest], rest.length];
      return { before: seen.slice(0, found.index), text, groups };
    };
    return await new Promise<Match>((done, failed) => {
      const finish = (end: () => void) => {
        this.#changes.delete(look);
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
        end();
      };
      const stop = () => finish(() => failed(aborted(signal as AbortSignal)));
      const look = () => {
        const match = find();
        if (match) finish(() => done(match));
        else if (this.#end) finish(() => failed(this.#end?.error ?? closed("terminal")));
      };
      const late = new KennelError("DEADLINE_EXCEEDED", "the terminal does not show the text in time", {
        code: "DEADLINE_EXCEEDED",
        runId: this.runId,
      });
      const timer = timeoutMs === undefined ? undefined : setTimeout(() => finish(() => failed(late)), timeoutMs);
      if (signal?.aborted) return stop();
      signal?.addEventListener("abort", stop, { once: true });
      this.#changes.add(look);
      look();
    });
  }

  /** Returns what the terminal shows now. */
  async screen(): Promise<Screen> {
    const { runId } = this;
    const { screen } = await this.calls.unary(ProcessService.method.readScreen, { runId }, { runId });
    if (!screen) throw new KennelError("NOT_KENNEL", "the answer has no screen", { code: "INTERNAL" });
    return screen;
  }

  /** Leaves the terminal, once all that was typed is accepted. The run continues. */
  async detach(): Promise<void> {
    this.#isDetaching = true;
    this.resume();
    this.#endIfDetached();
    await this.#closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.detach();
  }

  async #stay(opened: () => void): Promise<void> {
    for (;;) {
      try {
        await this.#attach(opened);
        return;
      } catch (fault) {
        this.#isConnected = false;
        this.#requests.end();
        try {
          await this.#tries.after(fault);
        } catch (error) {
          if (this.#cursor.length === 0 || !KennelError.is(error, "INVALID_FIELD", "CURSOR_AHEAD")) throw error;
          // The position is lost with the host: the screen is drawn anew.
          this.#cursor = new Uint8Array();
        }
      }
    }
  }

  async #attach(opened: () => void): Promise<void> {
    this.#requests = new RequestQueue();
    const open = {
      runId: this.runId,
      readOnly: this.options.readOnly ?? false,
      size: this.#size,
      cursor: this.#cursor,
    };
    this.#requests.push({ request: { case: "open", value: open } });
    if (this.#takes) this.#requests.push({ request: { case: "take", value: {} } });
    for (const write of this.#unanswered) this.#type(write);
    this.#isConnected = true;
    this.#send();
    this.#endIfDetached();
    const messages = await this.calls.open(ProcessService.method.attach, this.#requests, this.#own.signal);
    for (;;) {
      const { done, value: message } = await messages.next();
      if (done) {
        if (this.#hasEnded || this.#isDetaching) return;
        throw new Error("the terminal ended before the run");
      }
      this.#tries.answered();
      if (message.response.case === "opened") {
        opened();
        // The caller adds its listeners first.
        await new Promise((turn) => setImmediate(turn));
      }
      await this.#paused;
      this.#take(message);
    }
  }

  #take({ response }: AttachResponse): void {
    if (response.case === "opened") {
      this.#isWriter = response.value.writer?.you ?? false;
      for (const look of this.#changes) look();
      const { screen, run } = response.value;
      if (run && !isLiveState(run.state)) {
        // The screen is the last one, and no event follows it.
        this.#hasEnded = true;
        this.#exit = exitOf(run.currentAttempt?.exit);
      }
      const size = screen?.size ?? run?.terminalSize;
      if (size) this.#actual = { rows: size.rows, cols: size.cols };
      if (!screen) return;
      this.#cursor = screen.cursor as Bytes;
      if (!screen.untouched) this.#show(screen.repaint);
    } else if (response.case === "events") {
      for (const { events } of response.value.runEvents) {
        for (const { payload } of events) {
          if (payload.case === "output") this.#show(payload.value.data);
          if (payload.case !== "lifecycle") continue;
          const { station } = payload.value;
          if (station.case === "leaderExited") this.#exit = exitOf(station.value.exit);
          if (station.case === "terminalResized") this.#actual = { rows: station.value.rows, cols: station.value.cols };
          if (station.case === "ended") this.#hasEnded = true;
        }
      }
      if (response.value.cursor.length > 0) this.#cursor = response.value.cursor as Bytes;
    } else if (response.case === "taken" || response.case === "refused") {
      const { writeId } = response.value;
      const at = this.#unanswered.findIndex(({ id }) => id === writeId);
      const [write] = at < 0 ? [] : this.#unanswered.splice(at, 1);
      const { runId } = this;
      if (response.case === "taken") write?.done();
      else write?.done(new KennelError(response.value.reason, response.value.message, { runId }));
      this.#send();
      this.#endIfDetached();
    } else if (response.case === "writer") {
      this.#isWriter = response.value.you;
      for (const look of this.#changes) look();
    } else this.calls.stats.unknownEvents += 1;
  }

  #show(data: Uint8Array): void {
    const text = this.#decoder.decode(data, { stream: true });
    if (text === "") return;
    this.#seen.push(text);
    this.#seenLength += text.length;
    // Twice the bound, so that the text is put together once in a while only.
    if (this.#seenLength > 2 * DEFAULTS.expect_bytes) this.#text();
    for (const reader of this.#readers) reader(text);
    for (const look of this.#changes) look();
  }

  /** Returns what was shown and not found yet, up to the bound. */
  #text(): string {
    const text = this.#seen.join("").slice(-DEFAULTS.expect_bytes);
    [this.#seen, this.#seenLength] = [[text], text.length];
    return text;
  }

  #type({ id, data }: Write): void {
    this.#requests.push({ request: { case: "input", value: { data, writeId: id } } });
  }

  /** Sends what waits, as far as the server can recognise repeats. */
  #send(): void {
    while (this.#isConnected && this.#unanswered.length < TERMINAL.unanswered_max) {
      const write = this.#waiting.shift();
      if (!write) return;
      this.#unanswered.push(write);
      this.#type(write);
    }
  }

  #endIfDetached(): void {
    if (this.#isDetaching && this.#waiting.length === 0 && this.#unanswered.length === 0) this.#requests.end();
  }

  #finish(error: unknown): void {
    this.#end = { error };
    this.#isConnected = false;
    this.#isWriter = false;
    this.options.signal?.removeEventListener("abort", this.#stop);
    this.#own.abort();
    this.#requests.end();
    const late = error instanceof KennelError ? error : closed("terminal");
    for (const write of [...this.#unanswered, ...this.#waiting]) write.done(late);
    [this.#unanswered, this.#waiting] = [[], []];
    for (const look of this.#changes) look();
    if (!this.#hasEnded) return;
    const exit = { exitCode: this.#exit?.code ?? null, signal: this.#exit?.signal ?? null };
    for (const listener of this.#exits) listener(exit);
  }
}

function findText(seen: string, text: string): (RegExpExecArray | (string[] & { index: number })) | null {
  const index = seen.indexOf(text);
  return index < 0 ? null : Object.assign([text], { index });
}
