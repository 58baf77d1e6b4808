// Options of a command, and the RunSpec that they make.

import { create, isFieldSet, type MessageInitShape } from "@bufbuild/protobuf";
import { ApiAccessSchema } from "./gen/kennel/v1/access_pb.js";
import {
  OnNameConflict,
  OnNameConflictSchema,
  type SpawnRequest,
  SpawnRequestSchema,
} from "./gen/kennel/v1/process_service_pb.js";
import {
  ActivitySchema,
  EnvModeSchema,
  InputMode,
  LeaderExitActionSchema,
  type LivenessSchema,
  type OutputPolicySchema,
  OutputStream,
  type ParentSchema,
  type PrivilegesSchema,
  RecoveryPolicySchema,
  RestartModeSchema,
  RestartPresetSchema,
  RunKindSchema,
  type RunLimitsSchema,
  type RunSpec,
  RunSpecSchema,
  type SecretSchema,
  type StopActionSchema,
} from "./gen/kennel/v1/run_pb.js";
import { duration, enumValue } from "./view.js";

/** Pattern of a line: a text that is in it, or an expression, whose flags are not used. */
export type Pattern = string | RegExp;

/** How a run shows that it is ready. */
export type Ready = (
  | { /** Pattern of a line. */ readonly line: Pattern }
  | { /** Port that accepts connections. */ readonly tcp: number }
  | {
      /** Port that answers a GET with a code below 400. */ readonly http: number /** Path. Default: `/`. */;
      readonly path?: string;
    }
  | {
      /** Port of gRPC's health service. */ readonly grpc: number /** Name of the service. */;
      readonly service?: string;
    }
  | { /** Command that exits with 0. */ readonly exec: readonly string[] }
  | { /** READY=1 of sd_notify(3). */ readonly notify: true }
) & {
  /** Time between probes, in milliseconds. */
  readonly intervalMs?: number;
  /** Time for one probe, in milliseconds. */
  readonly probeTimeoutMs?: number;
  /** Time to become ready, in milliseconds, after which the run is ended. */
  readonly startTimeoutMs?: number;
};

/** What is done with a line of output that matches. */
export interface Rule {
  /** Name of the rule. */
  readonly name: string;
  /** Pattern of the line. */
  readonly line: Pattern;
  /** Streams. Default: both. */
  readonly streams?: readonly ("stdout" | "stderr")[];
  /** The run is ready, annotated by the named groups, reported in an event, or has its result. */
  readonly then:
    | "ready"
    | "annotate"
    | "event"
    | { readonly activity: string }
    | { readonly resultAfterMs: number; readonly graceMs?: number };
}

/** When an attempt is followed by another one. */
export interface Restart {
  /** Set of defaults: `agent` or `keepalive`. */
  readonly preset?: string;
  /** `never`, `on-failure` or `always`. */
  readonly mode?: string;
  /** Time before the first restart, in milliseconds. */
  readonly delayMs?: number;
  /** Factor by which the time grows. */
  readonly factor?: number;
  /** Longest time, in milliseconds. */
  readonly maxDelayMs?: number;
  /** Random part of the time. */
  readonly jitterPercent?: number;
  /** Most restarts in a row. */
  readonly maxRestarts?: number;
  /** Run time in milliseconds after which restarts are counted anew. */
  readonly minUptimeMs?: number;
  /** Exit codes that end the run. */
  readonly preventExitCodes?: number[];
  /** Exit codes that always restart. */
  readonly forceExitCodes?: number[];
  /** True: the run waits for `restart()`. */
  readonly hold?: boolean;
}

/** Options of a command. Times are in milliseconds; values of enums are their names, in any case. */
export interface SpawnOptions {
  /** Variables of the command, above those of `envMode`. */
  env?: Readonly<Record<string, string | undefined>>;
  /** Other variables: `minimal` (default), `inherit-all` or `none`. */
  envMode?: string;
  /**
   * True: environment and directory of this process, as a child of it would have, below `env` and `cwd`. They are not
   * part of what makes a repeated spawn the same.
   */
  inherit?: boolean;
  /** Absolute working directory. Default: `/`. */
  cwd?: string;
  /** True: the file is a line for `/bin/sh -c`; a text: for that shell. */
  shell?: boolean | string;
  /** Whole standard input, at most 1 MiB. */
  input?: string | Uint8Array;
  /** `pipe`: `stdin` of the run writes to the command. Default: `null`. */
  stdin?: "null" | "pipe";
  /** The command runs on a terminal. */
  tty?: boolean | { readonly rows?: number; readonly cols?: number; readonly term?: string };
  /** `job` (default of commands), `service`, `heartbeat` or `terminal`. */
  kind?: string;
  /** Labels, for selection. */
  labels?: Readonly<Record<string, string>>;
  /** Annotations that the run begins with. */
  annotations?: Readonly<Record<string, string>>;
  /** Name: an open run's name is its owner's only once. */
  name?: string;
  /** Where an open run has the name: `fail` (default), or `return` that run. */
  onNameConflict?: string;
  /** Id of the run, a ULID. Default: one is made. */
  runId?: string;
  /** Own key of the caller in place of an id: the same key is the same run. */
  key?: string;
  /** How the run shows that it is ready. */
  ready?: Ready;
  /** Probes of an attempt that is ready. */
  liveness?: MessageInitShape<typeof LivenessSchema>;
  /** What is done with lines of output. */
  rules?: readonly Rule[];
  /** Longest run time of an attempt. */
  timeoutMs?: number;
  /** Longest time without output. */
  idleMs?: number;
  /** Time between SIGTERM and SIGKILL. */
  graceMs?: number;
  /** Signal in place of SIGTERM. */
  stopSignal?: string;
  /** Steps before signals. */
  stopSteps?: MessageInitShape<typeof StopActionSchema>[];
  /** Restarts: a preset, a mode, or both with times. */
  restart?: string | Restart;
  /** When the keeper is lost: `terminate` (default) or `adopt`. */
  recovery?: string;
  /** When the leader has exited: `stop`, `drain` or `keep` the others. */
  onLeaderExit?: string;
  /** Exit codes besides 0 that are a success. */
  successExitCodes?: number[];
  /** Limits, as in the contract. */
  limits?: MessageInitShape<typeof RunLimitsSchema>;
  /** User, capabilities and network, as in the contract. */
  sandbox?: MessageInitShape<typeof PrivilegesSchema>;
  /** Number of the user. */
  user?: number;
  /** Secrets, as in the contract. */
  secrets?: MessageInitShape<typeof SecretSchema>[];
  /** Run that this one is a child of: its id, or more. */
  parent?: string | MessageInitShape<typeof ParentSchema>;
  /** What the command may call: `own-run` or `children`. */
  apiAccess?: string;
  /** Bounds of the recorded output, as in the contract. */
  output?: MessageInitShape<typeof OutputPolicySchema>;
  /** True: the server checks the request, and runs nothing. */
  validateOnly?: boolean;
  /** Ends the run, when it is aborted. */
  signal?: AbortSignal;
  /** Fields of the contract below these options. */
  spec?: MessageInitShape<typeof RunSpecSchema>;
}

type Init = MessageInitShape<typeof RunSpecSchema>;
type Fields = { -readonly [K in keyof Init]?: Init[K] };

const OTHER = ["shell", "onNameConflict", "runId", "key", "validateOnly", "signal", "spec"] as const;

/** What each option sets. */
const SETS: {
  [K in Exclude<keyof SpawnOptions, (typeof OTHER)[number]>]-?: (
    value: NonNullable<SpawnOptions[K]>,
    fields: Fields,
  ) => void;
} = {
  env: (env, fields) => {
    const vars = Object.fromEntries(
      Object.entries(env).filter((pair): pair is [string, string] => pair[1] !== undefined),
    );
    fields.env = { ...(fields.env as object), vars };
  },
  envMode: (mode, fields) => {
    fields.env = { ...(fields.env as object), mode: enumValue(EnvModeSchema, mode) };
  },
  inherit: (inherit, fields) => {
    if (!inherit) return;
    // The server sets these itself.
    const vars = Object.entries(process.env).filter(
      (pair): pair is [string, string] => pair[1] !== undefined && !pair[0].startsWith("KENNEL_"),
    );
    fields.inherited = { vars: Object.fromEntries(vars), cwd: process.cwd() };
  },
  cwd: (cwd, fields) => {
    fields.cwd = cwd;
  },
  input: (input, fields) => {
    fields.initialInput = typeof input === "string" ? new TextEncoder().encode(input) : input.slice();
  },
  stdin: (stdin, fields) => {
    if (stdin !== "null" && stdin !== "pipe") throw new TypeError(`stdin is "null" or "pipe", not ${String(stdin)}`);
    if (stdin === "pipe") fields.stdio = { case: "pipes", value: { input: InputMode.OPEN } };
  },
  tty: (tty, fields) => {
    if (tty) fields.stdio = { case: "terminal", value: tty === true ? {} : tty };
  },
  kind: (kind, fields) => {
    fields.kind = enumValue(RunKindSchema, kind);
  },
  labels: (labels, fields) => {
    fields.labels = { ...labels };
  },
  annotations: (annotations, fields) => {
    fields.annotations = { ...annotations };
  },
  name: (name, fields) => {
    fields.name = name;
  },
  ready: (ready, fields) => {
    fields.readiness = readiness(ready);
  },
  liveness: (liveness, fields) => {
    fields.liveness = liveness;
  },
  rules: (rules, fields) => {
    fields.outputRules = rules.map(outputRule);
  },
  timeoutMs: (ms, fields) => {
    fields.timeouts = { ...(fields.timeouts as object), maxRuntime: duration(ms) };
  },
  idleMs: (ms, fields) => {
    fields.timeouts = { ...(fields.timeouts as object), inactivity: duration(ms) };
  },
  graceMs: (ms, fields) => {
    fields.stop = { ...(fields.stop as object), grace: duration(ms) };
  },
  stopSignal: (signal, fields) => {
    fields.stop = { ...(fields.stop as object), signal };
  },
  stopSteps: (steps, fields) => {
    fields.stop = { ...(fields.stop as object), steps };
  },
  restart: (restart, fields) => {
    fields.restart = restartPolicy(restart);
  },
  recovery: (recovery, fields) => {
    fields.recovery = enumValue(RecoveryPolicySchema, recovery);
  },
  onLeaderExit: (action, fields) => {
    fields.onLeaderExit = { action: enumValue(LeaderExitActionSchema, action) };
  },
  successExitCodes: (codes, fields) => {
    fields.successExitCodes = codes;
  },
  limits: (limits, fields) => {
    fields.limits = limits;
  },
  sandbox: (sandbox, fields) => {
    fields.privileges = { ...(sandbox as object), ...(fields.privileges as object) };
  },
  user: (userId, fields) => {
    fields.privileges = { ...(fields.privileges as object), user: { userId } };
  },
  secrets: (secrets, fields) => {
    fields.secrets = secrets;
  },
  parent: (parent, fields) => {
    fields.parent = typeof parent === "string" ? { runId: parent } : parent;
  },
  apiAccess: (access, fields) => {
    fields.apiAccess = enumValue(ApiAccessSchema, access);
  },
  output: (output, fields) => {
    fields.output = output;
  },
};

/** Makes the request for a command. */
export function spawnRequest(args: readonly string[], options: SpawnOptions, runId: string): SpawnRequest {
  const fields: Fields = {};
  for (const [name, value] of Object.entries(options)) {
    if ((OTHER as readonly string[]).includes(name) || value === undefined) continue;
    const set = (SETS as Record<string, ((value: unknown, fields: Fields) => void) | undefined>)[name];
    if (!set) throw new TypeError(`${name} is no option of a run`);
    set(value, fields);
  }
  if (options.input !== undefined && fields.stdio) throw new TypeError("input is not for a run with stdin or tty");
  const { shell, spec = {}, key } = options;
  if (!shell) fields.command = { case: "argv", value: { args: [...args] } };
  else {
    const line = args[0];
    if (args.length !== 1 || line === undefined) throw new TypeError("with shell the command is one line");
    fields.command = { case: "argv", value: { args: [shell === true ? "/bin/sh" : shell, "-c", line] } };
  }
  if (key !== undefined && options.runId !== undefined) throw new TypeError("runId and key are both given");
  const conflict = options.onNameConflict;
  return create(SpawnRequestSchema, {
    runId: key === undefined ? runId : "",
    requestKey: key ?? "",
    validateOnly: options.validateOnly ?? false,
    onNameConflict: conflict === undefined ? OnNameConflict.UNSPECIFIED : enumValue(OnNameConflictSchema, conflict),
    spec: merged(spec, fields),
  });
}

/** Returns a spec with the fields of the options, none of which it may have itself. */
function merged(below: Init, fields: Fields): RunSpec {
  for (const name of Object.keys(below)) {
    const isMember = RunSpecSchema.members.some(({ localName }) => localName === name);
    if (!isMember && !name.startsWith("$")) throw new TypeError(`${name} is no field of a RunSpec`);
  }
  const spec = create(RunSpecSchema, fields as Init);
  const base = create(RunSpecSchema, below);
  const isSet = (message: RunSpec, member: (typeof RunSpecSchema.members)[number]) =>
    member.kind === "oneof"
      ? message[member.localName as "command" | "stdio"].case !== undefined
      : isFieldSet(message, member);
  for (const member of RunSpecSchema.members) {
    if (!isSet(base, member)) continue;
    const name = member.localName as keyof RunSpec;
    if (isSet(spec, member)) throw new TypeError(`${name} is both in spec and in the options`);
    Object.assign(spec, { [name]: base[name] });
  }
  return spec;
}

/** Returns a pattern as the contract has it. */
export function linePattern(pattern: Pattern) {
  if (typeof pattern === "string") return { pattern: { case: "literal", value: pattern } } as const;
  return { pattern: { case: "regex", value: pattern.source } } as const;
}

function readiness(ready: Ready): Init["readiness"] {
  const optional = (ms: number | undefined) => (ms === undefined ? undefined : duration(ms));
  const times = {
    interval: optional(ready.intervalMs),
    timeout: optional(ready.probeTimeoutMs),
    startTimeout: optional(ready.startTimeoutMs),
  };
  if ("line" in ready) return { probe: { case: "line", value: linePattern(ready.line) }, ...times };
  if ("tcp" in ready) return { probe: { case: "tcp", value: { port: ready.tcp } }, ...times };
  if ("http" in ready)
    return { probe: { case: "http", value: { port: ready.http, path: ready.path ?? "/" } }, ...times };
  if ("grpc" in ready)
    return { probe: { case: "grpc", value: { port: ready.grpc, service: ready.service ?? "" } }, ...times };
  if ("exec" in ready) return { probe: { case: "exec", value: { args: [...ready.exec] } }, ...times };
  if ("notify" in ready) return { probe: { case: "notify", value: {} }, ...times };
  throw new TypeError("ready names no probe");
}

function outputRule(rule: Rule): NonNullable<Init["outputRules"]>[number] {
  const streams = rule.streams?.map((stream) => streamOf(stream));
  const common = { name: rule.name, pattern: linePattern(rule.line), ...(streams && { streams }) };
  const { then } = rule;
  if (then === "ready") return { ...common, action: { case: "ready", value: {} } };
  if (then === "annotate") return { ...common, action: { case: "annotate", value: {} } };
  if (then === "event") return { ...common, action: { case: "event", value: {} } };
  if ("activity" in then)
    return { ...common, action: { case: "activity", value: enumValue(ActivitySchema, then.activity) } };
  const grace = then.graceMs === undefined ? undefined : duration(then.graceMs);
  return { ...common, action: { case: "result", value: { after: duration(then.resultAfterMs), grace } } };
}

function restartPolicy(restart: string | Restart): Init["restart"] {
  if (typeof restart === "string") {
    const isPreset = RestartPresetSchema.values.some(({ localName }) => localName === restart.toUpperCase());
    return restartPolicy(isPreset ? { preset: restart } : { mode: restart });
  }
  const { preset, mode, delayMs, maxDelayMs, minUptimeMs, ...rest } = restart;
  return {
    ...rest,
    preset: preset === undefined ? 0 : enumValue(RestartPresetSchema, preset),
    mode: mode === undefined ? 0 : enumValue(RestartModeSchema, mode),
    delay: delayMs === undefined ? undefined : duration(delayMs),
    maxDelay: maxDelayMs === undefined ? undefined : duration(maxDelayMs),
    minUptime: minUptimeMs === undefined ? undefined : duration(minUptimeMs),
  };
}

/** Returns a stream of output as the contract has it. */
export function streamOf(name: "stdout" | "stderr"): OutputStream {
  return name === "stderr" ? OutputStream.STDERR : OutputStream.STDOUT;
}
