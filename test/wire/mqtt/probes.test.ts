/** The kernel probes silent clients (docs/mqtt.md#connect), and those that connected together at different times. */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { mqttPort, mqttsEngine } from '../../harness/shared-engine.ts';

const count = 64;

const doors: [name: string, port: () => number][] = [
  ['TCP', mqttPort],
  ['TLS', () => mqttsEngine().port],
];

test.each(doors)('clients that connect over %s together are probed at different times', async (_, portOf) => {
  const port = portOf();
  // An error of a socket shows as a probe that is missing.
  const sockets = Array.from({ length: count }, () => connect(port, '127.0.0.1').on('error', () => {}));
  try {
    await Promise.all(sockets.map((socket) => once(socket, 'connect')));
    const seconds = await eventually(() => {
      const each = secondsToProbes(port, sockets);
      return each.length === count ? each : undefined;
    }, 8_000);
    expect(Math.min(...seconds)).toBeGreaterThan(45);
    expect(Math.max(...seconds)).toBeLessThan(130);
    expect(Math.max(...seconds) - Math.min(...seconds)).toBeGreaterThan(20);
  } finally {
    for (const socket of sockets) socket.destroy();
  }
});

/** Returns the seconds until the kernel probes each of the sockets that the engine has accepted. */
function secondsToProbes(port: number, sockets: Socket[]): number[] {
  const clients = new Set(sockets.map(({ localPort }) => localPort));
  const lines = ['tcp', 'tcp6'].flatMap((name) => readFileSync(`/proc/net/${name}`, 'utf8').split('\n').slice(1));
  return lines.flatMap((line) => {
    const [, local = '', remote = '', , , timer = ''] = line.trim().split(/\s+/);
    const [kind, hundredths = ''] = timer.split(':');
    // A timer of the kind 02 runs until a probe.
    if (kind !== '02' || portIn(local) !== port || !clients.has(portIn(remote))) return [];
    return [Number.parseInt(hundredths, 16) / 100];
  });
}

/** Returns the port of an address such as `0100007F:1F90`. */
function portIn(address: string): number {
  return Number.parseInt(address.split(':')[1] ?? '', 16);
}
