// Standard input of a run, each byte once, and both directions of an attempt as one pair.

import { Writable } from "node:stream";
import type { Calls } from "./calls.js";
import { closed, KennelError } from "./errors.js";
import type { EventFeed, RunEvent } from "./events.js";
import { ProcessService } from "./gen/kennel/v1/process_service_pb.js";
import { type InputStatus, OutputStream } from "./gen/kennel/v1/run_pb.js";
import { INPUT } from "./gen/rules.js";
import { ulid } from "./ulid.js";

const { writeInput, closeInput, getInputStatus } = ProcessService.method;

/** Settings of a run's input. */
export interface InputOptions {
  /** True: several clients write; each write has an id and no offset. */
  shared?: boolean;
}

/** Reasons with which the command reads no more. */
const CLOSED = ["INPUT_CLOSED", "RUN_ENDED"];

/** Position of one attempt's input. */
export class InputPosition {
  #attempt: number | undefined;
  #offset: bigint | undefined;
  readonly #isShared: boolean;

  /** Makes the position of a run: that of its first byte, where the caller has just spawned it. */
  constructor(
    private readonly calls: Calls,
    private readonly runId: () => string,
    isNew: boolean,
    options: InputOptions = {},
  ) {
    this.#isShared = options.shared ?? false;
    if (isNew) [this.#attempt, this.#offset] = [1, 0n];
  }

  /** Number of the attempt, once it is known. */
  get attempt(): number | undefined {
    return this.#attempt;
  }

  /** Number of accepted bytes, once it is known. */
  get offset(): bigint | undefined {
    return this.#offset;
  }

  /** Reads the position, where it is not known. */
  async find(signal?: AbortSignal): Promise<void> {
    if (this.#attempt !== undefined) return;
    const runId = this.runId();
    const { input } = await this.calls.unary(getInputStatus, { runId }, { signal, runId });
    if (input?.acceptedOffset === undefined)
      throw new KennelError("INPUT_OFFSET_UNKNOWN", "the number of accepted bytes is not known", { runId });
    [this.#attempt, this.#offset] = [input.attempt, input.acceptedOffset];
  }

  /** Continues after bytes that were written elsewhere. */
  continueAt(input: InputStatus | undefined): void {
    [this.#attempt, this.#offset] =
      input?.acceptedOffset === undefined ? [undefined, undefined] : [input.attempt, input.acceptedOffset];
  }

  /** Writes bytes, piece by piece: each has been accepted when this returns. */
  async write(data: Uint8Array, signal?: AbortSignal): Promise<void> {
    const runId = this.runId();
    await this.find(signal);
    for (let at = 0; at < data.length; at += INPUT.piece_bytes) {
      const piece = data.subarray(at, at + INPUT.piece_bytes) as Uint8Array<ArrayBuffer>;
      const position = this.#isShared ? {} : { offset: this.#offset, expectedAttempt: this.#attempt };
      const request = { runId, data: piece, writeId: ulid(), ...position };
      const counter = { repeats: 0 };
      const bounds = { timeoutMs: Number.POSITIVE_INFINITY, tryMs: INPUT.call_timeout_ms };
      const answer = await this.calls.unary(writeInput, request, { signal, runId, counter, ...bounds });
      const { input } = answer;
      // A first try cannot be a repeat: another client has written these bytes' place, and they were not written.
      if (answer.repeatedRequest && counter.repeats === 0) throw mismatch(runId, input?.acceptedOffset);
      this.#offset = input?.acceptedOffset ?? (this.#offset ?? 0n) + BigInt(piece.length);
    }
  }

  /** Closes the input after the last byte that was written here. */
  async close(signal?: AbortSignal): Promise<void> {
    const runId = this.runId();
    await this.find(signal);
    const position = this.#isShared ? {} : { offset: this.#offset, expectedAttempt: this.#attempt };
    const options = { signal, runId, timeoutMs: Number.POSITIVE_INFINITY, tryMs: INPUT.call_timeout_ms };
    await this.calls.unary(closeInput, { runId, ...position }, options);
  }
}

function mismatch(runId: string, accepted: bigint | undefined): KennelError {
  return new KennelError("INPUT_OFFSET_MISMATCH", "another client has written to the input meanwhile", {
    code: "OUT_OF_RANGE",
    metadata: { accepted_offset: `${accepted ?? ""}` },
    runId,
  });
}

/** Returns the error of a write as a stream of Node reports it: EPIPE where the command reads no more. */
function asStreamError(error: unknown): Error {
  if (!KennelError.is(error, ...CLOSED)) return error instanceof Error ? error : new Error(String(error));
  const { message, metadata, runId } = error;
  return new KennelError(error.reason, message, { code: "EPIPE", metadata, runId, cause: error });
}

/** Standard input as a stream of Node. */
export class InputStream extends Writable {
  readonly #own = new AbortController();

  constructor(private readonly position: InputPosition) {
    super({ highWaterMark: INPUT.buffer_bytes, decodeStrings: true });
  }

  /** Number of bytes of the attempt's input that were accepted; `undefined`: not known before the first write. */
  get accepted(): bigint | undefined {
    return this.position.offset;
  }

  /** @internal Continues after bytes that were written elsewhere. */
  continueAt(input: InputStatus | undefined): void {
    this.position.continueAt(input);
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    this.position.write(chunk, this.#own.signal).then(
      () => done(),
      (error) => done(asStreamError(error)),
    );
  }

  override _writev(chunks: { chunk: Buffer }[], done: (error?: Error | null) => void): void {
    this._write(Buffer.concat(chunks.map(({ chunk }) => chunk)), "utf8", done);
  }

  override _final(done: (error?: Error | null) => void): void {
    const close = this.position.close(this.#own.signal);
    close.then(
      () => done(),
      // An ended run has no input to close: all bytes were accepted before.
      (error) => (KennelError.is(error, "RUN_ENDED") ? done() : done(asStreamError(error))),
    );
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#own.abort(error ?? closed("stream"));
    done(error);
  }
}

/** Both directions of one attempt. */
export interface Duplex {
  /** Standard output. */
  readonly readable: ReadableStream<Uint8Array<ArrayBuffer>>;
  /** Standard input. */
  readonly writable: WritableStream<Uint8Array>;
}

/**
 * Makes the pair of an attempt, whose end ends both. With `isLive` nothing is written before its output is followed.
 */
export function duplexOf(feed: EventFeed, position: InputPosition, runId: string, isLive: boolean): Duplex {
  const own = new AbortController();
  const over = () => new KennelError("ATTEMPT_ENDED", "the attempt of this stream has ended", { runId });
  let isOver = false;
  let opening: Promise<void> | undefined;
  const open = () => {
    opening ??= position.find(own.signal).then(() => (isLive ? feed.start() : undefined));
    return opening;
  };
  const end = () => {
    isOver = true;
    own.abort(over());
    void feed.return();
  };
  const readable = new ReadableStream<Uint8Array<ArrayBuffer>>(
    {
      async pull(controller) {
        await open();
        for (;;) {
          const { done, value: event } = await feed.next();
          if (done) {
            end();
            controller.close();
            return;
          }
          const attempt = position.attempt;
          if (attempt !== undefined && event.attempt > attempt) {
            end();
            controller.error(over());
            return;
          }
          if (attempt !== undefined && event.attempt < attempt) continue;
          if (isStdout(event)) {
            controller.enqueue(event.value.data as Uint8Array<ArrayBuffer>);
            return;
          }
          // Another attempt follows, with an output and an input of its own.
          if (event.kind === "attemptEnded") {
            end();
            controller.error(over());
            return;
          }
        }
      },
      cancel: end,
    },
    { highWaterMark: 0 },
  );
  const writable = new WritableStream<Uint8Array>(
    {
      async write(chunk) {
        if (isOver) throw over();
        await open();
        await position.write(chunk, own.signal).catch((error) => {
          throw KennelError.is(error, "ATTEMPT_MISMATCH", "RUN_ENDED", "INVALID_STATE") ? over() : error;
        });
      },
      async close() {
        if (isOver) return;
        await position.close(own.signal).catch((error) => {
          if (!KennelError.is(error, "RUN_ENDED", "ATTEMPT_ENDED")) throw error;
        });
      },
      abort: (reason) => own.abort(reason),
    },
    { highWaterMark: INPUT.buffer_bytes, size: (chunk) => chunk.byteLength },
  );
  return { readable, writable };
}

function isStdout(event: RunEvent): event is RunEvent & { kind: "output" } {
  return event.kind === "output" && event.value.stream === OutputStream.STDOUT && event.value.data.length > 0;
}
