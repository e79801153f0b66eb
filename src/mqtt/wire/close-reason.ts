/**
 * The reasons for which an MQTT connection ends: one list for the DISCONNECT of MQTT 5 (code and Reason String), the
 * label of `mqtt_disconnects_total` and the field of the log. MQTT 3 has no DISCONNECT from the server: its connection
 * is only closed.
 */

interface Closing {
  /** Reason code of the DISCONNECT to an MQTT 5 client; undefined = no packet is sent. */
  code: number | undefined;
  /** Reason String: the cause, and what the client can do. */
  sentence: string;
}

export const closings = {
  client_disconnect: { code: undefined, sentence: 'The client sent DISCONNECT.' },
  connection_lost: { code: undefined, sentence: 'The connection broke without DISCONNECT.' },
  connect_timeout: { code: undefined, sentence: 'No CONNECT came in time.' },
  tls_failed: { code: undefined, sentence: 'The TLS handshake failed.' },
  proxy_header: { code: undefined, sentence: 'A trusted proxy sent no valid PROXY header in time.' },
  not_mqtt: { code: undefined, sentence: 'The first packet is not a well-formed CONNECT.' },
  login_refused: { code: undefined, sentence: 'CONNECT was refused.' },
  too_many_connections: { code: undefined, sentence: 'This worker has its limit of connections.' },
  address_connections: {
    code: undefined,
    sentence: 'This address has its share of connections (mqtt.connectionsPerAddressMax).',
  },
  blocked: { code: undefined, sentence: 'Packets like these ended this service twice; try again in ten minutes.' },

  taken_over: { code: 0x8e, sentence: 'A newer connection of the same device took over.' },
  credentials_changed: {
    code: 0x98,
    sentence: 'The credentials of the device were changed; sign in with the new ones.',
  },
  device_deleted: { code: 0x98, sentence: 'The device was deleted.' },
  server_shutdown: { code: 0x8b, sentence: 'The server is stopping; connect again.' },
  handed_over: { code: 0x9c, sentence: 'This server hands its clients over; connect again to reach another one.' },
  keep_alive: { code: 0x8d, sentence: 'Nothing came for one and a half times the Keep Alive.' },
  idle: { code: 0x83, sentence: 'Nothing came for too long (mqtt.idleSeconds); set a Keep Alive and send PINGREQ.' },

  malformed: {
    code: 0x81,
    sentence:
      'A packet breaks the format of MQTT: check its flags, lengths, packet identifier, topic and UTF-8 strings.',
  },
  protocol_error: {
    code: 0x82,
    sentence:
      'A packet is not allowed here: send CONNECT once, no packet of a server, filters in each SUBSCRIBE, and each property once and where MQTT allows it.',
  },
  packet_too_large: { code: 0x95, sentence: 'A packet is larger than the Maximum Packet Size of CONNACK.' },
  receive_maximum: { code: 0x93, sentence: 'More unacknowledged messages than the Receive Maximum of CONNACK.' },
  too_many_unreleased: { code: 0x93, sentence: 'Too many messages with QoS 2 wait for the PUBREL of the client.' },
  topic_alias: { code: 0x94, sentence: 'Topic aliases are not supported: the Topic Alias Maximum is 0.' },
  slow_reader: { code: 0x97, sentence: 'The client does not read what it is sent.' },
  file_unreadable: { code: undefined, sentence: 'A file was deleted, or could not be read to its end.' },
  too_many_pushes: { code: 0x97, sentence: 'Too many messages wait for the acknowledgement of the client.' },

  provisioned: { code: 0xa0, sentence: 'A provisioning connection ends a minute after its CONNECT.' },
  provisioning_topic: { code: 0x90, sentence: 'A provisioning connection may only publish to /provision/request.' },

  invalid_message: { code: 0x99, sentence: 'A message could not be read (mqtt.closeOnInvalid).' },
  rate_limit: { code: 0x96, sentence: 'Too many messages; send fewer, and the refused one again.' },
  journal_refused: { code: 0x97, sentence: 'Messages cannot be stored at the moment; send again.' },
  server_fault: { code: 0x83, sentence: 'A message could not be handled at the moment; send again.' },
} as const satisfies Record<string, Closing>;

export type CloseReason = keyof typeof closings;

export const closeReasons = Object.keys(closings) as CloseReason[];
