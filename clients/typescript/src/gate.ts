// The gate: when a lost call is made again. A client has one, so that a thousand runs send one probe.

import { EventEmitter } from "node:events";
import { aborted, KennelError } from "./errors.js";
import { GATE } from "./gen/rules.js";

/** A call that waits for its turn. */
interface Waiter {
  go(isProbe: boolean): void;
  fail(error: KennelError): void;
}

/** Returns a random time below a bound. */
export function jitter(below: number): number {
  return Math.random() * below;
}

/** Waits, as long as the signal is not aborted. */
export async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) throw aborted(signal);
  await new Promise<void>((done, failed) => {
    const stop = () => {
      clearTimeout(timer);
      failed(aborted(signal as AbortSignal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      done();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Events of a gate. */
export interface GateEvents {
  /** The server is lost; calls wait for it. */
  lost: [cause: unknown];
  /** The server answers again. */
  resumed: [];
}

/**
 * State of the server as calls see it. First tries never wait. A lost call waits here: while the server is down, one at
 * a
 * time goes out as the probe, and the others follow its answer within a moment.
 */
export class Gate extends EventEmitter<GateEvents> {
  /** Number of outages that are over; a call that began in an earlier one does not report a new one. */
  epoch = 0;
  /** Number of outages, for `stats`. */
  outages = 0;
  /** Number of probes, for `stats`. */
  probes = 0;
  #isDown = false;
  #downSince = 0;
  #tries = 0;
  #cause: unknown;
  #isProbing = false;
  #turn: NodeJS.Timeout | undefined;
  #alive: NodeJS.Timeout | undefined;
  readonly #waiters = new Set<Waiter>();

  /**
   * Makes a gate that gives up after `patience` milliseconds, or at once where `hasEnded` says that no server follows.
   */
  constructor(
    private readonly patience: number,
    private readonly hasEnded: () => boolean = () => false,
  ) {
    super();
    this.setMaxListeners(0);
  }

  /** Whether calls wait for the server. */
  get isDown(): boolean {
    return this.#isDown;
  }

  /** Notes a sign of life. */
  answered(): void {
    if (!this.#isDown) return;
    this.#isDown = false;
    this.epoch += 1;
    this.#endProbe();
    clearTimeout(this.#turn);
    this.#turn = undefined;
    for (const waiter of this.#waiters) setTimeout(() => waiter.go(false), jitter(GATE.spread_ms));
    this.emit("resumed");
  }

  /** Notes that a probe ends without an answer. */
  dropProbe(): void {
    this.#endProbe();
    this.#schedule();
  }

  /** Notes a lost call. */
  lost(cause: unknown, epoch: number, wasProbe: boolean): void {
    this.#cause = cause;
    if (wasProbe && this.#isProbing) {
      this.#endProbe();
      this.#tries += 1;
      this.#schedule();
    } else if (!this.#isDown && epoch === this.epoch) {
      this.#isDown = true;
      this.outages += 1;
      this.#tries = 0;
      this.#downSince = performance.now();
      this.emit("lost", cause);
    }
  }

  /** Waits for the turn of a lost call, and says whether it is the probe. */
  async turn(signal: AbortSignal | undefined, deadline: number): Promise<boolean> {
    if (signal?.aborted) throw aborted(signal);
    const now = performance.now();
    if (this.#isDown && this.#waiters.size === 0 && !this.#isProbing && now - this.#downSince >= this.patience)
      this.#downSince = now;
    const givesUp = this.#isDown ? this.#downSince + this.patience : Number.POSITIVE_INFINITY;
    if (this.patience === 0 || this.hasEnded()) throw this.#ended();
    return await new Promise<boolean>((done, failed) => {
      const finish = (end: () => void) => {
        this.#waiters.delete(waiter);
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
        end();
      };
      const stop = () => finish(() => failed(aborted(signal as AbortSignal)));
      const waiter: Waiter = {
        go: (isProbe) => finish(() => done(isProbe)),
        fail: (error) => finish(() => failed(error)),
      };
      const until = Math.min(givesUp, deadline);
      const late = () => finish(() => failed(until === deadline ? this.#late() : this.#ended()));
      // Without a bound there is no timer: the answer to a probe ends this.
      const timer = Number.isFinite(until) ? setTimeout(late, until - now) : undefined;
      signal?.addEventListener("abort", stop, { once: true });
      this.#waiters.add(waiter);
      if (this.#isDown) this.#schedule();
      else setTimeout(() => waiter.go(false), jitter(GATE.spread_ms));
    });
  }

  /** Ends all waits, as no server follows. */
  giveUp(): void {
    if (!this.#isDown || !this.hasEnded()) return;
    for (const waiter of this.#waiters) waiter.fail(this.#ended());
  }

  /** Ends all waits, as the client is closed. */
  close(): void {
    this.#endProbe();
    clearTimeout(this.#turn);
    this.#isDown = false;
    for (const waiter of this.#waiters) waiter.go(false);
  }

  #schedule(): void {
    if (!this.#isDown || this.#isProbing || this.#turn || this.#waiters.size === 0) return;
    const most = Math.min(GATE.probe_max_ms, GATE.probe_base_ms * 2 ** Math.min(this.#tries, 16));
    this.#turn = setTimeout(() => {
      this.#turn = undefined;
      const [next] = this.#waiters;
      if (!next || !this.#isDown) return;
      this.#isProbing = true;
      this.probes += 1;
      // A probe may be a call that waits: not to fail is an answer.
      this.#alive = setTimeout(() => this.answered(), GATE.probe_alive_ms);
      next.go(true);
    }, jitter(most));
  }

  #endProbe(): void {
    clearTimeout(this.#alive);
    this.#alive = undefined;
    this.#isProbing = false;
  }

  #late(): KennelError {
    return new KennelError("DEADLINE_EXCEEDED", "the call's time was over while the server was away", {
      code: "DEADLINE_EXCEEDED",
      isRetryable: true,
      cause: this.#cause,
    });
  }

  #ended(): KennelError {
    const why = this.#cause instanceof Error ? this.#cause.message : String(this.#cause);
    if (this.hasEnded() || isAbsent(this.#cause)) {
      return new KennelError("SERVICE_ENDED", `the service has ended: ${why}`, {
        code: "UNAVAILABLE",
        cause: this.#cause,
      });
    }
    const content = { code: "UNAVAILABLE", isRetryable: true, cause: this.#cause };
    return new KennelError("SERVER_LOST", `the server does not answer: ${why}`, content);
  }
}

/** Says whether an error means that nothing listens at the address. */
export function isAbsent(error: unknown): boolean {
  for (let at: unknown = error; at instanceof Error; at = at.cause) {
    if (["ENOENT", "ECONNREFUSED"].includes((at as NodeJS.ErrnoException).code ?? "")) return true;
  }
  return false;
}
