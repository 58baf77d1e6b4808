// The server to call, and the credentials for it: as the command line resolves it. Options win over variables,
// variables
// over the context, a context over the default socket. A server that is named gets no credentials of a context.

import { lstatSync, readFileSync } from "node:fs";
import { isIPv6 } from "node:net";
import { isAbsolute, join } from "node:path";
import { parse } from "smol-toml";
import { KennelError } from "./errors.js";
import { DEFAULTS } from "./gen/rules.js";

/** Address of a server. */
export type Address = { kind: "unix"; path: string } | { kind: "tcp"; host: string; port: number };

/** Files and texts that a server is called with. */
export interface Credentials {
  /** PEM file with the authorities of the server's certificate. Default: those of this host. */
  caFile?: string | undefined;
  /** PEM file with the certificate of the client. */
  certFile?: string | undefined;
  /** PEM file with its key. */
  keyFile?: string | undefined;
  /** Name in the server's certificate. Default: the host of the address. */
  serverName?: string | undefined;
  /** File with the bearer token, read for each call. */
  tokenFile?: string | undefined;
  /** Bearer token. */
  token?: string | undefined;
  /** User that the server of a unix socket may run as, besides this one and root. */
  serverUser?: number | undefined;
}

/** Names of a server and of what it is called with. */
export interface TargetOptions extends Credentials {
  /** Address: `unix:PATH` or `tcp://HOST:PORT`. */
  server?: string | undefined;
  /** Name of a context, as `kennel context ls` has it. */
  context?: string | undefined;
  /** Node that calls are for, by name or id. */
  node?: string | undefined;
}

/** A server to call. */
export interface Target {
  /** Its address. */
  address: Address;
  /** Credentials for it. */
  credentials: Credentials;
  /** Node that calls are for. */
  node: string | undefined;
}

/** Variables of a process, and whether it runs as root. */
export interface Surroundings {
  /** The variables. */
  env: Record<string, string | undefined>;
  /** Whether the user is root. */
  isRoot: boolean;
}

type Values = Pick<Credentials, "caFile" | "certFile" | "keyFile" | "serverName" | "tokenFile" | "token"> & {
  server: string;
};
interface Entry extends Values {}

function wrong(message: string): KennelError {
  return new KennelError("CONFIGURATION", message, { code: "INVALID_ARGUMENT" });
}

/** Returns the surroundings of this process. */
export function surroundings(): Surroundings {
  return { env: process.env, isRoot: process.geteuid?.() === 0 };
}

/** Returns the server to call. */
export function resolveTarget(options: TargetOptions = {}, here: Surroundings = surroundings()): Target {
  const given = valuesOf(options);
  const hasCredentials = Object.entries(given).some(([name, value]) => name !== "server" && value !== undefined);
  const values = inForce(options, given, here);
  const text = variable(here, "KENNEL_SERVER_USER");
  if (options.serverUser === undefined && text !== undefined && !/^\+?\d+$/.test(text))
    throw wrong(`KENNEL_SERVER_USER: "${text}" is not the number of a user`);
  const serverUser = options.serverUser ?? (text === undefined ? undefined : Number(text));
  const node = options.node ?? variable(here, "KENNEL_NODE");
  if (!values) {
    if (hasCredentials) throw wrong("certificates and tokens are for a server on the network, and none is named");
    return { address: { kind: "unix", path: defaultSocket(here) }, credentials: { serverUser }, node };
  }
  const { server, ...rest } = values;
  if (!server.startsWith("tcp:")) {
    const address: Address = { kind: "unix", path: socketPath(server) };
    if (hasCredentials) throw wrong("a unix socket takes neither certificates nor a token");
    const tokenFile = variable(here, "KENNEL_RUN_TOKEN_FILE");
    return { address, credentials: { serverUser, tokenFile }, node };
  }
  const address = networkAddress(server);
  if ((rest.certFile === undefined) !== (rest.keyFile === undefined))
    throw wrong("a certificate and its key must be given together");
  return { address, credentials: { ...rest, serverUser }, node };
}

/** Returns the text of an address. */
export function addressText(address: Address): string {
  if (address.kind === "unix") return `unix:${address.path}`;
  return `tcp://${address.host.includes(":") ? `[${address.host}]` : address.host}:${address.port}`;
}

function inForce(options: TargetOptions, given: Values, here: Surroundings): Values | undefined {
  const variables: Values = {
    server: "",
    caFile: variable(here, "KENNEL_TLS_CA"),
    certFile: variable(here, "KENNEL_TLS_CERT"),
    keyFile: variable(here, "KENNEL_TLS_KEY"),
    serverName: variable(here, "KENNEL_TLS_SERVER_NAME"),
    tokenFile: variable(here, "KENNEL_TOKEN_FILE"),
  };
  if (given.server !== "") {
    if (options.context !== undefined) throw wrong("a server and a context are both given");
    return above(given, variables);
  }
  if (options.context !== undefined) {
    const context = entry(options.context, here);
    return context && above(given, context);
  }
  const [server, name] = [variable(here, "KENNEL_SERVER"), variable(here, "KENNEL_CONTEXT")];
  if (server !== undefined && name !== undefined) throw wrong("KENNEL_SERVER and KENNEL_CONTEXT are both set");
  if (server !== undefined) return above(given, { ...variables, server });
  const current = name ?? contexts(here).current;
  const context = current === undefined ? undefined : entry(current, here);
  return context && above(given, above(variables, context));
}

function valuesOf({ server, caFile, certFile, keyFile, serverName, tokenFile, token }: TargetOptions): Values {
  return { server: server ?? "", caFile, certFile, keyFile, serverName, tokenFile, token };
}

/** Completes values by others. Certificate and key belong together, and so do both forms of a token. */
function above(values: Values, other: Values): Values {
  const hasPair = values.certFile !== undefined || values.keyFile !== undefined;
  const hasToken = values.token !== undefined || values.tokenFile !== undefined;
  return {
    server: values.server || other.server,
    caFile: values.caFile ?? other.caFile,
    certFile: hasPair ? values.certFile : other.certFile,
    keyFile: hasPair ? values.keyFile : other.keyFile,
    serverName: values.serverName ?? other.serverName,
    tokenFile: hasToken ? values.tokenFile : other.tokenFile,
    token: hasToken ? values.token : other.token,
  };
}

function variable(here: Surroundings, name: string): string | undefined {
  return here.env[name] || undefined;
}

/** Returns a directory that a variable names. A path that is not absolute is ignored, as XDG has it. */
function directory(here: Surroundings, name: string): string | undefined {
  const path = variable(here, name);
  return path !== undefined && isAbsolute(path) ? path : undefined;
}

function defaultSocket(here: Surroundings): string {
  if (here.isRoot) return "/run/kennel/kennel.sock";
  const runtime = directory(here, "XDG_RUNTIME_DIR");
  if (runtime !== undefined) return join(runtime, "kennel/kennel.sock");
  const state = directory(here, "XDG_STATE_HOME");
  if (state !== undefined) return join(state, "kennel/kennel.sock");
  const home = directory(here, "HOME");
  if (home === undefined) throw wrong("no server is named, and HOME is not set");
  return join(home, ".local/state/kennel/kennel.sock");
}

const KEYS = ["server", "ca", "certificate", "key", "server_name", "token_file"];

/** Returns the context of a name; `undefined`: the default socket. */
function entry(name: string, here: Surroundings): Entry | undefined {
  if (name === "default") return undefined;
  const found = contexts(here).entries.get(name);
  if (!found) throw wrong(`there is no context "${name}"`);
  return found;
}

function contexts(here: Surroundings): { current: string | undefined; entries: Map<string, Entry> } {
  const entries = new Map<string, Entry>();
  const config = directory(here, "XDG_CONFIG_HOME") ?? within(directory(here, "HOME"), ".config");
  if (config === undefined) return { current: undefined, entries };
  const path = join(config, "kennel/contexts.toml");
  const text = readDefault(path);
  if (text === undefined) return { current: undefined, entries };
  const refuse = (why: string) => wrong(`cannot use ${path}: ${why}`);
  let file: Record<string, unknown>;
  try {
    file = parse(text);
  } catch (error) {
    throw refuse((error as Error).message.trimEnd());
  }
  const { current, context = {}, ...others } = file;
  const isTable = (value: unknown): value is Record<string, unknown> =>
    typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Date);
  for (const other of Object.keys(others)) throw refuse(`unknown field ${other}`);
  if (current !== undefined && typeof current !== "string") throw refuse("current is not a text");
  if (!isTable(context)) throw refuse("context is not a table");
  for (const [name, fields] of Object.entries(context)) {
    if (!isTable(fields)) throw refuse(`context.${name} is not a table`);
    for (const [key, value] of Object.entries(fields)) {
      if (!KEYS.includes(key)) throw refuse(`unknown field ${key} in context.${name}`);
      if (typeof value !== "string") throw refuse(`${key} in context.${name} is not a text`);
    }
    const { server, ca, certificate, key, server_name, token_file } = fields as Record<string, string | undefined>;
    if (server === undefined) throw refuse(`context.${name} has no server`);
    const files = { caFile: ca, certFile: certificate, keyFile: key, serverName: server_name, tokenFile: token_file };
    entries.set(name, { server, ...files });
  }
  return { current, entries };
}

function within(path: string | undefined, name: string): string | undefined {
  return path === undefined ? undefined : join(path, name);
}

/** Reads a file at a default path; `undefined`: it does not exist, as far as this user may see. */
function readDefault(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    try {
      lstatSync(path);
    } catch {
      return undefined;
    }
    throw wrong(`cannot read ${path}: ${(cause as NodeJS.ErrnoException).code}`);
  }
}

/** Returns an absolute path, with the `..` that it has: a link may be before them. */
function absolute(path: string): string {
  const parts = (isAbsolute(path) ? path : `${process.cwd()}/${path}`).split("/");
  return `/${parts.filter((part) => part !== "" && part !== ".").join("/")}`;
}

function socketPath(text: string): string {
  if (!text.startsWith("unix:")) throw wrong(`"${text}" is not an address`);
  const path = text.slice("unix:".length).replace(/^\/\//, "");
  if (path === "" || path.endsWith("/")) throw wrong(`"${text}" names no socket file`);
  const socket = absolute(path);
  const most = DEFAULTS.socket_path_bytes_max;
  if (Buffer.byteLength(socket) > most) throw wrong(`the path of the socket is longer than ${most} bytes: ${socket}`);
  return socket;
}

function networkAddress(text: string): Address {
  const place = text.slice("tcp:".length).replace(/^\/\//, "");
  const colon = place.lastIndexOf(":");
  const [host, port] = [place.slice(0, Math.max(colon, 0)), place.slice(colon + 1)];
  const bare = /^\[(.*)\]$/.exec(host)?.[1];
  const number = /^\+?\d+$/.test(port) ? Number(port) : 0;
  const isHost = bare === undefined ? host !== "" && !/[:/@]/.test(host) : isIPv6(bare) && !bare.includes("%");
  if (!isHost || number < 1 || number > 65535) throw wrong(`"${text}" is not an address`);
  // An IPv6 address has one text, whatever form was given.
  const shown = bare === undefined ? host : new URL(`http://[${bare}]`).hostname.slice(1, -1);
  return { kind: "tcp", host: shown, port: number };
}
