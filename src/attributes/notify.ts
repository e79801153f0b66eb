/** Sends a committed change of shared attributes to the sessions of the device, over the downlink. */
import { limits } from '../base/limits.ts';
import { isObject } from '../base/schema.ts';
import { isCount, isText, UnreadMessage } from '../bus/messages.ts';
import type { Downlink } from '../downlink/downlink.ts';
import { changesJson, deletionsJson, type Update } from './update.ts';
import type { SharedChange } from './writer.ts';

/**
 * The message of topic `attributes`. A message without `json` is too large for the bus: the receiver reads the store.
 */
interface UpdateMessage {
  kind: Update['kind'];
  version: number;
  json?: string;
}

export function notifyShared(downlink: Downlink, { device, version, changed, deleted }: SharedChange): void {
  const json = changed ? changesJson(changed) : deletionsJson(deleted ?? []);
  const message: UpdateMessage = { kind: changed ? 'changes' : 'deletions', version };
  if (json.length <= limits.updateMessageCharsMax) message.json = json;
  downlink.send(device, 'attributes', message);
}

/** Returns the message, or throws `UnreadMessage`. */
export function readUpdateMessage(message: unknown): UpdateMessage {
  if (!isUpdateMessage(message)) throw new UnreadMessage('another shape');
  return message;
}

function isUpdateMessage(value: unknown): value is UpdateMessage {
  if (!isObject(value)) return false;
  const { kind, version, json } = value;
  return (kind === 'changes' || kind === 'deletions') && isCount(version) && (json === undefined || isText(json));
}
