/**
 * POST /api/v1/{token}/telemetry: bytes of a request → rows of a frame → 200 when they are durable. The hot path of
 * HTTP: a known device with a small body allocates only the exchange. Order of checks: presence of a body, token,
 * quotas, messages of the rate limit, room in the journal, JSON, data points of the rate limit, keys.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { Decode, Ingest } from '../ingest/accept.ts';
import type { DecodeThread } from '../telemetry/decode-thread.ts';
import type { Exchange } from '../uws/exchange.ts';
import { missingBody } from '../uws/missing-body.ts';
import type { HttpServer, RawReceiver } from '../uws/server.ts';
import { type DeviceAuth, senderOf } from './device-auth.ts';

interface TelemetryDoorDeps {
  server: HttpServer;
  deviceAuth: DeviceAuth;
  ingest: Ingest;
  thread: DecodeThread;
  clock: Clock;
  decode: Decode<CachedDevice>;
  metrics: Metrics;
}

export function telemetryDoor(deps: TelemetryDoorDeps): void {
  const { server, deviceAuth, ingest, thread, clock, decode, metrics } = deps;
  const { admission } = deviceAuth;
  const rejected = rejectedCounter(metrics);

  const refuse = (exchange: Exchange, error: unknown, token: string, body?: Buffer): void => {
    if (!(error instanceof Fault)) throw error;
    rejected(error.reason).add(1);
    deviceAuth.refuse(exchange, error, token, body);
  };

  const accept = (exchange: Exchange, token: string, device: CachedDevice, body: Buffer): void => {
    try {
      const isLimited = admission.isLimiting;
      if (isLimited) admission.admit(device);
      const now = clock.now();
      const charge = isLimited ? admission.charge : undefined;
      const points = ingest.accept(decode, body, device, exchange, charge, device, now);
      admission.accepted(device, points, now);
    } catch (error) {
      refuse(exchange, error, token, body);
    }
  };

  const acceptLarge = async (exchange: Exchange, device: CachedDevice, body: Buffer): Promise<void> => {
    admission.admit(device);
    const chunks = await thread.decode(body, device, clock.now());
    const points = chunks.reduce((count, chunk) => count + chunk.count, 0);
    const keys = admission.deviceKeys.isLimiting ? chunks.flatMap((chunk) => chunk.keys()) : [];
    admission.chargeDecoded(device, points, keys);
    void ingest.acceptDecoded(chunks, exchange, device);
    admission.accepted(device, points);
  };

  /**
   * Handles the rare paths: a token that must be looked up, or a body for the decoding thread. Both are asynchronous.
   */
  const acceptLater = async (
    exchange: Exchange,
    token: string,
    known: CachedDevice | undefined,
    body: Buffer,
  ): Promise<void> => {
    try {
      const device = known ?? (await deviceAuth.find(token, exchange));
      if (body.length <= limits.decodeInLoopBytesMax) accept(exchange, token, device, body);
      else await acceptLarge(exchange, device, body);
    } catch (error) {
      refuse(exchange, error, token, body);
    }
  };

  const receive: RawReceiver = (exchange, token, body) => {
    if (body.length === 0) {
      refuse(exchange, missingBody, token);
      return;
    }
    const device = deviceAuth.known(token, exchange);
    if (device !== undefined && body.length <= limits.decodeInLoopBytesMax) {
      accept(exchange, token, device, body);
      return;
    }
    const sender = device && senderOf(device);
    void server.withBody(exchange, body, sender, (held) => acceptLater(exchange, token, device, held));
  };
  const onRefused = (fault: Fault, token: string, exchange: Exchange) => {
    rejected(fault.reason).add(1);
    deviceAuth.record(fault, token, exchange);
  };
  const large = {
    bytesMin: limits.decodeInLoopBytesMax,
    refusal: (token: string, exchange: Exchange) => {
      const device = deviceAuth.known(token, exchange);
      return device && (admission.refusal(device) ?? ingest.journalRefusal() ?? thread.refusal(device));
    },
  };
  server.rawPost('/api/v1/:token/telemetry', { admit: deviceAuth.admitBody, large, onRefused }, receive);
}

function rejectedCounter(metrics: Metrics): (reason: string) => Counter {
  const counters = new Map<string, Counter>();
  return (reason) => {
    let counter = counters.get(reason);
    if (!counter) {
      counter = metrics.counter('ingest_rejected_total', 'Messages refused, by reason.', { reason });
      counters.set(reason, counter);
    }
    return counter;
  };
}
