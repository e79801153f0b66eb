/** Assembles the MQTT door: every topic with its operation, every stream, and the connections that use them. */

import type { Admission } from '../activity/admission.ts';
import type { Attributes } from '../attributes/attributes.ts';
import type { AttributeDecoder } from '../attributes/decode-thread.ts';
import type { AttributeUpdates } from '../attributes/followers.ts';
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { Config } from '../base/settings/config.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { Troubles } from '../diagnostics/troubles.ts';
import type { GatewayDecodeThread } from '../gateway/decode-thread.ts';
import type { Gateways } from '../gateway/gateways.ts';
import type { GatewayDecoder } from '../gateway/telemetry.ts';
import type { Decode, Ingest } from '../ingest/accept.ts';
import type { ClaimDeps } from '../onboarding/claim.ts';
import type { ProvisionDeps } from '../onboarding/provision.ts';
import type { Downloads } from '../ota/downloads.ts';
import type { Rpc } from '../rpc/send.ts';
import type { RpcSessions } from '../rpc/sessions.ts';
import type { Calls } from '../rules/calls.ts';
import type { ReadBody } from '../value/lenient.ts';
import { PacketRoom } from './flow/packet-room.ts';
import { Mqtt } from './server.ts';
import type { SignIn } from './sign-in/sign-in.ts';
import { attributeRequestTopics } from './topics/attribute-requests.ts';
import { AttributeStream, attributeTopics, saveAttributes } from './topics/attributes.ts';
import { callTopics } from './topics/calls.ts';
import { claimTopics } from './topics/claim.ts';
import { firmwareTopics } from './topics/firmware.ts';
import { gatewayTopics } from './topics/gateway.ts';
import { profileOperations } from './topics/profile-topics.ts';
import { provisionTopics } from './topics/provision.ts';
import { RpcStream, rpcTopics } from './topics/rpc.ts';
import { sessionLimits } from './topics/session-limits.ts';
import { type TopicEntries, TopicTable } from './topics/table.ts';
import { telemetryOperation, telemetryTopics } from './topics/telemetry.ts';

export interface MqttDoorDeps {
  config: Config;
  /** '' = not sent to clients. */
  worker: string;
  /** The connections that this worker may have now. */
  connectionsMax: () => number;
  isTrustedProxy: (address: string) => boolean;
  signIn: SignIn;
  ingest: Ingest;
  decode: Decode<CachedDevice>;
  readBody: ReadBody;
  castNumericStrings: boolean;
  attributeDecoder: AttributeDecoder;
  gateways: Gateways;
  gatewayDecoder: GatewayDecoder;
  gatewayThread: GatewayDecodeThread;
  admission: Admission;
  troubles: Troubles;
  attributes: Attributes;
  updates: AttributeUpdates;
  downloads: Downloads;
  rpc: Rpc;
  rpcSessions: RpcSessions;
  calls: Calls;
  claims: ClaimDeps;
  provisioning: ProvisionDeps;
  clock: Clock;
  log: Log;
  metrics: Metrics;
}

/** A row for each file of `topics/` that takes messages of devices. */
export function deviceTopics(deps: MqttDoorDeps): TopicEntries[] {
  const { config } = deps;
  return [
    telemetryTopics(deps),
    attributeTopics(deps),
    attributeRequestTopics(deps),
    rpcTopics(deps),
    callTopics({
      ...deps,
      sessionLimits: sessionLimits(config.mqtt, gatewayBytesMax(config), deps.admission.rateLimits),
    }),
    claimTopics(deps),
    firmwareTopics({ ...deps, packetBytesMax: config.mqtt.packetBytesMax }),
  ];
}

/** The largest packet of a gateway. */
export function gatewayBytesMax({ mqtt, gateway }: Pick<Config, 'mqtt' | 'gateway'>): number {
  return Math.max(mqtt.packetBytesMax, gateway.packetBytesMax);
}

export function openMqtt(deps: MqttDoorDeps): Mqtt {
  const { config, worker, signIn, ingest, admission, updates, provisioning, clock, log, metrics } = deps;
  const { packetBytesMax, inflightMax, idleSeconds, closeOnInvalid, serverReference } = config.mqtt;
  const connectionsPerAddressMax = () => config.mqtt.connectionsPerAddressMax || Math.ceil(0.9 * deps.connectionsMax());
  const packetRoom = new PacketRoom(config.gateway.packetBytesInFlightMax, gatewayBytesMax(config));
  const gateway = gatewayTopics(deps, config.gateway.disconnectNotices);
  const ofProfile = profileOperations(telemetryOperation(deps), saveAttributes(deps));
  const topics = new TopicTable([...deviceTopics(deps), ...gateway.topics], ofProfile);
  return new Mqtt(
    {
      settings: {
        worker,
        serverReference,
        connectionsPerAddressMax,
        packetBytesMax,
        inflightMax,
        gateway: { packetBytesMax: gatewayBytesMax(config), inflightMax },
        idleMs: idleSeconds * 1000,
        closeOnInvalid,
      },
      signIn,
      isTrustedProxy: deps.isTrustedProxy,
      topics,
      provisionTopics: new TopicTable([provisionTopics(provisioning, deps.readBody)]),
      streams: {
        attributes: new AttributeStream({ updates, log }),
        rpc: new RpcStream(deps.rpcSessions),
        ...gateway.streams,
      },
      admission,
      packetRoom,
      troubles: deps.troubles,
      journalRefusal: () => ingest.refusal(),
      clock,
      log,
    },
    metrics,
  );
}
