/**
 * Reads the file of rules at the start and checks it as a whole. A fault is one line that names the file and the rule.
 */
import { fileURLToPath } from 'node:url';
import { messageOf, StartError } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { isObject } from '../base/schema.ts';
import { readYaml } from '../base/settings/settings.ts';
import { compileRule, type RuleText } from './table.ts';

const ownFile = fileURLToPath(new URL('../../config/rules.yaml', import.meta.url));
const members = ['method', 'answer', 'setShared'];

/** `file` '' = config/rules.yaml of this installation. */
export function readRules(file: string): RuleText[] {
  const path = file || ownFile;
  const tree: unknown = readYaml(path, 'rules file');
  const refuse = (what: string): never => {
    throw new StartError(`The rules file ${path}: ${what}.`);
  };
  if (!isObject(tree)) return refuse('it must hold the list rules');
  const unknown = Object.keys(tree).find((key) => key !== 'rules');
  if (unknown !== undefined) refuse(`unknown key ${unknown}; it must hold the list rules`);
  const list = tree['rules'] ?? [];
  if (!Array.isArray(list)) return refuse('rules must be a list');
  if (list.length > limits.rulesMax) refuse(`it has more than ${limits.rulesMax} rules`);
  return list.map((rule: unknown, n) => {
    try {
      const text = textOf(rule);
      compileRule(text);
      return text;
    } catch (error) {
      return refuse(`rule ${n + 1}: ${messageOf(error)}`);
    }
  });
}

function textOf(rule: unknown): RuleText {
  if (!isObject(rule)) throw new Error(`it must have ${members.join(', ')}`);
  const unknown = Object.keys(rule).find((key) => !members.includes(key));
  if (unknown !== undefined) throw new Error(`unknown key ${unknown}; known are ${members.join(', ')}`);
  const { method, answer, setShared = null } = rule;
  if (method !== null && typeof method !== 'string') throw new Error('method must be a string, or null');
  if (typeof answer !== 'string') throw new Error('answer must be JSON text in quotes');
  if (setShared !== null && typeof setShared !== 'string') throw new Error('setShared must be JSON text in quotes');
  return { method, answer, setShared };
}
