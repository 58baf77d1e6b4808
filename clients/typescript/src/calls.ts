// Calls, each repeated as its class allows: a lost one behind the gate, one that is answered "not now" after its time.

import {
  create,
  type DescMessage,
  type DescMethodBiDiStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type MessageInitShape,
  type MessageShape,
} from "@bufbuild/protobuf";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { aborted, closed, codeName, fromServer, KennelError } from "./errors.js";
import { type Gate, jitter, pause } from "./gate.js";
import { CALLS, DEFAULTS, GATE, REASONS } from "./gen/rules.js";
import { isRefusedCertificate, type Pool } from "./transport.js";

/** Settings of one call. */
export interface CallOptions {
  /** Ends the call, and not the run, when it is aborted. */
  signal?: AbortSignal | undefined;
  /** Time for the call with its repeats, in milliseconds. */
  timeoutMs?: number | undefined;
}

/** Settings of one call inside the package. */
export interface InnerOptions extends CallOptions {
  /** Run that errors are about. */
  runId?: string | undefined;
  /** Time for one try, in milliseconds: then the same request follows. */
  tryMs?: number | undefined;
  /** Counts the repeats of this call, for its caller. */
  counter?: { repeats: number };
}

/** Codes of a lost call, where no reason of Kennel is in the answer. */
const LOST = new Set([
  Code.Unavailable,
  Code.Canceled,
  Code.Internal,
  Code.Unknown,
  Code.DeadlineExceeded,
  Code.Aborted,
]);

/** Milliseconds by which a timer may be early. */
const TIMER_ERROR_MAX = 50;

type CallName = keyof typeof CALLS;

/** Tries of one call, stream or terminal: says after each fault whether and when it is made again. */
export class Tries {
  #isProbe = false;
  #epoch: number;
  #notNowSince: number | undefined;
  #isRepeat = false;

  constructor(
    private readonly calls: Calls,
    readonly name: CallName,
    private readonly options: InnerOptions,
    /** Time at which the call ends, by the monotonic clock. */
    readonly deadline: number = Number.POSITIVE_INFINITY,
  ) {
    this.#epoch = calls.gate.epoch;
  }

  /** Whether the present try repeats an earlier one. */
  get isRepeat(): boolean {
    return this.#isRepeat;
  }

  /** Notes an answer. */
  answered(): void {
    this.#isProbe = false;
    this.#notNowSince = undefined;
    this.calls.gate.answered();
  }

  /** Notes that the caller has ended the call. */
  dropped(): void {
    if (this.#isProbe) this.calls.gate.dropProbe();
    this.#isProbe = false;
  }

  /** Returns when the call is to be made again, or throws what the caller gets. */
  async after(fault: unknown): Promise<void> {
    const { signal, runId } = this.options;
    const { gate } = this.calls;
    if (signal?.aborted || this.calls.isClosed) {
      this.dropped();
      throw this.calls.isClosed ? closed("client") : aborted(signal as AbortSignal);
    }
    const error = fault instanceof KennelError ? fault : this.#kennelError(fault, runId);
    if (!error) {
      const code = ConnectError.from(fault).code;
      const isOwn = code === Code.DeadlineExceeded;
      if (isOwn && performance.now() >= this.deadline - TIMER_ERROR_MAX) {
        this.dropped();
        throw late(this.name, fault, runId);
      }
      if (isOwn && this.options.tryMs !== undefined) {
        // The try has had its time, as a full pipe gives no room: the same request follows.
        this.dropped();
        this.#isRepeat = true;
        return;
      }
      if (!CALLS[this.name].repeat) {
        this.dropped();
        throw lost(this.name, fault, runId);
      }
      gate.lost(fault, this.#epoch, this.#isProbe);
      this.#isProbe = false;
      this.#isProbe = await gate.turn(signal, this.deadline);
      this.#epoch = gate.epoch;
      this.#isRepeat = true;
      this.calls.stats.repeats += 1;
      return;
    }
    this.dropped();
    const isTry = error.reason === "DEADLINE_EXCEEDED" && performance.now() < this.deadline;
    if (isTry && this.options.tryMs !== undefined) {
      this.#isRepeat = true;
      return;
    }
    const wait = CALLS[this.name].repeat ? this.#notNow(error) : undefined;
    const now = performance.now();
    this.#notNowSince ??= now;
    const until = Math.min(this.#notNowSince + this.calls.patience, this.deadline);
    if (wait === undefined || now + wait > until) throw error;
    if (error.reason === "SERVER_REPLACED") this.calls.pool.retire();
    await pause(wait, signal);
    this.#isRepeat = true;
    this.#epoch = gate.epoch;
    this.calls.stats.repeats += 1;
  }

  /** Returns the error of a server, or one that no repeat changes; `undefined`: the call is lost. */
  #kennelError(fault: unknown, runId: string | undefined): KennelError | undefined {
    const error = ConnectError.from(fault);
    const known = fromServer(error, runId);
    if (known) {
      this.#isProbe = false;
      this.calls.gate.answered();
      if (known.reason !== "UNIMPLEMENTED") return known;
      return new KennelError("SERVER_TOO_OLD", `the server has no such call: ${known.message}`, {
        code: known.code,
        runId,
      });
    }
    for (let at: unknown = fault; at instanceof Error; at = at.cause) if (at instanceof KennelError) return at;
    const content = { code: codeName(error.code), runId };
    if (isRefusedCertificate(error)) {
      return new KennelError("UNAUTHENTICATED", `the server refuses this client's certificate: ${error.rawMessage}`, {
        ...content,
        code: "UNAUTHENTICATED",
      });
    }
    if (error.code === Code.Unimplemented) {
      return new KennelError("NOT_KENNEL", `the server is not Kennel: ${error.rawMessage}`, content);
    }
    const isLost = LOST.has(error.code) || /^http\/2 stream closed/.test(error.rawMessage);
    return isLost ? undefined : new KennelError(codeName(error.code), error.rawMessage, content);
  }

  /** Returns the time to wait where an error means "not now". */
  #notNow(error: KennelError): number | undefined {
    const rule = (REASONS as Record<string, { notNow: string }>)[error.reason]?.notNow ?? "";
    const isStream = CALLS[this.name].class === "stream";
    const applies =
      rule === "always" ||
      (rule === "not_spawn" && this.name !== "Spawn") ||
      (rule === "stream_with_retry_info" && isStream && error.retryAfter !== undefined);
    if (!applies || this.calls.patience === 0) return undefined;
    if (error.reason === "SERVER_REPLACED") return jitter(GATE.replaced_ms);
    const delay = error.retryAfter ?? GATE.retry_after_default_ms;
    return delay + jitter(delay / 2);
  }
}

function late(name: string, cause: unknown, runId: string | undefined): KennelError {
  const content = { code: "DEADLINE_EXCEEDED", isRetryable: true, runId, cause };
  return new KennelError("DEADLINE_EXCEEDED", `${name} had no answer in its time`, content);
}

function lost(name: string, cause: unknown, runId: string | undefined): KennelError {
  const why = ConnectError.from(cause).rawMessage;
  return new KennelError("SERVER_LOST", `${name} was lost, and is not repeated: ${why}`, {
    code: "UNAVAILABLE",
    runId,
    cause,
  });
}

/** Counters of a client. */
export interface Stats {
  /** Calls made again. */
  repeats: number;
  /** Times that the server was lost. */
  outages: number;
  /** Times that it answered again. */
  resumed: number;
  /** Probes sent while the server was away. */
  probes: number;
  /** Connections made. */
  dials: number;
  /** Open connections. */
  connections: number;
  /** Open calls. */
  streams: number;
  /** Events that this version does not know. */
  unknownEvents: number;
  /** States and activities that this version does not know. */
  unknownValues: number;
}

/** Calls to one server. */
export class Calls {
  readonly stats = { repeats: 0, unknownEvents: 0, unknownValues: 0 };

  constructor(
    readonly pool: Pool,
    readonly transport: Transport,
    readonly gate: Gate,
    readonly patience: number,
    readonly callTimeout: number,
  ) {}

  /** Whether the client is closed. */
  get isClosed(): boolean {
    return this.pool.isClosed;
  }

  /** Makes a call with one answer. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: InnerOptions = {},
  ): Promise<MessageShape<O>> {
    if (this.isClosed) throw closed("client");
    const { signal, tryMs } = options;
    if (signal?.aborted) throw aborted(signal);
    const name = method.name as CallName;
    const most = options.timeoutMs ?? (CALLS[name].deadline ? this.callTimeout : Number.POSITIVE_INFINITY);
    const deadline = performance.now() + most;
    const tries = new Tries(this, name, options, deadline);
    for (;;) {
      try {
        const left = Math.max(1, Math.ceil(Math.min(deadline - performance.now(), tryMs ?? Number.POSITIVE_INFINITY)));
        const timeout = Number.isFinite(left) ? left : undefined;
        const answer = await this.transport.unary(method, signal, timeout, undefined, request);
        tries.answered();
        return answer.message;
      } catch (fault) {
        const wasRepeat = tries.isRepeat;
        try {
          await tries.after(fault);
          if (options.counter) options.counter.repeats += 1;
        } catch (error) {
          // A repeat of a call that was done before its answer was lost.
          const isDone = wasRepeat && CALLS[name].done !== "" && KennelError.is(error, CALLS[name].done);
          if (!isDone) throw error;
          return create(method.output);
        }
      }
    }
  }

  /** Opens a stream once. Its faults are for {@link Tries}. */
  async open<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O> | DescMethodBiDiStreaming<I, O>,
    requests: AsyncIterable<MessageInitShape<I>>,
    signal: AbortSignal,
  ): Promise<AsyncIterator<MessageShape<O>>> {
    const answer = await this.transport.stream(method, signal, undefined, undefined, requests);
    return answer.message[Symbol.asyncIterator]() as AsyncIterator<MessageShape<O>>;
  }
}

/** Returns the one request of a stream whose caller sends no more. */
export async function* only<T>(request: T): AsyncGenerator<T> {
  yield request;
}

/** Default of the time for Abort beyond its grace, in milliseconds. */
export const ABORT_TIMEOUT = DEFAULTS.abort_timeout_ms;
