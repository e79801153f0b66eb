/** Makes the banner of a start, from the settings and from what the start found. */
import type { Config } from '../../base/settings/config.ts';
import { ownVersion } from '../../base/version.ts';
import type { Banner } from './banner.ts';

/** What a start found or made, beside the settings. */
interface StartFacts extends Pick<Banner, 'seconds' | 'workers' | 'engines' | 'dataPath' | 'monitorPort'> {
  /** What PostgreSQL got at this start; undefined when PostgreSQL does not answer yet. */
  seeded: { adminCreated: boolean; demoDevice: Banner['demoDevice'] } | undefined;
  /** The password of the administrators; a generated one unless the settings have one. */
  adminPassword: string;
}

export function startBanner(
  { admin, analytics, docs, http, ingest, monitor, mqtt, postgres, ssl, stream }: Config,
  { seeded, adminPassword, ...facts }: StartFacts,
): Omit<Banner, 'missing' | 'warnings' | 'refusal'> {
  const adminCreated = seeded?.adminCreated === true;
  return {
    ...facts,
    version: ownVersion(),
    ack: ingest.ack,
    streamUrl: stream.url,
    address: http.address,
    port: http.port,
    httpsPort: ssl.enabled ? ssl.port : 0,
    docs: docs.enabled,
    mqttAddress: mqtt.address,
    mqttPort: mqtt.enabled ? mqtt.port : 0,
    mqttsAddress: mqtt.ssl.address,
    mqttsPort: mqtt.enabled && mqtt.ssl.enabled ? mqtt.ssl.port : 0,
    analyticsAddress: analytics.address,
    analyticsPort: analytics.enabled ? analytics.port : 0,
    monitorAddress: monitor.address,
    mqttPath: mqtt.enabled && mqtt.webSocket ? '/mqtt' : '',
    adminEmail: admin.email,
    systemEmail: adminCreated ? admin.systemEmail : '',
    // A password that the operator set is known to the operator; a generated one is printed once.
    adminPassword: adminCreated && !admin.password ? adminPassword : undefined,
    adminCreated,
    isShared: postgres.url !== '',
    demoDevice: seeded?.demoDevice,
  };
}
