// The client: how a server is reached, and what is asked of it as a whole.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient } from "@connectrpc/connect";
import { type CallOptions, Calls, only, type Stats, Tries } from "./calls.js";
import { aborted, closed, KennelError } from "./errors.js";
import { EventFeed, type EventOptions } from "./events.js";
import { Gate, isAbsent, jitter, pause } from "./gate.js";
import {
  AbortUnknown,
  AbortWait,
  ForEachRunRequestSchema as ForEachRunRequest,
  type ForEachRunRequestSchema,
  OnNameConflict,
  ProcessService,
  type RunFilterSchema,
  type RunOutcome,
  RunOutcome_OutcomeSchema,
} from "./gen/kennel/v1/process_service_pb.js";
import { RunStateSchema } from "./gen/kennel/v1/run_pb.js";
import { DEFAULTS, GATE } from "./gen/rules.js";
import { type LocalOptions, type LocalServer, startLocal } from "./local.js";
import { HeadTail } from "./output.js";
import { AdminService, type Node as NodeMessage, type ServerInfo } from "./raw.js";
import { Run } from "./run.js";
import { type SpawnOptions, spawnRequest } from "./spec.js";
import { addressText, resolveTarget, type Target, type TargetOptions } from "./target.js";
import type { AttachOptions, Terminal } from "./terminal.js";
import { Pool } from "./transport.js";
import { ulid } from "./ulid.js";
import { duration, enumName, enumValue, LIVE_STATE_VALUES, present } from "./view.js";

/** Settings of a client. */
export interface ClientOptions {
  /** Time without a sign of life of the server after which calls fail, in milliseconds; 0: no call is repeated. Default: 60 s. */
  patience?: number;
  /** Time for a short call with its repeats, in milliseconds. Default: 60 s. */
  callTimeout?: number;
  /** Returns metadata of each call, such as `traceparent`. */
  metadata?: () => Record<string, string>;
}

/** Settings of a connection: options win over variables, variables over a context, a context over the default socket. */
export interface ConnectOptions extends TargetOptions, ClientOptions {
  /** Time for the first connection where nothing listens, in milliseconds. Default: 0. */
  connectPatience?: number;
  /** Ends the attempt to connect, when it is aborted. */
  signal?: AbortSignal;
}

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

/** Selection of runs. Each field that is given must match. */
export interface RunQuery {
  /** Label selector, as that of Kubernetes. */
  selector?: string;
  /** Labels. */
  labels?: Readonly<Record<string, string>>;
  /** States, such as `RUNNING`. */
  states?: readonly string[];
  /** True (default, unless `states` are given): runs that have not ended. */
  live?: boolean;
  /** Names, with `*` and `?`. */
  names?: readonly string[];
  /** Ids. */
  ids?: readonly string[];
  /** Owners. */
  owners?: readonly string[];
  /** Node, by name or id. */
  node?: string;
  /** Run whose children are selected. */
  parent?: string;
  /** Run whose descendants are selected. */
  below?: string;
  /** Other fields of the contract. */
  filter?: MessageInitShape<typeof RunFilterSchema>;
}

/** What is done to each run of a selection. */
export type Action =
  | "interrupt"
  | "pause"
  | "resume"
  | "restart"
  | "remove"
  | { readonly abort: { readonly graceMs?: number } }
  | { readonly signal: string }
  | { readonly annotate: { readonly set?: Record<string, string>; readonly remove?: string[] } };

/** Settings of {@link Kennel.forEach}. */
export interface ForEachOptions extends CallOptions {
  /** True: nothing is done; the result has the runs, and their `selection`. */
  dryRun?: boolean;
  /** Most runs that may match. Default: 1000. */
  atMost?: number;
  /** Runs that are acted upon at the same time. */
  parallel?: number;
  /** True: an empty selection is meant. */
  all?: boolean;
  /** `selection` of a dry run: other runs are left out. */
  selection?: Uint8Array;
}

/** Result of {@link Kennel.forEach}. */
export interface ForEachResult {
  /** What was done to each run. */
  readonly outcomes: readonly {
    readonly run: Run;
    readonly outcome: string;
    readonly reason: string;
    readonly message: string;
  }[];
  /** Number of runs by outcome. */
  readonly counts: Readonly<Record<string, number>>;
  /** The runs, for the real call after a dry run. */
  readonly selection: Uint8Array;
  /** Nodes with some of these runs that cannot be reached. */
  readonly unreachableNodes: readonly string[];
}

/** Caller on whose behalf an admin calls. */
export interface Caller {
  /** Principal, such as `uid:1000`. */
  principal: string;
  /** Role: `viewer`, `spawner`, `operator` or `admin`. */
  role: string;
  /** Owner of the runs. */
  owner: string;
}

/** Runs page by page. */
export interface RunList extends AsyncIterable<Run> {
  /** Returns all of them. */
  all(): Promise<Run[]>;
}

const rpc = ProcessService.method;
/** Bytes that one ReadOutput returns at most. */
const READ_BYTES = 1024 * 1024;
/** Longest standard input that a spec has. */
const INPUT_BYTES_MAX = 1024 * 1024;

/** What several views of one client share. */
interface Shared {
  readonly pool: Pool;
  readonly gate: Gate;
  readonly fences: Set<Promise<unknown>>;
  readonly children: Set<Calls>;
  readonly local: LocalServer | undefined;
  closing: Promise<void> | undefined;
}

/** A client of one server. Its runs are the server's: `close` ends none of them. */
export class Kennel {
  readonly #calls: Calls;
  readonly #shared: Shared;
  readonly #options: ClientOptions;
  readonly #headers: Record<string, string>;
  #raw: { process: Client<typeof ProcessService>; admin: Client<typeof AdminService> } | undefined;

  private constructor(shared: Shared, options: ClientOptions, headers: Record<string, string>) {
    const { patience = DEFAULTS.patience_ms, callTimeout = DEFAULTS.call_timeout_ms, metadata } = options;
    const transport = shared.pool.transport({ headers: () => ({ ...metadata?.(), ...headers }) });
    this.#calls = new Calls(shared.pool, transport, shared.gate, patience, callTimeout);
    shared.children.add(this.#calls);
    [this.#shared, this.#options, this.#headers] = [shared, options, headers];
  }

  /** Connects to the server that the options, the environment or the current context name. */
  static async connect(options: ConnectOptions = {}): Promise<Kennel> {
    const { connectPatience = DEFAULTS.connect_patience_ms, signal } = options;
    if (signal?.aborted) throw aborted(signal);
    const target = resolveTarget(options);
    const client = Kennel.#of(target, options, undefined);
    try {
      await client.#dial(target, performance.now() + connectPatience, signal);
    } catch (error) {
      client.#shared.pool.close();
      throw error;
    }
    return client;
  }

  /** Starts a server of this process only, in a fresh directory. It ends with the client or the process, with its runs. */
  static async local(options: LocalOptions & ClientOptions = {}): Promise<Kennel> {
    const local = await startLocal(options);
    const target: Target = { address: { kind: "unix", path: local.socket }, credentials: {}, node: undefined };
    const client = Kennel.#of(target, options, local);
    try {
      const until = performance.now() + (options.patience || DEFAULTS.patience_ms);
      await client.#dial(target, until, undefined);
    } catch (error) {
      client.#shared.pool.close();
      await local.end();
      throw error;
    }
    return client;
  }

  static #of(target: Target, options: ClientOptions, local: LocalServer | undefined): Kennel {
    const pool = new Pool(target);
    const gate = new Gate(options.patience ?? DEFAULTS.patience_ms, () => local?.hasEnded ?? false);
    const shared = {
      pool,
      gate,
      fences: new Set<Promise<unknown>>(),
      children: new Set<Calls>(),
      local,
      closing: undefined,
    };
    return new Kennel(shared, options, target.node === undefined ? {} : { "kennel-node": target.node });
  }

  /** Opens the first connection, and over a network shows the credentials, so that a refusal is reported here. */
  async #dial(target: Target, until: number, signal: AbortSignal | undefined): Promise<void> {
    const where = addressText(target.address);
    for (let tries = 0; ; tries += 1) {
      try {
        await this.#shared.pool.connect();
        break;
      } catch (cause) {
        if (cause instanceof KennelError) throw cause;
        const why = (cause as Error).message;
        const { local } = this.#shared;
        if (local?.hasEnded)
          throw new KennelError("SERVICE_ENDED", `the local server has ended: ${local.log}`, {
            code: "UNAVAILABLE",
            cause,
          });
        const content = { code: "UNAVAILABLE", isRetryable: true, cause };
        if (performance.now() >= until || !(isAbsent(cause) || tries === 0))
          throw new KennelError("CONNECT_FAILED", `no server at ${where}: ${why}`, content);
        await pause(
          Math.min(jitter(GATE.probe_base_ms * 2 ** Math.min(tries, 5)), Math.max(0, until - performance.now())),
          signal,
        );
      }
    }
    if (target.address.kind === "unix") return;
    try {
      await this.info({ signal });
    } catch (error) {
      // All other refusals are those of the call that the caller makes.
      if (KennelError.is(error, "UNAUTHENTICATED", "NOT_KENNEL", "UNTRUSTED_SERVER")) throw error;
      if (KennelError.is(error, "SERVER_LOST", "SERVICE_ENDED")) {
        throw new KennelError("CONNECT_FAILED", `no server at ${where}: ${error.message}`, {
          code: "UNAVAILABLE",
          cause: error,
        });
      }
      if (!KennelError.is(error)) throw error;
    }
  }

  /** The server that `local()` has started. */
  get local(): Omit<LocalServer, "end" | "socket"> | undefined {
    return this.#shared.local;
  }

  /** Address of the server. */
  get address(): string {
    return addressText(this.#shared.pool.target.address);
  }

  /** Stubs of the contract, with this client's connections and credentials. They repeat nothing. */
  get raw(): { readonly process: Client<typeof ProcessService>; readonly admin: Client<typeof AdminService> } {
    const { transport } = this.#calls;
    this.#raw ??= { process: createClient(ProcessService, transport), admin: createClient(AdminService, transport) };
    return this.#raw;
  }

  /** Counters. */
  get stats(): Stats {
    const { pool, gate } = this.#shared;
    const { dials, connections, streams } = pool;
    const { outages, epoch: resumed, probes } = gate;
    return { ...this.#calls.stats, outages, resumed, probes, dials, connections, streams };
  }

  /** Adds a listener: `lost` when the server is lost and calls wait for it, `resumed` when it answers again. */
  on(event: "lost", listener: (cause: unknown) => void): this;
  /** Adds a listener of the server's return. */
  on(event: "resumed", listener: () => void): this;
  on(event: "lost" | "resumed", listener: (cause: unknown) => void): this {
    this.#shared.gate.on(event, listener);
    return this;
  }

  /** Removes a listener. */
  off(event: "lost" | "resumed", listener: (cause: unknown) => void): this {
    this.#shared.gate.off(event, listener);
    return this;
  }

  /** Returns a client of another node of the database, over the same connections. */
  at(node: string): Kennel {
    return new Kennel(this.#shared, this.#options, { ...this.#headers, "kennel-node": node });
  }

  /** Returns a client that calls on behalf of another caller, as an admin may. */
  as(caller: Caller): Kennel {
    const { principal, role, owner } = caller;
    const headers = { "kennel-principal": principal, "kennel-role": role, "kennel-owner": owner };
    return new Kennel(this.#shared, this.#options, { ...this.#headers, ...headers });
  }

  /** Starts a command. Resolves when it runs. */
  spawn(file: string, args: readonly string[], options?: SpawnOptions): Promise<Run>;
  /** Starts a command without arguments. */
  spawn(file: string, options?: SpawnOptions): Promise<Run>;
  async spawn(file: string, args: readonly string[] | SpawnOptions = [], options: SpawnOptions = {}): Promise<Run> {
    const [words, settings] = parted(file, args, options);
    return await this.#spawn(words, settings);
  }

  /** Runs a command to its end, and returns what it wrote. A failure of the command is a result, not an error. */
  execFile(
    file: string,
    args: readonly string[],
    options: ExecOptions & { encoding: "buffer" },
  ): Promise<CompletedRunBytes>;
  /** Runs a command to its end, and returns what it wrote as text. */
  execFile(file: string, args?: readonly string[], options?: ExecOptions): Promise<CompletedRun>;
  async execFile(
    file: string,
    args: readonly string[] = [],
    options: ExecOptions = {},
  ): Promise<CompletedRun | CompletedRunBytes> {
    return await this.#execute([file, ...args], options);
  }

  /** Runs a line of the shell to its end, and returns what it wrote. */
  exec(line: string, options: ExecOptions & { encoding: "buffer" }): Promise<CompletedRunBytes>;
  /** Runs a line of the shell to its end, and returns what it wrote as text. */
  exec(line: string, options?: ExecOptions): Promise<CompletedRun>;
  async exec(line: string, options: ExecOptions = {}): Promise<CompletedRun | CompletedRunBytes> {
    return await this.#execute([line], { shell: true, ...options });
  }

  /** Starts a command on a terminal, and attaches to it. The run is `terminal.run`. */
  async pty(
    file: string,
    args: readonly string[] = [],
    options: SpawnOptions & { rows?: number; cols?: number } = {},
  ): Promise<Terminal & { readonly run: Run }> {
    const { rows = 24, cols = 80, ...rest } = options;
    const size = { rows, cols };
    const run = await this.#spawn([file, ...args], { tty: size, ...rest });
    const attach: AttachOptions = { size };
    return Object.assign(await run.attach(attach), { run });
  }

  /** Returns a handle of a run by its id or name, without a call. */
  handle(ref: string): Run {
    return new Run(this.#calls, ref);
  }

  /** Returns a run by its id or name. */
  async get(ref: string, options?: CallOptions): Promise<Run> {
    return await this.handle(ref).refresh(options);
  }

  /** Returns runs, newest first: those that live, where the selection names no states. A text is a label selector. */
  find(query: string | RunQuery = {}, options: CallOptions = {}): RunList {
    const filter = filterOf(query);
    const calls = this.#calls;
    const pages = async function* () {
      let pageToken = "";
      do {
        const page = await calls.unary(rpc.listRuns, { filter, pageToken, pageSize: 250 }, options);
        for (const run of page.runs) yield new Run(calls, run.runId, run);
        pageToken = page.nextPageToken;
      } while (pageToken !== "");
    };
    const all = async () => {
      const runs: Run[] = [];
      for await (const run of pages()) runs.push(run);
      return runs;
    };
    return { [Symbol.asyncIterator]: pages, all };
  }

  /** Returns the events of all runs that a selection matches, now or later. It does not end by itself. */
  events(query: string | RunQuery = { live: false }, options: EventOptions & CallOptions = {}): EventFeed {
    return new EventFeed(this.#calls, { ...options, filter: filterOf(query, false) });
  }

  /** Does one thing to each run of a selection. The call is not repeated: a lost one is SERVER_LOST, and may be half done. */
  async forEach(query: string | RunQuery, action: Action, options: ForEachOptions = {}): Promise<ForEachResult> {
    const {
      dryRun = false,
      atMost = 0,
      parallel = 0,
      all = false,
      selection = new Uint8Array(),
      signal,
      timeoutMs,
    } = options;
    const request = create(ForEachRunRequest, {
      filter: filterOf(query, false),
      all,
      action: actionOf(action),
      atMost,
      parallel,
      dryRun,
      selection: selection as Uint8Array<ArrayBuffer>,
    } satisfies MessageInitShape<typeof ForEachRunRequestSchema>);
    const own = new AbortController();
    const stop = () => own.abort(signal && aborted(signal));
    signal?.addEventListener("abort", stop, { once: true });
    const late = new KennelError("DEADLINE_EXCEEDED", "ForEachRun had no answer in its time", {
      code: "DEADLINE_EXCEEDED",
    });
    const timer = timeoutMs === undefined ? undefined : setTimeout(() => own.abort(late), timeoutMs);
    const tries = new Tries(this.#calls, "ForEachRun", { signal: own.signal });
    const outcomes: ForEachResult["outcomes"][number][] = [];
    const found = { selection: new Uint8Array() as Uint8Array, unreachableNodes: [] as string[] };
    try {
      if (signal?.aborted) throw aborted(signal);
      if (this.#calls.isClosed) throw closed("client");
      const answers = await this.#calls.open(rpc.forEachRun, only(request), own.signal);
      for (;;) {
        const { done, value } = await answers.next();
        if (done) throw new Error("the answer ended before its summary");
        tries.answered();
        const { part } = value;
        if (part.case === "matched")
          Object.assign(found, { selection: part.value.selection, unreachableNodes: part.value.unreachableNodes });
        else if (part.case === "run") outcomes.push(this.#outcome(part.value));
        else if (part.case === "summary") return { outcomes, counts: part.value.counts, ...found };
      }
    } catch (fault) {
      if (KennelError.is(fault) || own.signal.aborted) throw own.signal.aborted ? own.signal.reason : fault;
      await tries.after(fault);
      throw new KennelError("SERVER_LOST", "ForEachRun was lost, and is not repeated", {
        code: "UNAVAILABLE",
        cause: fault,
      });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
      own.abort();
    }
  }

  /** Returns facts about the server, its keeper and its host. */
  async info(options?: CallOptions): Promise<ServerInfo> {
    const { server } = await this.#calls.unary(AdminService.method.getServerInfo, {}, options);
    if (!server) throw new KennelError("NOT_KENNEL", "the answer has no server", { code: "INTERNAL" });
    return server;
  }

  /** Returns the nodes of the database. */
  async nodes(options?: CallOptions): Promise<NodeMessage[]> {
    return (await this.#calls.unary(AdminService.method.listNodes, {}, options)).nodes;
  }

  /** Ends all calls and connections, and a server that `local()` has started. Other runs continue. */
  async close(): Promise<void> {
    this.#shared.closing ??= this.#close();
    await this.#shared.closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #close(): Promise<void> {
    const { pool, fences, children, local } = this.#shared;
    const stop = new AbortController();
    const late = pause(DEFAULTS.close_timeout_ms, stop.signal).catch(() => {});
    await Promise.race([Promise.allSettled([...fences]), late]);
    stop.abort();
    for (const calls of children) calls.isClosed = true;
    pool.close();
    this.#shared.gate.close();
    await local?.end();
  }

  async #spawn(words: readonly string[], options: SpawnOptions): Promise<Run> {
    const { signal } = options;
    if (signal?.aborted) throw aborted(signal);
    const runId = options.runId ?? ulid();
    const request = spawnRequest(words, options, runId);
    try {
      const { run } = await this.#calls.unary(rpc.spawn, request, { signal, runId });
      if (!run && options.validateOnly) return new Run(this.#calls, runId);
      const message = present(run);
      // A run that another client may have spawned is not fenced by its id.
      const isOwn = message.runId === runId && request.onNameConflict !== OnNameConflict.RETURN;
      const handle = new Run(this.#calls, message.runId, message, isOwn);
      if (signal) handle.bind(signal);
      return handle;
    } catch (error) {
      if (signal?.aborted && request.runId !== "" && !options.validateOnly) this.#fence(runId);
      throw error;
    }
  }

  /** Ends a run whose Spawn was cancelled before its answer, be it before the Spawn arrives. */
  #fence(runId: string): void {
    const request = { runId, requestId: ulid(), wait: AbortWait.NONE, ifUnknown: AbortUnknown.FENCE };
    const patience = this.#options.patience || DEFAULTS.patience_ms;
    const fence = this.#calls.unary(rpc.abort, request, { runId, timeoutMs: patience }).catch(() => {});
    this.#shared.fences.add(fence);
    void fence.then(() => this.#shared.fences.delete(fence));
  }

  async #execute(words: readonly string[], options: ExecOptions): Promise<CompletedRun | CompletedRunBytes> {
    const { maxOutput = DEFAULTS.max_output_bytes, encoding = "utf8", onGap = "error", input, ...rest } = options;
    const bytes = typeof input === "string" ? new TextEncoder().encode(input) : input;
    const isLong = bytes !== undefined && bytes.length > INPUT_BYTES_MAX;
    const run = await this.#spawn(words, isLong ? { ...rest, stdin: "pipe" } : { ...rest, input });
    const { signal } = options;
    const written = isLong ? feedInput(run, bytes) : Promise.resolve();
    await run.wait({ signal });
    await written;
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

  #outcome({ run, outcome, reason, message }: RunOutcome): ForEachResult["outcomes"][number] {
    const found = present(run);
    return {
      run: new Run(this.#calls, found.runId, found),
      outcome: enumName(RunOutcome_OutcomeSchema, outcome),
      reason,
      message,
    };
  }
}

function parted(file: string, args: readonly string[] | SpawnOptions, options: SpawnOptions): [string[], SpawnOptions] {
  if (Array.isArray(args)) return [[file, ...(args as readonly string[])], options];
  return [[file], args as SpawnOptions];
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

function filterOf(query: string | RunQuery, liveByDefault = true): MessageInitShape<typeof RunFilterSchema> {
  if (typeof query === "string") return filterOf({ selector: query }, liveByDefault);
  const {
    selector = "",
    labels = {},
    states,
    live,
    names = [],
    ids = [],
    owners = [],
    node = "",
    parent = "",
    below = "",
    filter,
  } = query;
  const known = ["selector", "labels", "states", "live", "names", "ids", "owners", "node", "parent", "below", "filter"];
  for (const name of Object.keys(query))
    if (!known.includes(name)) throw new TypeError(`${name} is no field of a selection`);
  const isLive = live ?? (liveByDefault && states === undefined);
  const values = states?.map((state) => enumValue(RunStateSchema, state)) ?? (isLive ? LIVE_STATE_VALUES : []);
  return {
    labelSelector: selector,
    labels: { ...labels },
    states: values,
    names: [...names],
    runIds: [...ids],
    owners: [...owners],
    node,
    parentRunId: parent,
    belowRunId: below,
    ...(filter as object),
  };
}

function actionOf(action: Action): NonNullable<MessageInitShape<typeof ForEachRunRequestSchema>["action"]> {
  const requestId = ulid();
  if (action === "interrupt" || action === "remove" || action === "restart")
    return { case: action, value: { requestId } };
  if (action === "pause" || action === "resume") return { case: action, value: {} };
  if ("signal" in action) return { case: "signal", value: { signal: action.signal, requestId } };
  if ("annotate" in action) return { case: "annotate", value: action.annotate };
  const { graceMs } = action.abort;
  return { case: "abort", value: { requestId, grace: graceMs === undefined ? undefined : duration(graceMs) } };
}
