/**
 * The port for operators: health and metrics of the whole instance, on a separate address that only monitors reach. The
 * primary has the port because the primary gathers both; devices and users use other ports.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { messageOf, StartError } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { type InstanceState, isUp } from '../health/state.ts';

interface MonitorDeps {
  address: string;
  /** 0 = any free one. */
  port: number;
  state: () => InstanceState;
  /** Names of the hosts of the installation that no longer send heartbeats. */
  silentHosts: () => string[];
  metrics: () => Promise<string>;
  log: Log;
}

interface Monitor {
  port: number;
  close(): void;
}

/** Throws a `StartError` when the address cannot be bound. */
export async function openMonitor(deps: MonitorDeps): Promise<Monitor> {
  const { address, port, log } = deps;
  const scrape = shared(deps.metrics);
  const server = createServer((request, response) => {
    answer(deps, scrape, request, response).catch((error: unknown) => {
      log.error('monitor_answer_failed', { path: request.url, reason: messageOf(error) });
      if (!response.headersSent) send(response, 503, { status: 503, message: 'The metrics could not be gathered.' });
    });
  });
  server.maxConnections = limits.monitorConnectionsMax;
  server.headersTimeout = limits.monitorTimeoutMs;
  server.requestTimeout = limits.monitorTimeoutMs;
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const reason = error.code === 'EADDRINUSE' ? 'is taken by another program' : `cannot be bound (${error.code})`;
      reject(new StartError(`Port ${port} on ${address} ${reason}: change MONITOR_BIND_ADDRESS or MONITOR_BIND_PORT.`));
    });
    server.listen({ host: address, port, exclusive: true }, resolve);
  });
  return {
    port: (server.address() as AddressInfo).port,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

async function answer(
  { state, silentHosts }: MonitorDeps,
  scrape: () => Promise<string>,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  // The body is not used.
  request.resume();
  const [path = ''] = (request.url ?? '').split('?');
  if (!['/livez', '/readyz', '/healthz', '/metrics'].includes(path)) {
    send(response, 404, { status: 404, message: 'No such path: /livez, /readyz and /metrics are here.' });
  } else if (request.method !== 'GET' && request.method !== 'HEAD') {
    response.setHeader('Allow', 'GET, HEAD');
    send(response, 405, { status: 405, message: `Request method '${request.method}' is not supported` });
  } else if (path === '/livez') {
    send(response, 200, { status: 'live' });
  } else if (path === '/metrics') {
    const text = await scrape();
    response.setHeader('Content-Type', 'text/plain; version=0.0.4; charset=utf-8');
    response.setHeader('Vary', 'Accept-Encoding');
    if (!acceptsGzip(request.headers['accept-encoding'])) {
      response.end(text);
      return;
    }
    response.setHeader('Content-Encoding', 'gzip');
    // Compresses in a thread of libuv.
    response.end(await promisify(gzip)(text, { level: 1 }));
  } else {
    const { status, parts, reasons } = state();
    const silent = silentHosts();
    const ofOthers = silent.length > 0 && { silentHosts: silent };
    send(response, isUp({ status }) ? 200 : 503, { status, parts, reasons, ...ofOthers });
  }
}

/** `gzip` or `*` with a weight above 0, as RFC 9110 section 12.5.3 defines it. */
function acceptsGzip(header = ''): boolean {
  return header.split(',').some((each) => /^\s*(gzip|\*)\s*(;\s*q=(?!0(\.0*)?\s*$).*)?$/i.test(each));
}

function send(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' });
  response.end(JSON.stringify(body));
}

/** Returns a function whose callers share the result of a call that runs. */
function shared<T>(call: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | undefined;
  return () => {
    running ??= call().finally(() => {
      running = undefined;
    });
    return running;
  };
}
