/** The engine that all tests of a run share. Each test makes devices of its own, and no test stops the engine. */
import { inject } from 'vitest';
import { Api, type ApiAddress, type Device } from './api.ts';

export interface SharedEngine extends ApiAddress {
  dataDir: string;
  mqttPort: number;
  analyticsPort: number;
  /** MQTT over TLS, and HTTPS. */
  mqttsPort: number;
  httpsPort: number;
  /** The PEM that clients of both protocols must trust. */
  certificate: string;
}

declare module 'vitest' {
  interface ProvidedContext {
    engine: SharedEngine;
  }
}

let api: Api | undefined;

export function sharedEngine(): Api {
  api ??= new Api(inject('engine'));
  return api;
}

export function mqttPort(): number {
  return inject('engine').mqttPort;
}

/** Returns the port of MQTT over TLS, and the certificate to trust. */
export function mqttsEngine(): { port: number; ca: string } {
  const { mqttsPort, certificate } = inject('engine');
  return { port: mqttsPort, ca: certificate };
}

/** Creates a device that no other test uses. */
export function newDevice(): Promise<Device> {
  return sharedEngine().newDevice();
}
