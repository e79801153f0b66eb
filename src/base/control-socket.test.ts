import { mkdirSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { listenControl, openControl } from './control-socket.ts';

const dir = mkdtempSync(join(tmpdir(), 'millrace-control-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

test('a command is answered, and an unknown one is refused with its name', async () => {
  const path = join(dir, 'a.sock');
  const server = await listenControl(path, {
    double: async (argument) => Number(argument) * 2,
    fail: async () => {
      throw new Error('the disk is full');
    },
  });
  expect(statSync(path).mode & 0o777).toBe(0o600);
  const control = await openControl(path);
  expect(await Promise.all([control.ask('double', 1), control.ask('double', 2)])).toEqual([2, 4]);
  await expect(control.ask('fail')).rejects.toThrow('fail: the disk is full.');
  await expect(control.ask('nothing')).rejects.toThrow(/nothing.*is no command/);
  await expect(control.ask('toString')).rejects.toThrow(/is no command/);
  const answered = expect(control.ask('double', 3)).resolves.toBe(6);
  await answered;
  await server.close();
  await expect(control.ask('double', 1)).rejects.toThrow('ended the connection');
  await expect(openControl(path)).rejects.toThrow(/No running instance.*start Millrace/);
});

test('what a command holds ends with the connection', async () => {
  const path = join(dir, 'b.sock');
  let ended = 0;
  const server = await listenControl(path, {
    hold: async (_argument, session) => {
      session.onClosed(() => {
        ended += 1;
      });
    },
  });
  const control = await openControl(path);
  await control.ask('hold');
  expect(ended).toBe(0);
  control.close();
  await expect.poll(() => ended).toBe(1);
  await server.close();
});

test('the path may be longer than the address of a socket', async () => {
  const long = join(dir, 'd'.repeat(120));
  mkdirSync(long);
  const path = join(long, 'control.sock');
  const server = await listenControl(path, { ping: async () => 'pong' });
  const control = await openControl(path);
  expect(await control.ask('ping')).toBe('pong');
  control.close();
  await server.close();
});
