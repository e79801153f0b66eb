/**
 * The MQTT configuration of a device profile: additional topics, in which `+` and `#` match as in a subscription, and
 * whether a message that cannot be decoded is acknowledged.
 */

export interface ProfileTopics {
  telemetry: string | undefined;
  attributes: string | undefined;
  /** The topic on which the device subscribes to shared attributes and receives them. */
  attributesSubscribe: string | undefined;
  /** True: a message that cannot be decoded is acknowledged over MQTT 3, even where `mqtt.closeOnInvalid` is set. */
  acknowledgesInvalid: boolean;
}

/** The default `transportConfiguration` of an MQTT profile. */
const usual = {
  deviceTelemetryTopic: 'v1/devices/me/telemetry',
  deviceAttributesTopic: 'v1/devices/me/attributes',
  deviceAttributesSubscribeTopic: 'v1/devices/me/attributes',
  sendAckOnValidationException: false,
};

/** Returns the stored form of the configuration: all members are present, because clients read every member. */
export function completeTransport(transport: unknown): unknown {
  if (typeof transport !== 'object' || transport === null) return transport;
  return (transport as { type?: unknown }).type === 'MQTT' ? { ...usual, ...transport } : transport;
}

/** Returns the topics of a profile's `transportConfiguration`; undefined when it changes nothing. */
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

/**
 * Returns undefined for a value that is not a string, not a valid filter (a profile may contain one), or the default.
 */
function filterOf(value: unknown, usual: string): string | undefined {
  if (typeof value !== 'string' || value === '' || value === usual || value.includes('\0')) return undefined;
  if (Buffer.byteLength(value) > bytesMax) return undefined;
  const levels = value.split('/');
  const isValid = levels.every((level, i) =>
    level.includes('#') ? level === '#' && i === levels.length - 1 : !level.includes('+') || level === '+',
  );
  return isValid ? value : undefined;
}
