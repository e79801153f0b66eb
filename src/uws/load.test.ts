import { expect, test } from 'vitest';
import { loadFault } from './load.ts';

const head =
  'This version of uWS.js (v20.51.0) supports only Node.js versions 18, 20, 22 and 23 on (glibc) Linux, macOS and Windows.';

test('packages of another Node version are distinguished from a system without a build', () => {
  const other = `${head}\n\nError: Cannot find module '@uwsjs/linux-x64-22'\nRequire stack:\n- uws_linux_x64_127.node.js`;
  expect(loadFault(other).message).toMatch(/^The packages were installed under another .* run `npm ci` again\.$/);
  const none = `${head}\n\nError: Cannot find module './uws_linux_ia32_115.node'\nRequire stack:\n- uws.js`;
  expect(loadFault(none).message).toMatch(
    /^uWebSockets\.js has no build for Node v\d+.*: use Node 20 or 22 on a glibc Linux/,
  );
});
