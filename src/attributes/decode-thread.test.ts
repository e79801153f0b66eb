import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import type { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { AttributeDecoder } from './decode-thread.ts';

const directory = mkdtempSync(join(tmpdir(), 'attribute-thread-'));
afterAll(() => rmSync(directory, { recursive: true }));

/** A thread that answers with the length of the message. */
function thread(): URL {
  const path = join(directory, 'thread.mjs');
  writeFileSync(
    path,
    `import { parentPort } from 'node:worker_threads';
     parentPort.on('message', ({ body }) => parentPort.postMessage(
       body[0] === 0x5b ? { fault: { reason: 'wrong_shape', message: 'no object' } }
                        : { entries: new Map([['inThread', body.length]]) }));`,
  );
  return pathToFileURL(path);
}

test('only a large message is decoded in the thread, whose faults are those of the sender', async () => {
  const decoder = new AttributeDecoder({ castNumericStrings: true, lenientJson: true }, { entry: thread() });
  const source = { number: 1, tenantId: 'tenant' };
  const body = (bytes: number) => Buffer.from(`{"a":"${'x'.repeat(bytes - 8)}"}`);
  const { attributesInLoopBytesMax: most } = limits;
  try {
    expect(decoder.isLarge(body(most))).toBe(false);
    expect([...(await decoder.decode(body(most), source)).keys()]).toEqual(['a']);
    const large = body(most + 1);
    expect(decoder.isLarge(large)).toBe(true);
    expect([...(await decoder.decode(large, source))]).toEqual([['inThread', most + 1]]);
    // The caller shows the first bytes of a refused message.
    expect(large).toHaveLength(most + 1);
    const refused = decoder.decode(Buffer.from(`[${' '.repeat(most)}]`), source);
    expect(await refused.catch((fault: Fault) => `${fault.status} ${fault.reason}`)).toBe('400 wrong_shape');
  } finally {
    await decoder.close();
  }
});
