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

test('a fleet whose devices are no longer connected ends with what they were refused with', async () => {
  const sockets = new Set<Socket>();
  // The first device is connected, all others are refused.
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    const code = sockets.size === 1 ? 0 : 5;
    socket.on('data', () => socket.write(Buffer.from([0x20, 2, 0, code])));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const place = { localAddresses: ['127.77.2.1'], socketsPerAddress: 2 };
  const devices = new FleetDevices({ host: '127.0.0.1', port, tokens: ['a', 'b'], ...place }, 300);
  try {
    await expect(devices.connect()).rejects.toThrow(
      '1 of 2 devices are connected, and no other one was for 0.3 s; failed attempts: CONNACK 5 (1)',
    );
  } finally {
    devices.close();
    for (const socket of sockets) socket.destroy();
    server.close();
  }
});

/** Returns how many TCP connections the kernel has from the address. */
function openFrom(address: string): number {
  const hex = Buffer.from(address.split('.').map(Number).reverse()).toString('hex').toUpperCase();
  const lines = readFileSync('/proc/net/tcp', 'utf8').split('\n');
  return lines.filter((line) => new RegExp(`^ *\\d+: ${hex}:\\w+ \\w+:\\w+ 01 `).test(line)).length;
}
