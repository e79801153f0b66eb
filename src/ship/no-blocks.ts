/**
 * Moves frames that are no block to the quarantine, before an insert. Their checksums are right, so another program, or
 * other code, wrote them so: ClickHouse would refuse the whole insert with an answer that may name no row, and would be
 * asked again without end. Called by `lane.ts`. The bytes are durable there before their unit is confirmed.
 */
import { crc32 } from 'node:zlib';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter } from '../base/metrics/metrics.ts';
import type { Sleep } from '../base/scheduler.ts';
import { type Lane, laneNames, type ShipUnit } from '../journal/journal.ts';
import type { GivesUnits } from '../journal/seam.ts';
import { layoutOf } from '../telemetry/block-layout.ts';
import { waitMsMax } from './backoff.ts';
import { framesOf, type PartOfUnit } from './pieces.ts';

interface NoBlocksDeps {
  journal: GivesUnits;
  log: Log;
  metrics: { noBlocks: Counter };
  sleep: Sleep;
  onSuspects?: (lane: Lane, orders: ReadonlySet<bigint>) => void;
}

/** Returns the frames that are blocks; undefined when the signal was aborted before all others were kept. */
export async function withoutNoBlocks(
  deps: NoBlocksDeps,
  unit: ShipUnit,
  signal: AbortSignal,
): Promise<PartOfUnit | undefined> {
  const found: ReadonlySet<Uint8Array> = new Set(unit.payloads.filter((payload) => layoutOf(payload) === undefined));
  if (found.size === 0) return unit;
  const { journal, log, metrics, sleep, onSuspects } = deps;
  const lane = laneNames[unit.lane];
  const orders = new Set<bigint>();
  for (const [i, payload] of unit.payloads.entries()) {
    if (!found.has(payload)) continue;
    const order = unit.orders[i]!;
    // The same frame given again is the same entry.
    const name = `frame-${lane}-${order}-${crc32(payload).toString(16)}`;
    for (;;) {
      if (signal.aborted) return undefined;
      try {
        const added = await journal.quarantine.addGap(name, 0, payload, 'no block');
        if (added === 'added') metrics.noBlocks.add(1);
        log.error('frame_no_block', { lane, order: order.toString(), bytes: payload.length });
        break;
      } catch (error) {
        log.error('frame_no_block_not_kept', { lane, reason: messageOf(error) });
        await sleep(waitMsMax, signal);
      }
    }
    orders.add(order);
  }
  onSuspects?.(unit.lane, orders);
  return framesOf(unit, (payload) => !found.has(payload));
}
