/**
 * What the MQTT configuration of a device profile changes for its devices: topics beside the usual ones, in which `+`
 * and `#` stand for what they do in a subscription, and whether a message that cannot be read is acknowledged.
 */

export interface ProfileTopics {
  telemetry: string | undefined;
  attributes: string | undefined;
  /** Where the device subscribes to shared attributes and receives them. */
  attributesSubscribe: string | undefined;
  /** A message that cannot be read is acknowledged over MQTT 3, even where `mqtt.closeOnInvalid` is set. */
  acknowledgesInvalid: boolean;
}

/** What the `transportConfiguration` of an MQTT profile says where it was not set. */
const usual = {
  deviceTelemetryTopic: 'v1/devices/me/telemetry',
  deviceAttributesTopic: 'v1/devices/me/attributes',
  deviceAttributesSubscribeTopic: 'v1/devices/me/attributes',
  sendAckOnValidationException: false,
};

/** The form in which topics are saved: clients read every member, also of a profile that set none. */
export function completeTransport(transport: unknown): unknown {
  if (typeof transport !== 'object' || transport === null) return transport;
  return (transport as { type?: unknown }).type === 'MQTT' ? { ...usual, ...transport } : transport;
}

/** Reads the topics of the `transportConfiguration` of a profile; undefined when it changes nothing. */
export function topicsOf(transport: unknown): ProfileTopics | undefined {
  if (typeof transport !== 'object' || transport === null) return undefined;
  const members = transport as Record<string, unknown>;
  if (members['type'] !== 'MQTT') return undefined;
  const topics = {
    telemetry: filterOf(members['deviceTelemetryTopic'], usual.deviceTelemetryTopic),
    attributes: filterOf(members['deviceAttributesTopic'], usual.deviceAttributesTopic),
    attributesSubscribe: filterOf(members['deviceAttributesSubscribeTopic'], usual.deviceAttributesSubscribeTopic),
  };
  const acknowledgesInvalid = members['sendAckOnValidationException'] === true;
  const hasTopics = Object.values(topics).some((topic) => topic !== undefined);
  return hasTopics || acknowledgesInvalid ? { ...topics, acknowledgesInvalid } : undefined;
}

const bytesMax = 1_024;

/** Undefined when it is none, not a valid filter (a profile keeps whatever was saved), or the usual one. */
function filterOf(value: unknown, usual: string): string | undefined {
  if (typeof value !== 'string' || value === '' || value === usual || value.includes('\0')) return undefined;
  if (Buffer.byteLength(value) > bytesMax) return undefined;
  const levels = value.split('/');
  const isValid = levels.every((level, i) =>
    level.includes('#') ? level === '#' && i === levels.length - 1 : !level.includes('+') || level === '+',
  );
  return isValid ? value : undefined;
}
