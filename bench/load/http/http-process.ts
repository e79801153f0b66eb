/** One generator process of the HTTP load: keep-alive sockets with one request in flight each. */
import { DrawnDevices } from '../drawn-devices.ts';
import { type Course, serveOrder } from '../generator-process.ts';
import { type Conversation, InTurn, Loop, type LoopOrder } from '../one-in-flight.ts';
import type { ProcessResult } from '../processes.ts';
import { LinesRequest } from './lines.ts';
import { DeviceRequest, DrawnRequests, type MessageKind } from './requests.ts';
import { StatusReader } from './status-reader.ts';

export interface ProcessOrder extends LoopOrder {
  hostHeader: string;
  tokens: string[];
  sockets: number;
  firstTs: number;
  stepMs: number;
  kind: MessageKind | 'lines';
  /** Points of each record of telemetry. */
  points: number;
  /** Devices in each message of lines, a record of each. */
  messageDevices: number;
  /** True: each message is of a device drawn at random. False: the devices take turns. */
  drawn: boolean;
}

export interface HttpProcessResult extends ProcessResult {
  /** Token and `ts` of the last request of each device that sent any; empty when devices are drawn. */
  lastTs: [token: string, ts: number][];
}

async function run(order: ProcessOrder, course: Course): Promise<HttpProcessResult> {
  const { sockets, tokens, drawn, kind } = order;
  if (drawn && kind !== 'lines') {
    const all = new DrawnDevices(tokens);
    const conversations = Array.from({ length: sockets }, (_, n): Conversation => {
      return {
        requests: new DrawnRequests(all, tokens[0]!, { ...order, kind }, seedOf(n)),
        reader: new StatusReader(),
      };
    });
    return { ...(await new Loop(order, conversations).run(course)), lastTs: [] };
  }
  const requests = kind === 'lines' ? linesOf(order) : tokens.map((token, n) => deviceOf({ ...order, kind }, token, n));
  const conversations = Array.from({ length: sockets }, (_, n): Conversation => {
    // Each device belongs to one socket: its buffer is never changed while it is being sent.
    return { requests: new InTurn(requests.filter((__, at) => at % sockets === n)), reader: new StatusReader() };
  });
  const result = await new Loop(order, conversations).run(course);
  return { ...result, lastTs: requests.flatMap(({ sent, token, ts }) => (sent > 0 ? [[token, ts]] : [])) };
}

function deviceOf(order: ProcessOrder & { kind: MessageKind }, token: string, n: number): DeviceRequest {
  return new DeviceRequest(token, order, seedOf(n));
}

function linesOf(order: ProcessOrder): LinesRequest[] {
  const { tokens, messageDevices } = order;
  return Array.from({ length: Math.ceil(tokens.length / messageDevices) }, (_, n) => {
    return new LinesRequest(tokens.slice(n * messageDevices, (n + 1) * messageDevices), order, seedOf(n));
  });
}

function seedOf(n: number): number {
  return n * 2_654_435_761;
}

serveOrder(run);
