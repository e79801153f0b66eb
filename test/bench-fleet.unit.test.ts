/** The devices of `npm run bench -- connections`: in a storm each one sends its CONNECT when its socket is open. */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { FleetDevices } from '../bench/load/mqtt/fleet-devices.ts';

const connack = Buffer.from([0x20, 2, 0, 0]);
const count = 1_000;

test('the first CONNECT of a storm comes before most sockets are open, and each lost connection is counted', async () => {
  const open = new Set<Socket>();
  let [received, openAtFirst] = [0, 0];
  const server = createServer((socket) => {
    open.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => open.delete(socket));
    socket.on('data', () => {
      received += 1;
      if (received === count + 1) openAtFirst = openFrom('127.77.1.1');
      socket.write(connack);
    });
  });
  server.listen({ host: '127.0.0.1', port: 0, backlog: 4_096 });
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const tokens = Array.from({ length: count }, (_, n) => `device-${n}`);
  const place = { localAddresses: ['127.77.1.1'], socketsPerAddress: count };
  const devices = new FleetDevices({ host: '127.0.0.1', port, tokens, ...place });
  try {
    expect(await devices.connect()).toMatchObject({ failed: {}, lost: 0 });
    expect(openFrom('127.77.1.1')).toBe(count);
    const { failed, lost, connectedAfterMs } = await devices.storm();
    expect({ failed, lost, connected: connectedAfterMs.length }).toEqual({ failed: {}, lost: 0, connected: count });
    expect(openAtFirst).toBeGreaterThan(0);
    expect(openAtFirst).toBeLessThan(count / 4);
    for (const socket of [...open].slice(0, 3)) socket.destroy();
    await expect.poll(() => devices.idle().lost).toBe(3);
  } finally {
    devices.close();
    server.close();
  }
});

/** Returns how many TCP connections the kernel has from the address. */
function openFrom(address: string): number {
  const hex = Buffer.from(address.split('.').map(Number).reverse()).toString('hex').toUpperCase();
  const lines = readFileSync('/proc/net/tcp', 'utf8').split('\n');
  return lines.filter((line) => new RegExp(`^ *\\d+: ${hex}:\\w+ \\w+:\\w+ 01 `).test(line)).length;
}
