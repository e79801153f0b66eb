/**
 * The device API over HTTP (docs/http.md), described for the API document only: another door, unknown here, serves
 * these paths. The test that calls every operation of the document compares the two.
 */
import * as Type from '../base/schema.ts';
import { provisionTypes } from '../device/model/device.ts';
import type { AnswerShape, RouteDescription } from '../rest/route.ts';
import { anyJson, closed, errorShape } from '../rest/shapes.ts';

const values = Type.Record(Type.Unknown());
const stamped = Type.Object({ ts: Type.Integer(), values });
const telemetry = Type.Union([values, stamped, Type.Array(Type.Union([values, stamped]))]);
const attributes = closed({
  client: Type.Optional(values),
  shared: Type.Optional(values),
});
const attributesQuery = Type.Object({
  clientKeys: Type.Optional(Type.String({ description: 'With commas between them' })),
  sharedKeys: Type.Optional(Type.String({ description: 'With commas between them' })),
});
const timeoutQuery = Type.Object({
  timeout: Type.Optional(Type.Integer({ minimum: 0, description: 'Milliseconds; absent or 0 = the default' })),
});
const fileQuery = Type.Object({
  title: Type.String({ minLength: 1 }),
  version: Type.String({ minLength: 1 }),
  size: Type.Optional(Type.Integer({ minimum: 0, description: 'Bytes of a chunk; 0 = the whole file' })),
  chunk: Type.Optional(Type.Integer({ minimum: 0, description: 'Number of the chunk' })),
});
const file = { contentType: '*/*', schema: Type.String({ format: 'binary' }) };
const command = closed({ id: Type.Integer(), method: Type.String(), params: anyJson });
const provisionBody = Type.Object({
  deviceName: Type.Optional(Type.String()),
  provisionDeviceKey: Type.String(),
  provisionDeviceSecret: Type.String(),
  credentialsType: Type.Optional(Type.String()),
  token: Type.Optional(Type.String()),
  gateway: Type.Optional(Type.Boolean()),
});
const provisionAnswer = Type.Union([
  closed({ credentialsType: Type.String(), credentialsValue: anyJson, status: Type.Literal('SUCCESS') }),
  closed({ errorMsg: Type.String(), status: Type.Enum(['NOT_FOUND', 'FAILURE']) }),
]);

interface DeviceCall {
  method: 'GET' | 'POST';
  path: string;
  summary: string;
  query?: Type.ObjectSchema;
  body?: NonNullable<RouteDescription['ownBody']>;
  answer?: AnswerShape;
  otherAnswers?: Record<number, AnswerShape>;
}

const token = '/api/v1/:deviceToken';
const noAnswerInTime: AnswerShape = 'empty';

const calls: DeviceCall[] = [
  { method: 'POST', path: `${token}/telemetry`, summary: 'Send telemetry', body: { shape: telemetry } },
  { method: 'POST', path: `${token}/attributes`, summary: 'Send client attributes', body: { shape: values } },
  {
    method: 'GET',
    path: `${token}/attributes`,
    summary: 'Read client and shared attributes',
    query: attributesQuery,
    answer: attributes,
  },
  {
    method: 'GET',
    path: `${token}/attributes/updates`,
    summary: 'Wait for changes of shared attributes',
    query: timeoutQuery,
    answer: values,
    otherAnswers: { 403: errorShape, 408: noAnswerInTime },
  },
  {
    method: 'GET',
    path: `${token}/rpc`,
    summary: 'Wait for a command',
    query: timeoutQuery,
    answer: command,
    otherAnswers: { 403: errorShape, 408: errorShape },
  },
  {
    method: 'POST',
    path: `${token}/rpc/:requestId`,
    summary: 'Reply to a command',
    body: { shape: Type.Unknown({ description: 'The reply' }) },
    answer: closed({ result: Type.Literal('ok') }),
  },
  {
    method: 'POST',
    path: `${token}/rpc`,
    summary: 'Call the server, and wait for the answer',
    body: { shape: Type.Object({ method: Type.String(), params: Type.Unknown() }) },
    answer: anyJson,
    otherAnswers: { 408: noAnswerInTime },
  },
  {
    method: 'POST',
    path: `${token}/claim`,
    summary: 'Offer this device to be claimed',
    body: {
      shape: Type.Object({ secretKey: Type.Optional(Type.String()), durationMs: Type.Optional(Type.Integer()) }),
      optional: true,
    },
  },
  { method: 'GET', path: `${token}/firmware`, summary: 'The firmware of this device', query: fileQuery, answer: file },
  { method: 'GET', path: `${token}/software`, summary: 'The software of this device', query: fileQuery, answer: file },
  {
    method: 'POST',
    path: '/api/v1/provision',
    summary: `Make a device by the key of its profile (${provisionTypes.slice(1, 3).join(', ')})`,
    body: { shape: provisionBody },
    answer: provisionAnswer,
  },
];

export const deviceApi: RouteDescription[] = calls.map(({ path, body, otherAnswers, ...call }) => ({
  ...call,
  pattern: path,
  roles: 'public' as const,
  ...(body && { ownBody: body }),
  otherAnswers: { ...(path.startsWith(token) && { 401: errorShape }), ...otherAnswers },
}));
