// Connections: one for short calls, and on demand others for streams and waits, so that no stream holds up a call.
// They repeat nothing. A connection that is lost is a lost call; the gate decides what follows.

import { X509Certificate } from "node:crypto";
import { readFileSync, type Stats, statSync } from "node:fs";
import * as http2 from "node:http2";
import * as net from "node:net";
import { dirname } from "node:path";
import * as tls from "node:tls";
import type { Interceptor, Transport } from "@connectrpc/connect";
import { createGrpcTransport, type Http2SessionManager } from "@connectrpc/connect-node";
import { closed, KennelError } from "./errors.js";
import { CALLS, DEFAULTS } from "./gen/rules.js";
import type { Credentials, Target } from "./target.js";

/** Time for a connection to a unix socket, in milliseconds. */
const SOCKET_DIAL_MAX = 5_000;
/** Time for a connection over a network with its TLS handshake, in milliseconds. */
const NETWORK_DIAL_MAX = 10_000;
/** Bytes of all streams of a connection that may be unread in node, in MiB: windows bound each stream. */
const SESSION_MEMORY_MAX = 4096;
const CONNECTION_WINDOW = 2 ** 31 - 1;
/** Paths of calls that last. */
const BULK = new Set(Object.entries(CALLS).flatMap(([name, call]) => (call.deadline ? [] : [name])));
/** Certificates of public authorities: Debian, Fedora, Alpine and others. */
const AUTHORITIES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/** Additions to each call. */
export interface Additions {
  /** Metadata of each call, besides the token's. */
  headers(): Record<string, string>;
}

/** Reads a file whose last content stays in use while it is missing. */
class FileCache {
  readonly #last = new Map<string, Buffer>();

  read(path: string, what: string): Buffer {
    try {
      const bytes = readFileSync(path);
      this.#last.set(path, bytes);
      return bytes;
    } catch (cause) {
      const last = this.#last.get(path);
      if (last) return last;
      const why = (cause as NodeJS.ErrnoException).code;
      throw new KennelError("CONFIGURATION", `cannot read ${what} from ${path}: ${why}`, { code: "INVALID_ARGUMENT" });
    }
  }
}

/** One HTTP/2 connection. */
class Link {
  streams = 0;
  isRetired = false;
  heard = performance.now();
  readonly #pings: NodeJS.Timeout;

  constructor(
    readonly session: http2.ClientHttp2Session,
    /** Host of the requests: Node would take the brackets off an IPv6 address. */
    private readonly host: string,
  ) {
    this.#pings = setInterval(() => this.#ping(), DEFAULTS.ping_interval_ms);
    this.#pings.unref();
    // Errors reach the streams; this listener keeps them from ending the process.
    session.on("error", () => {});
    session.once("goaway", () => this.retire());
    session.once("close", () => {
      this.isRetired = true;
      clearInterval(this.#pings);
    });
    session.unref();
  }

  get isOpen(): boolean {
    return !this.isRetired && !this.session.closed && !this.session.destroyed;
  }

  open(method: string, path: string, headers: http2.OutgoingHttpHeaders): http2.ClientHttp2Stream {
    const of = { ":method": method, ":path": path, ":authority": this.host };
    const stream = this.session.request({ ...headers, ...of });
    this.streams += 1;
    if (this.streams === 1) this.session.ref();
    stream.once("close", () => {
      this.streams -= 1;
      if (this.streams > 0) return;
      this.session.unref();
      if (this.isRetired) this.session.close();
    });
    return stream;
  }

  /** Leaves the connection to the streams that it has. */
  retire(): void {
    this.isRetired = true;
    if (this.streams === 0) this.session.close();
  }

  #ping(): void {
    if (this.streams === 0 || performance.now() - this.heard < DEFAULTS.ping_interval_ms / 2) return;
    const late = setTimeout(
      () => this.session.destroy(new Error("the server does not answer pings")),
      DEFAULTS.ping_timeout_ms,
    );
    late.unref();
    try {
      this.session.ping(() => {
        clearTimeout(late);
        this.heard = performance.now();
      });
    } catch {
      clearTimeout(late);
    }
  }
}

/** Connections to one server. */
export class Pool {
  /** Origin of the requests, which the transport compares. */
  readonly authority: string;
  /** Number of connections made, for `stats`. */
  dials = 0;
  #control: Promise<Link> | undefined;
  #bulk: Link[] = [];
  #dialling: Promise<Link> | undefined;
  readonly #links = new Set<Link>();
  readonly #files = new FileCache();
  readonly #tokens = new Set<string>();
  isClosed = false;

  constructor(readonly target: Target) {
    const { address, credentials } = target;
    if (address.kind === "unix") {
      this.authority = "http://localhost";
      return;
    }
    const name = credentials.serverName ?? address.host;
    this.authority = new URL(`https://${name.includes(":") ? `[${name}]` : name}:${address.port}`).origin;
  }

  /** Number of open calls. */
  get streams(): number {
    return [...this.#links].reduce((sum, link) => sum + link.streams, 0);
  }

  /** Number of open connections. */
  get connections(): number {
    return this.#links.size;
  }

  /** Makes a transport of these connections. */
  transport(additions: Additions): Transport {
    const authorize: Interceptor = (next) => async (request) => {
      for (const [name, value] of Object.entries(additions.headers())) request.header.set(name, value);
      const token = this.token();
      if (token !== undefined) request.header.set("authorization", `Bearer ${token}`);
      return await next(request);
    };
    return createGrpcTransport({
      baseUrl: this.authority,
      // Only these members are used of a session manager.
      sessionManager: this as unknown as Http2SessionManager,
      readMaxBytes: DEFAULTS.message_bytes_max + DEFAULTS.window_bytes,
      acceptCompression: [],
      interceptors: [authorize],
    });
  }

  /** Opens a connection for short calls, if there is none. */
  async connect(): Promise<void> {
    await this.#controlLink();
  }

  /** Opens a stream of a connection: the form that the transport calls. */
  async request(method: string, path: string, headers: http2.OutgoingHttpHeaders): Promise<http2.ClientHttp2Stream> {
    const isBulk = BULK.has(path.slice(path.lastIndexOf("/") + 1));
    const link = await (isBulk ? this.#bulkLink() : this.#controlLink());
    return link.open(method, path, headers);
  }

  /** Notes that an answer has come: the form that the transport calls. */
  notifyResponseByteRead(stream: http2.ClientHttp2Stream): void {
    const session = stream.session;
    for (const link of this.#links) if (link.session === session) link.heard = performance.now();
  }

  /** Makes the next calls open new connections. */
  retire(): void {
    for (const link of this.#links) link.retire();
  }

  /** Ends all calls and connections. */
  close(): void {
    this.isClosed = true;
    for (const link of this.#links) link.session.destroy();
  }

  /** Returns the token as it is now. */
  token(): string | undefined {
    const { token, tokenFile } = this.target.credentials;
    if (token === undefined && tokenFile === undefined) return undefined;
    const text = (token ?? this.#files.read(tokenFile ?? "", "a token").toString("utf8")).trim();
    if (text === "" || text.length > DEFAULTS.token_bytes_max || !/^[\x21-\x7e]+$/.test(text)) {
      const where = token === undefined ? `${tokenFile}` : "the option";
      throw new KennelError("CONFIGURATION", `cannot find a token in ${where}`, { code: "INVALID_ARGUMENT" });
    }
    this.#tokens.add(text);
    if (this.#tokens.size > DEFAULTS.tokens_per_connection) {
      // A server counts the tokens of a connection, and refuses more than it may have.
      this.#tokens.clear();
      this.#tokens.add(text);
      this.retire();
    }
    return text;
  }

  async #controlLink(): Promise<Link> {
    const known = await this.#control?.catch(() => undefined);
    if (known?.isOpen) return known;
    if (!this.#dialling) {
      this.#dialling = this.#dial().finally(() => {
        this.#dialling = undefined;
      });
      this.#control = this.#dialling;
      this.#control.catch(() => {});
    }
    return await this.#dialling;
  }

  #pending: Promise<void> | undefined;

  async #bulkLink(): Promise<Link> {
    for (;;) {
      this.#bulk = this.#bulk.filter((link) => link.isOpen);
      const free = this.#bulk.find((link) => link.streams < DEFAULTS.calls_per_connection);
      if (free) return free;
      if (this.#pending) {
        await this.#pending;
        continue;
      }
      const dialled = this.#dial();
      this.#pending = dialled.then(
        (link) => {
          this.#bulk.push(link);
        },
        (error) => {
          throw error;
        },
      );
      this.#pending.catch(() => {});
      try {
        await this.#pending;
      } finally {
        this.#pending = undefined;
      }
    }
  }

  async #dial(): Promise<Link> {
    if (this.isClosed) throw closed("client");
    this.dials += 1;
    const { address, credentials } = this.target;
    const socket =
      address.kind === "unix"
        ? await dialUnix(address.path, credentials.serverUser)
        : await this.#dialNetwork(address.host, address.port, credentials);
    const session = http2.connect(this.authority, {
      createConnection: () => socket,
      settings: { initialWindowSize: DEFAULTS.window_bytes, enablePush: false },
      maxSessionMemory: SESSION_MEMORY_MAX,
      peerMaxConcurrentStreams: DEFAULTS.calls_per_connection,
    });
    // Bun 1.4 grants no more bytes of a connection whose window was set: its own default keeps streams going.
    if (!process.versions.bun) session.once("connect", () => session.setLocalWindowSize(CONNECTION_WINDOW));
    const link = new Link(session, new URL(this.authority).host);
    this.#links.add(link);
    session.once("close", () => this.#links.delete(link));
    if (this.isClosed) session.destroy();
    return link;
  }

  async #dialNetwork(host: string, port: number, credentials: Credentials): Promise<net.Socket> {
    const { caFile, certFile, keyFile } = credentials;
    const authorities = caFile ?? AUTHORITIES.find((path) => statOf(path)?.isFile());
    const name = credentials.serverName ?? host;
    const socket = tls.connect({
      host,
      port,
      ca: authorities && this.#files.read(authorities, "a CA certificate"),
      cert: certFile && this.#files.read(certFile, "a certificate"),
      key: keyFile && this.#files.read(keyFile, "a private key"),
      servername: net.isIP(name) ? undefined : name,
      checkServerIdentity: (_, certificate) => checkName(name, certificate),
      minVersion: "TLSv1.3",
      ALPNProtocols: ["h2"],
      noDelay: true,
    } as tls.ConnectionOptions);
    await opened(socket, "secureConnect", NETWORK_DIAL_MAX).catch((error) => {
      throw untrusted(error) ? untrustedServer(name, error) : error;
    });
    if (socket.alpnProtocol !== "h2") {
      socket.destroy();
      throw new KennelError("NOT_KENNEL", `${host}:${port} does not speak HTTP/2`, { code: "UNIMPLEMENTED" });
    }
    return socket;
  }
}

async function opened(socket: net.Socket, event: string, most: number): Promise<void> {
  await new Promise<void>((done, failed) => {
    const late = Object.assign(new Error("no connection in time"), { code: "ETIMEDOUT" });
    const timer = setTimeout(() => socket.destroy(late), most);
    socket.once(event, () => {
      clearTimeout(timer);
      done();
    });
    // It stays: an error after the connection is the session's, and must not end the process.
    socket.on("error", (error) => {
      clearTimeout(timer);
      failed(error);
    });
  });
}

function statOf(path: string): Stats | undefined {
  return statSync(path, { throwIfNoEntry: false });
}

/** Opens a unix socket. Node reports no credentials of its peer: the owners of file and directory are examined. */
async function dialUnix(path: string, serverUser: number | undefined): Promise<net.Socket> {
  const own = process.geteuid?.();
  const isTrusted = (uid: number) => own === undefined || uid === own || uid === 0 || uid === serverUser;
  const [file, directory] = [statOf(path), statOf(dirname(path))];
  const sticky = 0o1000;
  const isShared = directory && (directory.mode & 0o022) !== 0 && (directory.mode & sticky) === 0;
  if (file && directory && (!isTrusted(file.uid) || !isTrusted(directory.uid) || isShared)) {
    const whose = isTrusted(file.uid) ? `its directory can be changed by others` : `it belongs to user ${file.uid}`;
    throw new KennelError("FOREIGN_SERVER", `cannot trust the server at ${path}: ${whose}`, {
      code: "PERMISSION_DENIED",
    });
  }
  const socket = net.connect(path);
  await opened(socket, "connect", SOCKET_DIAL_MAX);
  return socket;
}

/**
 * Compares the name of a server with its certificate. That of Node knows no IPv6 address in another form than its own.
 */
function checkName(name: string, certificate: tls.PeerCertificate): Error | undefined {
  if (!net.isIPv6(name)) return tls.checkServerIdentity(name, certificate);
  if (new X509Certificate(certificate.raw).checkIP(name) !== undefined) return undefined;
  const message = `${name} is not among its names: ${certificate.subjectaltname ?? ""}`;
  return Object.assign(new Error(message), { code: "ERR_TLS_CERT_ALTNAME_INVALID" });
}

/** Says whether the handshake has failed at the server's certificate. */
function untrusted(error: NodeJS.ErrnoException): boolean {
  return /CERT|SELF_SIGNED|LEAF_SIGNATURE|ALTNAME|ISSUER|INVALID_CA|INVALID_PURPOSE/.test(error.code ?? "");
}

function untrustedServer(name: string, cause: NodeJS.ErrnoException): KennelError {
  const message = `cannot verify the certificate of ${name}: ${cause.message}`;
  return new KennelError("UNTRUSTED_SERVER", message, { code: "UNAUTHENTICATED", cause });
}

/** Says whether the server has refused the certificate of this client. */
export function isRefusedCertificate(error: unknown): boolean {
  for (let at: unknown = error; at instanceof Error; at = at.cause) {
    if (/ALERT/.test((at as NodeJS.ErrnoException).code ?? "")) return true;
  }
  return false;
}
