/**
 * `npm run config`: prints each setting in force, its value and unit, and where the value comes from. Secrets are
 * masked. `npm run config -- changed` leaves out defaults. Names faults and misspelt names; the exit code is 1 when a
 * start would refuse these settings.
 */
import { columns } from './base/columns.ts';
import { printLine, runCommand } from './base/command.ts';
import { messageOf, StartError } from './base/errors.ts';
import { type Config, readConfig } from './base/settings/config.ts';
import { describeUnknown } from './base/settings/setting-names.ts';
import { type Setting, shownValue } from './base/settings/settings.ts';
import { checkConfig } from './instance/host/config-check.ts';

const usage = 'usage: npm run config -- [all | changed]';

function run([verb = 'all', ...more]: string[]): void {
  if (!['all', 'changed'].includes(verb) || more.length > 0) throw new StartError(usage);
  const { values, settings, faults, unknown } = readConfig();
  const shown = settings.filter(({ from }) => verb === 'all' || from !== 'default');
  const table = [['setting', 'environment name', 'value', 'unit', 'from'], ...shown.map(row)];
  for (const line of columns(table)) printLine(line);
  printLine('');
  for (const name of unknown) printLine(`warning: ${describeUnknown(name)}`);
  const further = faults.length === 0 ? faultsOfWhole(values as Config) : [];
  for (const fault of [...faults, ...further]) printLine(`fault: ${fault}`);
  const changed = settings.filter(({ from }) => from !== 'default').length;
  printLine(`${settings.length} settings, ${changed} of them not from the defaults`);
  const refusesNames = unknown.length > 0 && values['strict'] === true;
  if (faults.length + further.length > 0 || refusesNames) process.exitCode = 1;
}

function row(setting: Setting): string[] {
  const { path, name, value, unit, from } = setting;
  const shown = value === undefined ? '(faulty)' : shownValue(setting);
  return [path, name, shown === '' ? '-' : shown, unit ?? '-', from];
}

/** Returns the first fault that no single value shows: two settings, a rate limit, a certificate, the rules. */
function faultsOfWhole(config: Config): string[] {
  try {
    checkConfig(config);
    return [];
  } catch (error) {
    return [messageOf(error)];
  }
}

runCommand(run);
