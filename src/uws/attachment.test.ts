import { expect, test } from 'vitest';
import { attachmentHeaders } from './attachment.ts';

test.each([
  ['pump-2.1.bin', 'attachment;filename=pump-2.1.bin', 'pump-2.1.bin'],
  ['pump fw.bin', 'attachment;filename="pump fw.bin"', 'pump fw.bin'],
  [
    'Pümpe "1".bin',
    `attachment;filename="P_mpe _1_.bin";filename*=UTF-8''P%C3%BCmpe%20%221%22.bin`,
    'P%C3%BCmpe%20%221%22.bin',
  ],
  ["it's 100%.bin", `attachment;filename="it's 100_.bin";filename*=UTF-8''it%27s%20100%25.bin`, "it's 100%.bin"],
])('%s', (name, disposition, plain) => {
  expect(attachmentHeaders(name)).toEqual({ 'Content-Disposition': disposition, 'x-filename': plain });
});
