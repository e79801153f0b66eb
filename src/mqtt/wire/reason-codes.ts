/** The reason codes of acknowledgements in MQTT 5 that this server sends [MQTT-2.4]. */
export const code = {
  success: 0x00,
  unspecified: 0x80,
  implementation: 0x83,
  notAuthorized: 0x87,
  topicName: 0x90,
  packetIdUnknown: 0x92,
  quota: 0x97,
  payload: 0x99,
} as const;
