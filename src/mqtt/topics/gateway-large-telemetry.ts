/**
 * Takes a large telemetry message of a gateway: decodes the payload in a thread, connects the children, and accepts the
 * points as a commit of their own. Later messages of the gateway wait for this one (`Gateway.run`), so that points of a
 * device keep their order. A message that names a new child, or one that may not send, is decoded a second time.
 */
import type { Admission } from '../../activity/admission.ts';
import type { Clock } from '../../base/clock.ts';
import { asFault, Fault } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { CachedDevice } from '../../device/model/cached-device.ts';
import { childLost } from '../../gateway/child-faults.ts';
import { chunksWith, type GatewayDecodeThread } from '../../gateway/decode-thread.ts';
import type { Gateway } from '../../gateway/gateway.ts';
import { Refusals } from '../../gateway/refusals.ts';
import { GatewayTelemetry } from '../../gateway/telemetry.ts';
import type { Ingest } from '../../ingest/accept.ts';
import { isJournalRefusal } from '../../ingest/refusals.ts';
import type { Chunk } from '../../telemetry/decoded-chunk.ts';
import { faultFromPlain } from '../../telemetry/plain-fault.ts';
import type { Publish } from '../session/operation.ts';

export interface LargeTelemetryDeps {
  ingest: Ingest;
  admission: Admission;
  gatewayThread: GatewayDecodeThread;
  clock: Clock;
}

/**
 * Resolves when the message is refused, or accepted with its order numbers. Never rejects. `payload` stays valid until
 * then.
 */
export async function takeLargeTelemetry(
  deps: LargeTelemetryDeps,
  gateway: Gateway,
  publish: Publish,
  payload: Buffer,
): Promise<void> {
  const message = new GatewayTelemetry(gateway, publish);
  const refusals = new Refusals();
  message.refusals = refusals;
  try {
    const { chunks, children } = await decode(deps, gateway, payload, refusals);
    await accept(deps.ingest, gateway, chunks, message);
    const points = chunks.reduce((count, chunk) => count + chunk.count, 0);
    deps.admission.accepted(gateway.device, points);
    for (const child of children) deps.admission.touch(child);
  } catch (error) {
    publish.refuse(asFault(error));
  }
}

/** Returns the children that may send, and all their rows; the other children are added to `refusals`. */
async function decode(
  { admission, gatewayThread, clock }: LargeTelemetryDeps,
  gateway: Gateway,
  payload: Buffer,
  refusals: Refusals,
): Promise<{ chunks: Chunk[]; children: CachedDevice[] }> {
  const now = clock.now();
  const hasKeyLimit = admission.deviceKeys.isLimiting;
  const first = await gatewayThread.decode(gateway.device, { body: payload, now, without: [], hasKeyLimit });
  const { names, points, keys } = first;
  for (const [name, fault] of first.refused) refusals.add(name, faultFromPlain(fault));
  const wanted = names.filter((name) => !refusals.has(name)).map((name) => ({ name, type: '' }));
  // A connect may wait for PostgreSQL. Meanwhile only the payload is held, which has its room; rows may be much larger.
  if (wanted.some(({ name }) => gateway.child(name) === undefined)) first.chunks = [];
  const isWhole = first.chunks.length > 0;
  for (const [name, fault] of await gateway.connect(wanted)) refusals.add(name, fault);
  const without: string[] = [];
  for (const [place, name] of names.entries()) {
    if (points[place] === 0) continue;
    const fault = refusals.has(name) ? undefined : refusalOf(admission, gateway, name, points[place]!, keys[place]!);
    if (fault) refusals.add(name, fault);
    if (refusals.has(name)) without.push(name);
  }
  const isAgain = without.length > 0 || !isWhole;
  const decoded = isAgain
    ? await gatewayThread.decode(gateway.device, { body: payload, now, without, hasKeyLimit: false })
    : first;
  const devices = decoded.names.map((name) => gateway.child(name)?.device);
  // A child may have been lost during the second pass.
  if (devices.some((device, place) => device === undefined && decoded.points[place]! > 0)) throw childLost;
  const children = devices.filter((device, place) => device !== undefined && !refusals.has(decoded.names[place]!));
  const numbers = devices.map((device) => device?.number);
  return { chunks: chunksWith(decoded, numbers), children: children as CachedDevice[] };
}

/** Counts the points and keys of a child; returns the refusal of a child that is lost or above a limit. */
function refusalOf(
  admission: Admission,
  gateway: Gateway,
  name: string,
  points: number,
  keys: readonly Uint8Array[],
): Fault | undefined {
  const child = gateway.child(name);
  if (!child) return childLost;
  try {
    admission.chargeDecodedChild(gateway.device, child.device, points, keys);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    if (error.status === 429) child.noteRefused('rate_limit');
    return error;
  }
  return undefined;
}

/** Waits for a journal that refuses, as long as a small message waits. */
async function accept(ingest: Ingest, gateway: Gateway, chunks: Chunk[], message: GatewayTelemetry): Promise<void> {
  for (;;) {
    try {
      await ingest.acceptDecoded(chunks, message, gateway.device);
      gateway.journalWait.end();
      return;
    } catch (error) {
      if (!(error instanceof Fault) || !isJournalRefusal(error) || !gateway.journalWait.mayWait()) throw error;
    }
    await systemScheduler.sleep(limits.mqttJournalCheckMs);
  }
}
