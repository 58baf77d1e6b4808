// Output of a run: bytes as streams of Node, lines, and values of JSON.

import { Readable } from "node:stream";
import type { EventFeed, EventOptions, RunEvent } from "./events.js";
import { OutputStream } from "./gen/kennel/v1/run_pb.js";

/** A line of output. */
export interface Line {
  /** Stream that it was written to. */
  readonly stream: "stdout" | "stderr";
  /** Text without its end. */
  readonly text: string;
  /** True: the line is longer than `lineBytesMax`, and continues in the next one. */
  readonly isTruncated: boolean;
  /** Offset of its first byte in the stream. */
  readonly offset: bigint;
  /** Number of the event in which it ended. */
  readonly seq: bigint;
  /** Number of the attempt. */
  readonly attempt: number;
  /** Time of that event. */
  readonly time: Date | undefined;
}

/** Settings of lines. */
export interface LineOptions extends Omit<EventOptions, "kinds"> {
  /** Streams. Default: both. */
  streams?: ("stdout" | "stderr")[];
  /** Longest line in bytes. Default: 64 KiB. */
  lineBytesMax?: number;
  /** True: without escape sequences. */
  plain?: boolean;
}

/** Settings of lines of JSON. */
export interface JsonOptions extends Omit<LineOptions, "lineBytesMax" | "plain"> {
  /** What a line means that is not JSON: a SyntaxError, or nothing. Default: `skip`. */
  onInvalid?: "error" | "skip";
}

/** Bytes of a line of JSON that are put together. */
const JSON_LINE_MAX = 64 * 1024 * 1024;

/** Returns the name of a stream. */
export function streamName(stream: OutputStream): "stdout" | "stderr" {
  return stream === OutputStream.STDERR ? "stderr" : "stdout";
}

/** One stream of a run's output, read from the server as it is read here. */
export class OutputReadable extends Readable {
  #feed: EventFeed | undefined;

  constructor(
    private readonly open: () => EventFeed,
    private readonly wanted: OutputStream,
  ) {
    super({ highWaterMark: 64 * 1024 });
  }

  override _read(): void {
    this.#next().catch((error: Error) => this.destroy(error));
  }

  async #next(): Promise<void> {
    this.#feed ??= this.open();
    for (;;) {
      const { done, value: event } = await this.#feed.next();
      if (this.destroyed) return;
      if (done) {
        this.push(null);
        return;
      }
      if (event.kind !== "output" || event.value.stream !== this.wanted || event.value.data.length === 0) continue;
      const { data } = event.value;
      this.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
      return;
    }
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    void this.#feed?.return();
    done(error);
  }
}

/** Iterates over a feed, and ends its stream at once when the iteration is left, also while a value is awaited. */
export function iterate<T>(open: () => EventFeed, map: (event: RunEvent) => T | undefined): AsyncIterableIterator<T> {
  let feed: EventFeed | undefined;
  let isDone = false;
  const iterator: AsyncIterableIterator<T> = {
    [Symbol.asyncIterator]: () => iterator,
    async next() {
      for (;;) {
        if (isDone) return { done: true, value: undefined };
        feed ??= open();
        const { done, value } = await feed.next();
        if (done) {
          isDone = true;
          return { done: true, value: undefined };
        }
        try {
          const mapped = map(value);
          if (mapped !== undefined) return { done: false, value: mapped };
        } catch (error) {
          isDone = true;
          await feed.return();
          throw error;
        }
      }
    },
    async return() {
      isDone = true;
      await feed?.return();
      return { done: true, value: undefined };
    },
  };
  return iterator;
}

/** Returns the line of an event. */
export function lineOf(event: RunEvent): Line | undefined {
  if (event.kind !== "line") return undefined;
  const { stream, text, truncated, offset } = event.value;
  const { seq, attempt, time } = event;
  return { stream: streamName(stream), text, isTruncated: truncated, offset, seq, attempt, time };
}

/** Returns a function that parses lines, pieces of long ones put together. */
export function jsonParser<T>(onInvalid: "error" | "skip"): (event: RunEvent) => { value: T } | undefined {
  const pieces = new Map<string, string>();
  return (event) => {
    const line = lineOf(event);
    if (!line) return undefined;
    const text = (pieces.get(line.stream) ?? "") + line.text;
    if (line.isTruncated && text.length < JSON_LINE_MAX) {
      pieces.set(line.stream, text);
      return undefined;
    }
    pieces.delete(line.stream);
    try {
      return { value: JSON.parse(text) as T };
    } catch (cause) {
      if (onInvalid === "skip") return undefined;
      const message = `a line of ${line.stream} is not JSON, at offset ${line.offset}`;
      throw new SyntaxError(message, { cause });
    }
  };
}

/** Head and tail of a stream, up to a bound. */
export class HeadTail {
  omitted = 0n;
  #head: Buffer[] = [];
  #headBytes = 0;
  #tail: Buffer[] = [];
  #tailBytes = 0;

  constructor(private readonly most: number) {}

  /** Adds bytes. */
  add(data: Buffer): void {
    const half = Math.ceil(this.most / 2);
    const room = Math.max(0, half - this.#headBytes);
    if (room > 0) {
      this.#head.push(data.subarray(0, room));
      this.#headBytes += Math.min(room, data.length);
    }
    const rest = data.subarray(room);
    if (rest.length === 0) return;
    this.#tail.push(rest);
    this.#tailBytes += rest.length;
    while (this.#tailBytes > this.most - half) {
      const first = this.#tail[0] as Buffer;
      const cut = Math.min(first.length, this.#tailBytes - (this.most - half));
      this.omitted += BigInt(cut);
      this.#tailBytes -= cut;
      if (cut === first.length) this.#tail.shift();
      else this.#tail[0] = first.subarray(cut);
    }
  }

  /** Returns what is there. */
  bytes(): Buffer {
    return Buffer.concat([...this.#head, ...this.#tail]);
  }
}
