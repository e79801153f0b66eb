/** The browser of the tests: Debian's chromium, or another of its kind in PATH. Without one they fail, and say so. */
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { type Browser, chromium } from 'playwright-core';

const browserNames = ['chromium', 'chromium-browser', 'google-chrome'];

export function launchBrowser(): Promise<Browser> {
  // A browser of root has no sandbox.
  const args = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
  return chromium.launch({ executablePath: browserPath(), args });
}

function browserPath(): string {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const paths = browserNames.flatMap((name) => folders.map((folder) => join(folder, name)));
  const found = paths.find((path) => existsSync(path));
  if (!found) throw new Error(`this test needs a browser: ${browserNames.join(', ')} (apt-get install chromium)`);
  return found;
}
