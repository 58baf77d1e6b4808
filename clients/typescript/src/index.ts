// Client of Kennel: runs that outlive their clients and their servers.

export type { CallOptions, Stats } from "./calls.js";
export { type Caller, type ClientOptions, type ConnectOptions, Kennel } from "./client.js";
export type { CompletedRun, CompletedRunBytes, ExecOptions } from "./completed.js";
export {
  type ClientReason,
  type ErrorContent,
  KennelError,
  type Reason,
  type ServerReason,
  type Violation,
} from "./errors.js";
export type { EventBase, EventFeed, EventOptions, From, RunEvent } from "./events.js";
export { CONTRACT_LEVEL } from "./gen/rules.js";
export type { Duplex, InputOptions, InputStream } from "./input.js";
export type { LocalOptions, LocalServer } from "./local.js";
export type { JsonOptions, Line, LineOptions } from "./output.js";
export type { AbortOptions, ReadOutput, Run, RunEvents, Stopped } from "./run.js";
export type { Action, ForEachOptions, ForEachResult, RunList, RunQuery } from "./selection.js";
export type { Pattern, Ready, Restart, Rule, SpawnOptions } from "./spec.js";
export {
  type Address,
  addressText,
  type Credentials,
  resolveTarget,
  type Surroundings,
  type Target,
  type TargetOptions,
} from "./target.js";
export type { AttachOptions, Disposable, Match, Terminal } from "./terminal.js";
export type { Exit, Question, Verdict } from "./view.js";
