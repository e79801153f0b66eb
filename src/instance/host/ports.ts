/**
 * Checks that the ports of an instance are free, before the fork. uWebSockets.js binds with SO_REUSEPORT, so a second
 * instance would silently take half of the connections of the first one. A worker that cannot listen would be restarted
 * without end.
 */
import { createServer } from 'node:net';
import { StartError } from '../../base/errors.ts';
import type { Config } from '../../base/settings/config.ts';

interface OwnPort {
  address: string;
  /** 0 = any free one. */
  port: number;
  addressSetting: string;
  portSetting: string;
}

export function portsOf({ http, ssl, mqtt, analytics, monitor }: Config): OwnPort[] {
  const own = (address: string, port: number, addressSetting: string, portSetting: string): OwnPort => ({
    address,
    port,
    addressSetting,
    portSetting,
  });
  return [
    own(http.address, http.port, 'HTTP_BIND_ADDRESS', 'HTTP_BIND_PORT'),
    ...(ssl.enabled ? [own(http.address, ssl.port, 'HTTP_BIND_ADDRESS', 'HTTPS_BIND_PORT')] : []),
    own(monitor.address, monitor.port, 'MONITOR_BIND_ADDRESS', 'MONITOR_BIND_PORT'),
    ...(analytics.enabled
      ? [own(analytics.address, analytics.port, 'ANALYTICS_BIND_ADDRESS', 'ANALYTICS_BIND_PORT')]
      : []),
    ...(mqtt.enabled ? [own(mqtt.address, mqtt.port, 'MQTT_BIND_ADDRESS', 'MQTT_BIND_PORT')] : []),
    ...(mqtt.enabled && mqtt.ssl.enabled
      ? [own(mqtt.ssl.address, mqtt.ssl.port, 'MQTT_SSL_BIND_ADDRESS', 'MQTT_SSL_BIND_PORT')]
      : []),
  ];
}

/** Rejects with a StartError that names the setting to change. */
export function probePort({ address, port, addressSetting, portSetting }: OwnPort): Promise<void> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', (error: NodeJS.ErrnoException) => {
      const what = `Port ${port} on ${address}`;
      if (error.code === 'EADDRINUSE') {
        reject(new StartError(`${what} is taken by another program: stop what uses it, or set ${portSetting}.`));
        return;
      }
      reject(new StartError(`${what} cannot be bound (${error.code}): change ${addressSetting} or ${portSetting}.`));
    });
    probe.listen({ port, host: address, exclusive: true }, () => probe.close(() => resolve()));
  });
}
