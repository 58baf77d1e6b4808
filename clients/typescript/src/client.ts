// The client: how a server is reached, and what is asked of it as a whole.

import { type Client, createClient } from "@connectrpc/connect";
import { type CallOptions, Calls, type Stats } from "./calls.js";
import { type CompletedRun, type CompletedRunBytes, type ExecOptions, execute } from "./completed.js";
import { aborted, KennelError } from "./errors.js";
import { EventFeed, type EventOptions } from "./events.js";
import { Gate, isAbsent, jitter, pause } from "./gate.js";
import { AdminService, type ServerInfo } from "./gen/kennel/v1/admin_service_pb.js";
import { AbortUnknown, AbortWait, OnNameConflict, ProcessService } from "./gen/kennel/v1/process_service_pb.js";
import { type Node as NodeMessage, Wait } from "./gen/kennel/v1/run_pb.js";
import { DEFAULTS, GATE } from "./gen/rules.js";
import { type LocalOptions, type LocalServer, startLocal } from "./local.js";
import { Run } from "./run.js";
import {
  type Action,
  type ForEachOptions,
  type ForEachResult,
  filterOf,
  forEachRun,
  listRuns,
  type RunList,
  type RunQuery,
} from "./selection.js";
import { type SpawnOptions, spawnRequest } from "./spec.js";
import { addressText, resolveTarget, type Target, type TargetOptions } from "./target.js";
import type { AttachOptions, Terminal } from "./terminal.js";
import { Pool } from "./transport.js";
import { ulid } from "./ulid.js";
import { present } from "./view.js";

/** Settings of a client. */
export interface ClientOptions {
  /**
   * Time without a sign of life of the server after which calls fail, in milliseconds; 0: no call is repeated. Default:
   * 60 s.
   */
  patience?: number;
  /** Time for a short call with its repeats, in milliseconds. Default: 60 s. */
  callTimeout?: number;
  /** Returns metadata of each call, such as `traceparent`. */
  metadata?: () => Record<string, string>;
}

/**
 * Settings of a connection: options win over variables, variables over a context, a context over the default socket.
 */
export interface ConnectOptions extends TargetOptions, ClientOptions {
  /** Time for the first connection where nothing listens, in milliseconds. Default: 0. */
  connectPatience?: number;
  /** Ends the attempt to connect, when it is aborted. */
  signal?: AbortSignal;
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

const rpc = ProcessService.method;

/** What several views of one client share. */
interface Shared {
  readonly pool: Pool;
  readonly gate: Gate;
  readonly fences: Set<Promise<unknown>>;
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

  /**
   * Starts a server of this process only, in a fresh directory. It ends with the client or the process, with its runs.
   */
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
    local?.onEnd(() => gate.giveUp());
    const shared = { pool, gate, fences: new Set<Promise<unknown>>(), local, closing: undefined };
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
    return await execute((words, rest) => this.#spawn(words, rest), [file, ...args], options);
  }

  /** Runs a line of the shell to its end, and returns what it wrote. */
  exec(line: string, options: ExecOptions & { encoding: "buffer" }): Promise<CompletedRunBytes>;
  /** Runs a line of the shell to its end, and returns what it wrote as text. */
  exec(line: string, options?: ExecOptions): Promise<CompletedRun>;
  async exec(line: string, options: ExecOptions = {}): Promise<CompletedRun | CompletedRunBytes> {
    return await execute((words, rest) => this.#spawn(words, rest), [line], { shell: true, ...options });
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
    return listRuns(this.#calls, filterOf(query), options);
  }

  /** Returns the runs that wait for input, with their `questions`: the one that waits longest is first. */
  async inbox(query: string | RunQuery = {}, options: CallOptions = {}): Promise<Run[]> {
    const selected = filterOf(query);
    const runs = await listRuns(this.#calls, { ...selected, waits: [Wait.INPUT] }, options).all();
    const since = (run: Run) => run.questions[0]?.since.getTime() ?? Number.POSITIVE_INFINITY;
    return runs.sort((one, other) => since(one) - since(other) || 0);
  }

  /** Returns the events of all runs that a selection matches, now or later. It does not end by itself. */
  events(query: string | RunQuery = { live: false }, options: EventOptions & CallOptions = {}): EventFeed {
    return new EventFeed(this.#calls, { ...options, filter: filterOf(query, false) });
  }

  /**
   * Does one thing to each run of a selection. The call is not repeated: a lost one is SERVER_LOST, and may be half
   * done.
   */
  async forEach(query: string | RunQuery, action: Action, options: ForEachOptions = {}): Promise<ForEachResult> {
    return await forEachRun(this.#calls, query, action, options);
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
    const { pool, gate, fences, local } = this.#shared;
    const stop = new AbortController();
    const late = pause(DEFAULTS.close_timeout_ms, stop.signal).catch(() => {});
    await Promise.race([Promise.allSettled([...fences]), late]);
    stop.abort();
    pool.close();
    gate.close();
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
}

function parted(file: string, args: readonly string[] | SpawnOptions, options: SpawnOptions): [string[], SpawnOptions] {
  if (Array.isArray(args)) return [[file, ...(args as readonly string[])], options];
  return [[file], args as SpawnOptions];
}
