/** Writes exceptions as ClickHouse does: `Code: N. DB::Exception: text. (NAME)`, and the HTTP status of the code. */
import { messageOf } from '../../base/errors.ts';

export class Exception extends Error {
  readonly code: number;

  constructor(code: number, name: string, text: string) {
    super(`Code: ${code}. DB::Exception: ${text} (${name})`);
    this.name = 'Exception';
    this.code = code;
  }
}

class EngineException extends Exception {
  constructor(code: number, message: string) {
    super(code, '', '');
    this.message = message;
  }
}

/** Converts an error of the engine, with its message and code. */
export function exceptionFrom(error: unknown): Exception {
  if (error instanceof Exception) return error;
  const message = messageOf(error);
  const match = /Code: (\d+)\. DB::\w*Exception: /.exec(message);
  if (!match) return new Exception(1001, 'STD_EXCEPTION', message);
  return new EngineException(Number(match[1]), message.slice(match.index).trimEnd());
}

/** The statuses of ClickHouse's own exceptionCodeToHTTPStatus; every other code is 500. */
const codesByStatus: Record<number, number[]> = {
  400: [6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117, 123, 167, 168, 223, 321, 376, 427, 441, 675, 676],
  401: [194],
  403: [192, 193, 497, 512, 516],
  404: [46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511],
  408: [159],
  411: [381],
  413: [229],
  415: [779],
  501: [48],
  503: [76, 209, 439],
};

const statusByCode = new Map(
  Object.entries(codesByStatus).flatMap(([status, codes]) => codes.map((code) => [code, Number(status)] as const)),
);

export function httpStatusOf(code: number): number {
  return statusByCode.get(code) ?? 500;
}
