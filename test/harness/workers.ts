/**
 * Connections whose worker is known, for rules that hold across workers. The engine must name its workers
 * (HTTP_TELL_WORKER); the kernel chooses who accepts a connection, so more are opened until each worker has one.
 */
import { RawConnection, type RawRequest, type RawResponse } from './raw.ts';

/** A worker that gets no processor time accepts nothing, so each worker has this time. */
const waitMsMax = 20_000;

/** Opens keep-alive connections, one on each worker, in the order of the workers. The caller closes them. */
export async function connectToEachWorker(port: number, workers = 2): Promise<RawConnection[]> {
  const connections = await openOnEachWorker(port, workers);
  for (const [worker, connection] of connections) connection.reopen = () => openOn(worker, port, workers);
  return [...connections.values()];
}

async function openOn(worker: number, port: number, workers: number): Promise<RawConnection> {
  const connections = await openOnEachWorker(port, workers);
  for (const [other, connection] of connections) if (other !== worker) connection.close();
  return connections.get(worker)!;
}

async function openOnEachWorker(port: number, workers: number): Promise<Map<number, RawConnection>> {
  const byWorker = new Map<number, RawConnection>();
  const deadline = performance.now() + waitMsMax;
  for (let attempts = 0; byWorker.size < workers; attempts += 1) {
    if (performance.now() > deadline) {
      throw new Error(`${attempts} connections in ${waitMsMax} ms reached workers ${[...byWorker.keys()]} only`);
    }
    const connection = await RawConnection.open(port);
    const worker = workerOf(await connection.ask({ method: 'GET', path: '/livez' }));
    if (byWorker.has(worker)) connection.close();
    else byWorker.set(worker, connection);
  }
  return new Map([...byWorker].sort(([a], [b]) => a - b));
}

/** Opens one connection on each worker, uses and closes them. */
export async function withWorkers<T>(port: number, use: (connections: RawConnection[]) => Promise<T>): Promise<T> {
  const connections = await connectToEachWorker(port);
  try {
    return await use(connections);
  } finally {
    for (const connection of connections) connection.close();
  }
}

/** Returns the slot of the worker that answered. */
export function workerOf({ headers }: RawResponse): number {
  const name = headers.get('x-millrace-worker');
  if (name === undefined) throw new Error('the engine does not tell its workers: set HTTP_TELL_WORKER=true');
  return Number(name);
}

/** Makes a REST call on a given connection, so on a given worker. `token` is a JWT. */
export function restOn(
  connection: RawConnection,
  token: string,
  { headers, ...request }: RawRequest,
): Promise<RawResponse> {
  return connection.ask({
    ...request,
    headers: { 'x-authorization': `Bearer ${token}`, 'content-type': 'application/json', ...headers },
  });
}
