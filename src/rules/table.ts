/**
 * The table of rules that answer calls of devices. The primary reads the file once (file.ts) and sends its content to
 * the workers, which compile it here.
 */
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { compileTemplate, type Template } from './template.ts';

export interface RuleText {
  method: string | null;
  answer: string;
  setShared: string | null;
}

export interface Rule {
  /** Null matches a call without a method. */
  matches(method: string | null): boolean;
  answer: Template;
  setShared: Template | undefined;
}

/** Throws an Error that names the fault of the rule. */
export function compileRule({ method, answer, setShared }: RuleText): Rule {
  const set = setShared === null ? undefined : templateOf('setShared', setShared);
  if (set && !/^\s*\{/.test(set.texts[0]!)) throw new Error('setShared must be a JSON object');
  return { matches: matcher(method), answer: templateOf('answer', answer), setShared: set };
}

function templateOf(name: string, text: string): Template {
  if (text.length > limits.ruleTextCharsMax) {
    throw new Error(`${name} is longer than ${limits.ruleTextCharsMax} characters`);
  }
  try {
    return compileTemplate(text);
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
