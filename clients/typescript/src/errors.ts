// Errors: one class, whose reason says what happened.

import { fromBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/kennel/_internal/status_pb.js";
import { DOMAIN, type OWN_REASONS, type REASONS } from "./gen/rules.js";

/** Reason of an error that a server reports. `docs/errors` has a page for each. */
export type ServerReason = keyof typeof REASONS;
/** Reason of an error that this package reports. */
export type ClientReason = (typeof OWN_REASONS)[number];
/** Reason of an error. Open: a newer server has more reasons, which stay text. */
export type Reason = ServerReason | ClientReason | (string & {});

/** Fault of one field of a request. */
export interface Violation {
  /** Path of the field in the request, such as `spec.cwd`. */
  field: string;
  /** Fault in plain words. */
  description: string;
}

/** Content of a {@link KennelError}. */
export interface ErrorContent {
  /** Name of the gRPC code. Default: `FAILED_PRECONDITION`. */
  code?: string;
  /** Metadata of the reason. */
  metadata?: Record<string, string>;
  /** Faults of the request. */
  violations?: Violation[];
  /** Time in milliseconds after which the server asks to try again. */
  retryAfter?: number | undefined;
  /** Whether the call may succeed later. */
  isRetryable?: boolean;
  /** Run that the error is about. */
  runId?: string | undefined;
  /** Error that led to this one. */
  cause?: unknown;
}

/**
 * Failure of a call. Compare `reason`, not `message`. Neither contains a token, a key, or a value of a variable, a
 * secret
 * or an input.
 */
export class KennelError extends Error {
  override readonly name: string = "KennelError";
  /** What happened. */
  readonly reason: Reason;
  /** Name of the gRPC code, such as `NOT_FOUND`; `EPIPE` where a stream of Node reports closed input. */
  readonly code: string;
  /** Metadata of the reason, such as `accepted_offset`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Faults of the request, one for each field. */
  readonly violations: readonly Violation[];
  /** Time in milliseconds after which the server asks to try again. */
  readonly retryAfter: number | undefined;
  /** Whether the same call may succeed later. */
  readonly isRetryable: boolean;
  /** Run that the error is about. */
  readonly runId: string | undefined;

  /** Makes an error. */
  constructor(reason: Reason, message: string, content: ErrorContent = {}) {
    super(message, content.cause === undefined ? undefined : { cause: content.cause });
    this.reason = reason;
    this.code = content.code ?? "FAILED_PRECONDITION";
    this.metadata = content.metadata ?? {};
    this.violations = content.violations ?? [];
    this.retryAfter = content.retryAfter;
    this.isRetryable = content.isRetryable ?? false;
    this.runId = content.runId;
  }

  /** Returns the error that a raw stub has thrown, with its reason; `undefined`: no reason of Kennel is in it. */
  static from(error: unknown): KennelError | undefined {
    if (error instanceof KennelError) return error;
    return error instanceof ConnectError ? fromServer(error) : undefined;
  }

  /** Says whether a value is such an error, and, with reasons, one of these. */
  static is(value: unknown, ...reasons: Reason[]): value is KennelError {
    return value instanceof KennelError && (reasons.length === 0 || reasons.includes(value.reason));
  }
}

/** Returns the name of a gRPC code as in the contract. */
export function codeName(code: Code): string {
  const name = Code[code] ?? "Unknown";
  // The library spells this one differently.
  return name === "Canceled" ? "CANCELLED" : name.replace(/(?<=[a-z])[A-Z]/g, "_$&").toUpperCase();
}

/** Returns the error of a closed client or stream. */
export function closed(what: string): KennelError {
  return new KennelError("CLOSED", `the ${what} is closed`, { code: "CANCELLED" });
}

/** Returns the error that an aborted signal stands for. */
export function aborted(signal: AbortSignal): unknown {
  return signal.reason ?? new DOMException("This operation was aborted", "AbortError");
}

/** Returns the error of a server with its details, or `undefined` if no reason of Kennel is in it. */
export function fromServer(error: ConnectError, runId?: string): KennelError | undefined {
  const all = (type: string) =>
    error.details.flatMap((detail) => ("type" in detail && detail.type === type ? [detail.value] : []));
  const info = all("google.rpc.ErrorInfo")
    .map((bytes) => fromBinary(ErrorInfoSchema, bytes))
    .find(({ domain }) => domain === DOMAIN);
  if (!info) return undefined;
  const delay = all("google.rpc.RetryInfo").map((bytes) => fromBinary(RetryInfoSchema, bytes).retryDelay)[0];
  const faults = all("google.rpc.BadRequest").flatMap((bytes) => fromBinary(BadRequestSchema, bytes).fieldViolations);
  return new KennelError(info.reason, error.rawMessage, {
    code: codeName(error.code),
    metadata: info.metadata,
    violations: faults.map(({ field, description }) => ({ field, description })),
    retryAfter: delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6,
    isRetryable: delay !== undefined || error.code === Code.Unavailable,
    runId: info.metadata.run_id || runId,
  });
}
