/**
 * Points of a frame as messages of plain JSON, one for each device and `ts` (docs/stream.md). The subject names tenant,
 * profile and device, so that the servers filter for each reader. Pure rules.
 */
import { listOfSetting } from '../base/settings/list-setting.ts';
import type { SenderRow } from '../device/sql/look-up-store.ts';
import type { StreamSettings } from './stream-names.ts';
import type { StreamPoint } from './stream-points.ts';

export interface JsonMessage {
  subject: string;
  body: string;
}

/** Returns whether a point is wanted. */
export interface JsonFilter {
  sender(sender: SenderRow): boolean;
  key(key: string): boolean;
}

export function jsonFilterOf({ tenants, profiles, keys }: StreamSettings['json']): JsonFilter {
  const [ofTenants, ofProfiles, ofKeys] = [tenants, profiles, keys].map((text) => new Set(listOfSetting(text)));
  const has = (set: Set<string>, value: string) => set.size === 0 || set.has(value);
  return {
    sender: ({ tenantId, profileId }) => has(ofTenants!, tenantId) && has(ofProfiles!, profileId),
    key: (key) => has(ofKeys!, key),
  };
}

interface Messages {
  messages: JsonMessage[];
  /** Points that need more bytes than one message may have. */
  tooLarge: number;
}

/** Neighbouring points of one device and `ts` are one message, until it would repeat a key or pass `bytesMax`. */
export function jsonMessages(
  name: string,
  points: readonly StreamPoint[],
  senders: ReadonlyMap<number, SenderRow>,
  filter: JsonFilter,
  bytesMax: number,
): Messages {
  const messages: JsonMessage[] = [];
  let tooLarge = 0;
  let open: { point: StreamPoint; sender: SenderRow; keys: Set<string>; members: string[]; bytes: number } | undefined;
  const end = () => {
    if (open) messages.push(messageOf(name, open.sender, open.point, open.members));
    open = undefined;
  };
  for (const point of points) {
    const sender = senders.get(point.device);
    if (!sender || !filter.sender(sender) || !filter.key(point.key)) continue;
    const member = `${JSON.stringify(point.key)}:${point.json}`;
    const bytes = Buffer.byteLength(member) + 1;
    const isSame = open?.point.device === point.device && open.point.ts === point.ts && open.point.seq === point.seq;
    if (!isSame || open!.keys.has(point.key) || open!.bytes + bytes > bytesMax) end();
    open ??= { point, sender, keys: new Set(), members: [], bytes: Buffer.byteLength(headOf(sender, point)) + 2 };
    if (open.bytes + bytes > bytesMax) {
      tooLarge += 1;
      open = undefined;
      continue;
    }
    open.keys.add(point.key);
    open.members.push(member);
    open.bytes += bytes;
  }
  end();
  return { messages, tooLarge };
}

function messageOf(name: string, sender: SenderRow, point: StreamPoint, members: string[]): JsonMessage {
  return {
    subject: `${name}.json.${sender.tenantId}.${sender.profileId}.${sender.id}`,
    body: `${headOf(sender, point)}${members.join()}}}`,
  };
}

function headOf({ tenantId, profileId, id, name }: SenderRow, { ts, arrivedMs }: StreamPoint): string {
  const head = { tenant: tenantId, profile: profileId, device: id, name, ts, arrived: arrivedMs };
  return `${JSON.stringify(head).slice(0, -1)},"values":{`;
}
