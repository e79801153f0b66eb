/** The page of a view link in a browser: it signs in, runs the view, shows the table as text, offers the CSV. */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { launchBrowser } from '../../harness/browser.ts';
import { analyticsUrl, saveView } from '../../harness/reports.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

test('a view link asks for a sign-in and shows the table', async () => {
  const name = `shown & ${randomUUID()}`;
  const { id } = await sharedEngine().createDevice(name);
  const view = await saveView({
    name: 'One <i>device</i>',
    scope: { deviceIds: [id] },
    fields: [
      { label: 'Name', source: 'ENTITY_FIELD', key: 'name', role: 'ROW' },
      { label: 'n', source: 'ENTITY_FIELD', key: 'name', role: 'VALUE', aggregation: 'COUNT' },
    ],
  });
  const browser = await launchBrowser();
  try {
    const page = await browser.newPage();
    const refusals: string[] = [];
    page.on('console', (message) => refusals.push(message.text()));
    await page.goto(`${analyticsUrl()}/trendz/view/${view}`);
    await page.waitForSelector('#sign-in', { state: 'visible' });
    const { adminEmail, adminPassword } = sharedEngine().address;
    await page.fill('#username', adminEmail);
    await page.fill('#password', adminPassword);
    await page.click('form button');
    // A new device appears in the copy of device data a moment later. Until then the report has no row and no table.
    await page.waitForSelector('#run', { state: 'visible' });
    expect(await page.isVisible('#sign-in')).toBe(false);
    expect(await page.textContent('#name')).toBe('One <i>device</i>');
    const runAgain = async () => {
      await page.click('#run');
      // "Running …" until the answer: too many reports at once are refused.
      await page.waitForSelector('#notice:has-text("row")');
      return await page.textContent('tbody');
    };
    await expect.poll(runAgain).toBe(`${name}1`);
    expect(await page.isVisible('#table')).toBe(true);
    const [download] = await Promise.all([page.waitForEvent('download'), page.click('#csv')]);
    expect(download.suggestedFilename()).toMatch(/\.csv$/);
    await page.reload();
    await page.waitForSelector('#table:not([hidden])');
    await page.click('#sign-out');
    await page.waitForSelector('#sign-in', { state: 'visible' });
    expect(await page.isVisible('#table')).toBe(false);

    // Returns a link with a token: of a view, or of the list of views.
    const token = await sharedEngine().adminToken();
    await page.goto(`${analyticsUrl()}/trendz/view/${view}?jwt=${token}`);
    await page.waitForSelector('#table', { state: 'visible' });
    expect(page.url()).toBe(`${analyticsUrl()}/trendz/view/${view}`);
    await page.click('.brand');
    await page.click(`a[href="/trendz/view/${view}"]`);
    await page.waitForSelector('#csv', { state: 'visible' });
    expect(await page.isVisible('#sign-in')).toBe(false);
    const background = 'getComputedStyle(document.body).backgroundColor';
    const ground = await page.evaluate(background);
    await page.goto(sharedEngine().http);
    expect(await page.evaluate(background)).toBe(ground);
    expect(refusals).toEqual([]);
  } finally {
    await browser.close();
  }
});
