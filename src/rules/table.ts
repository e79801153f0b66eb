/**
 * The table of answers to calls of devices: read from a file at start, checked whole, never changed. What is wrong with
 * it is one line that names the file and the rule.
 */
import { fileURLToPath } from 'node:url';
import { readYaml } from '../base/config.ts';
import { messageOf, StartError } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { compileTemplate, type Template } from './template.ts';

export interface Rule {
  /** Null fits what has no method. */
  matches(method: string | null): boolean;
  answer: Template;
  setShared: Template | undefined;
}

const ownFile = fileURLToPath(new URL('../../config/rules.yaml', import.meta.url));
const members = ['method', 'answer', 'setShared'];

/** `file` '' = config/rules.yaml of this installation. */
export function loadRules(file: string): Rule[] {
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
      return ruleOf(rule);
    } catch (error) {
      return refuse(`rule ${n + 1}: ${messageOf(error)}`);
    }
  });
}

function ruleOf(rule: unknown): Rule {
  if (!isObject(rule)) throw new Error(`it must have ${members.join(', ')}`);
  const unknown = Object.keys(rule).find((key) => !members.includes(key));
  if (unknown !== undefined) throw new Error(`unknown key ${unknown}; known are ${members.join(', ')}`);
  const { method, answer, setShared } = rule;
  if (method !== null && typeof method !== 'string') throw new Error('method must be a text, or null');
  const set = setShared === undefined || setShared === null ? undefined : templateOf('setShared', setShared);
  if (set && !/^\s*\{/.test(set.texts[0]!)) throw new Error('setShared must be a JSON object');
  return { matches: matcher(method), answer: templateOf('answer', answer), setShared: set };
}

function templateOf(name: string, value: unknown): Template {
  if (typeof value !== 'string') throw new Error(`${name} must be JSON text in quotes`);
  if (value.length > limits.ruleTextCharsMax) {
    throw new Error(`${name} is longer than ${limits.ruleTextCharsMax} characters`);
  }
  try {
    return compileTemplate(value);
  } catch (error) {
    throw new Error(`${name}: ${messageOf(error)}`);
  }
}

function matcher(method: string | null): Rule['matches'] {
  if (method === null || !method.includes('*')) return (called) => called === method;
  const parts = method.split('*').map((part) => part.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'));
  const pattern = new RegExp(`^${parts.join('[^]*')}$`);
  return (called) => called !== null && pattern.test(called);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
