/**
 * The command line of the benchmarks. Flags go with `--target`; without it a flag is another spelling of a setting of
 * the scenario: `--seconds 5` and `--duration 5s` are `http.seconds=5`.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { isMap, isScalar, parseDocument } from 'yaml';
import { root } from '../test/harness/engine.ts';
import { groupOf, otherGroups, UsageError } from './settings.ts';
import { type FlagValues, secondsOf, type TargetFlag, targetFlags, targetKinds } from './target/order.ts';

export interface CommandLine {
  /** The name of the scenario; '' = none. */
  name: string;
  overrides: string[];
  /** Empty without `--target`, but for the sign-in of `--peer`. */
  flags: FlagValues;
  /** A platform that `peers` measures, too, as in `thingsboard=http://host:8080`; '' = none. */
  peer: string;
  against: string;
  isHelp: boolean;
}

/** Flags of a target that `--peer` takes, too. */
const peerFlags = ['user', 'password', 'api-key', 'ca', 'insecure'];

/** Settings that flags with other names mean, the first that a scenario has. */
const meanings: Record<string, string[]> = {
  duration: ['seconds'],
  warmup: ['warmupSeconds'],
  connections: ['connections', 'sockets'],
};

export function parseCommandLine(args: string[]): CommandLine {
  const { values, positionals } = parsed(args);
  const { against = '', peer = '', help = false, ...flags } = values;
  // `help http` is `http --help`.
  const isHelp = help === true || positionals[0] === 'help';
  const [name = '', ...overrides] = positionals[0] === 'help' ? positionals.slice(1) : positionals;
  const line = { name, overrides, against: String(against), peer: String(peer), isHelp };
  for (const [flag, value, owner] of [
    ['against', against, 'versions'],
    ['peer', peer, 'peers'],
  ] as const)
    if (value !== '' && name !== owner)
      throw new UsageError(`--${flag} is a flag of ${owner}, not of ${name || 'bench'}.`);
  if (flags['target'] !== undefined) return { ...line, flags };
  const isOfPeer = (flag: string) => peer !== '' && peerFlags.includes(flag);
  const signIn = Object.fromEntries(Object.entries(flags).filter(([flag]) => isOfPeer(flag)));
  const others = Object.entries(flags).filter(([flag]) => !isOfPeer(flag));
  const spelled = others.map(([flag, value]) => {
    return settingOf(name, flag, String(value));
  });
  return { ...line, overrides: [...overrides, ...spelled], flags: signIn };
}

/** The flags of a target, and any other `--name value`, which must be a setting of the scenario. */
function parsed(args: string[]) {
  const known = Object.entries(targetFlags).map(([flag, { value }]) => {
    return [flag, { type: value === '' ? 'boolean' : 'string' }] as const;
  });
  const others = args.flatMap((arg) => /^--([a-zA-Z0-9-]+)/.exec(arg)?.[1] ?? []);
  const spelled = others.filter((flag) => !(flag in targetFlags)).map((flag) => [flag, { type: 'string' }] as const);
  const options = { ...Object.fromEntries([...known, ...spelled]), help: { type: 'boolean', short: 'h' } } as const;
  try {
    return parseArgs({ args, options, allowPositionals: true }) as {
      values: Record<string, string | boolean>;
      positionals: string[];
    };
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

/** Returns the setting that a flag means, as in `http.seconds=5`. */
function settingOf(scenario: string, flag: string, value: string): string {
  const group = groupOf(scenario);
  const camel = flag.replaceAll(/-([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const names = [...(meanings[flag] ?? []), camel];
  const setting = names.find((name) => group.settings[name] !== undefined);
  const isTarget = flag in targetFlags && targetKinds.some((kind) => kind === scenario);
  if (setting === undefined && scenario === 'peers' && peerFlags.includes(flag))
    throw new UsageError(`--${flag} goes with --peer.`);
  if (setting === undefined && isTarget) throw new UsageError(`--${flag} goes with --target.`);
  if (setting === undefined)
    throw new UsageError(
      `${scenario || 'bench'} has no --${flag}. \`npm run bench -- ${scenario} --help\` names its settings.`,
    );
  const text = /Seconds$|^seconds$/.test(setting) ? String(secondsOf(flag, value)) : value;
  return `${group.name}.${setting}=${text}`;
}

/** Flags of single scenarios that are no settings. */
const flagsOf: Record<string, [flag: string, about: string][]> = {
  peers: [
    ['--peer NAME=URL', "a platform with ThingsBoard's device protocol and REST interface, for instance thingsboard"],
    ['--user EMAIL', 'an administrator of a tenant of that platform'],
    ['--password TEXT', 'of --user; without it, the variable BENCH_PASSWORD'],
    ['--api-key KEY', 'in place of --user and --password; without any of them, the variable BENCH_API_KEY'],
    ['--ca FILE, --insecure', 'of a platform at https://: whose certificate is trusted'],
  ],
  versions: [['--against DIR', 'the other checkout, built']],
};

/** The settings of a scenario with what config/bench.yaml says of each, and its flags. */
export function helpOf(scenario: string, about: string): string[] {
  const group = groupOf(scenario);
  const document = parseDocument(readFileSync(join(root, 'config', 'bench.yaml'), 'utf8'));
  const map = document.get(group.name);
  const lines = [`\n${scenario}: ${about}`];
  if (!isMap(map)) lines.push('\nIt has no settings.');
  else {
    lines.push(`\nSettings, changed as ${group.name}.NAME=NUMBER or --NAME NUMBER:\n`);
    for (const [n, { key, value }] of map.items.entries()) {
      // The parser takes the comment of the first setting for one of the whole map.
      const before = (isScalar(key) ? key.commentBefore : undefined) ?? (n === 0 ? map.commentBefore : undefined);
      const comment = (before ?? '').replaceAll(/\s*\n\s*/g, ' ').trim();
      lines.push(`  ${`${key}=${value}`.padEnd(28)}${comment}`.trimEnd());
    }
  }
  const others = otherGroups[scenario] ?? [];
  if (others.length > 0)
    lines.push(`\nIt also reads settings of ${others.join(', ')}, changed as GROUP.NAME=NUMBER:\n`);
  for (const name of others) {
    const values = Object.entries(groupOf(name.toLowerCase()).settings).map(([key, value]) => `${key}=${value}`);
    lines.push(`  ${name}: ${values.join(', ')}`);
  }
  const flags = flagsOf[scenario] ?? [];
  if (flags.length > 0) lines.push('\nFlags:\n', ...flags.map(([flag, text]) => `  ${flag.padEnd(28)}${text}`));
  const kind = targetKinds.find((each) => each === scenario);
  if (kind === undefined) return lines;
  lines.push('\nFlags for a server that runs already:\n');
  for (const [flag, { value, about: text, ...rest }] of Object.entries(targetFlags)) {
    const kinds: readonly string[] = 'kinds' in rest ? rest.kinds : targetKinds;
    if (kinds.includes(kind)) lines.push(`  ${`--${flag as TargetFlag} ${value}`.padEnd(28)}${text}`);
  }
  return lines;
}
