// Runs that a selection matches: found, and acted upon.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type CallOptions, type Calls, only, Tries } from "./calls.js";
import { aborted, closed, KennelError } from "./errors.js";
import {
  ForEachRunRequestSchema,
  ProcessService,
  type RunFilterSchema,
  type RunOutcome,
  RunOutcome_OutcomeSchema,
} from "./gen/kennel/v1/process_service_pb.js";
import { RunStateSchema } from "./gen/kennel/v1/run_pb.js";
import { Run } from "./run.js";
import { ulid } from "./ulid.js";
import { duration, enumName, enumValue, LIVE_STATE_VALUES, present } from "./view.js";

const rpc = ProcessService.method;
/** Runs of one page. */
const PAGE_RUNS = 250;

type Filter = MessageInitShape<typeof RunFilterSchema>;

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

/** Runs page by page. */
export interface RunList extends AsyncIterable<Run> {
  /** Returns all of them. */
  all(): Promise<Run[]>;
}

/** Lists runs. */
export function listRuns(calls: Calls, filter: Filter, options: CallOptions): RunList {
  const pages = async function* () {
    let pageToken = "";
    do {
      const page = await calls.unary(rpc.listRuns, { filter, pageToken, pageSize: PAGE_RUNS }, options);
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

/** Does one thing to each run of a selection. */
export async function forEachRun(
  calls: Calls,
  query: string | RunQuery,
  action: Action,
  options: ForEachOptions,
): Promise<ForEachResult> {
  const {
    dryRun = false,
    atMost = 0,
    parallel = 0,
    all = false,
    selection = new Uint8Array(),
    signal,
    timeoutMs,
  } = options;
  const request = create(ForEachRunRequestSchema, {
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
  const tries = new Tries(calls, "ForEachRun", { signal: own.signal });
  const outcomes: ForEachResult["outcomes"][number][] = [];
  const found = { selection: new Uint8Array() as Uint8Array, unreachableNodes: [] as string[] };
  try {
    if (signal?.aborted) throw aborted(signal);
    if (calls.isClosed) throw closed("client");
    const answers = await calls.open(rpc.forEachRun, only(request), own.signal);
    for (;;) {
      const { done, value } = await answers.next();
      if (done) throw new Error("the answer ended before its summary");
      tries.answered();
      const { part } = value;
      if (part.case === "matched")
        Object.assign(found, { selection: part.value.selection, unreachableNodes: part.value.unreachableNodes });
      else if (part.case === "run") outcomes.push(outcomeOf(calls, part.value));
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

function outcomeOf(calls: Calls, { run, outcome, reason, message }: RunOutcome): ForEachResult["outcomes"][number] {
  const found = present(run);
  const name = enumName(RunOutcome_OutcomeSchema, outcome);
  return { run: new Run(calls, found.runId, found), outcome: name, reason, message };
}

/** Returns a selection as a request has it. */
export function filterOf(query: string | RunQuery, liveByDefault = true): MessageInitShape<typeof RunFilterSchema> {
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
