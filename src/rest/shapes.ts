/**
 * Shapes of answers that doors of the REST API share: errors, pages, tokens. An answer has exactly the members of its
 * shape, in this order, with null for absent values. A shape with a title has a name in the API document.
 */
import * as Type from '../base/schema.ts';
import type { Page } from '../postgres/page.ts';

export const nullable = <T extends Type.Schema>(schema: T) => Type.Union([schema, Type.Null()]);

/** An object with these members and no others. */
export function closed<T extends Type.Properties>(properties: T, title?: string) {
  return Type.Object(properties, { additionalProperties: false, ...(title && { title }) });
}

export const anyJson = Type.Unknown({ description: 'Any JSON, as it was saved' });
export const milliseconds = Type.Integer({ description: 'Epoch milliseconds' });

export const textAnswer = (contentType: string) => ({ contentType, schema: Type.String() });

/** The body of every error (docs/rest.md#errors). */
export const errorShape = closed(
  { status: Type.Integer(), message: Type.String(), errorCode: Type.Integer(), timestamp: milliseconds },
  'Error',
);

export const tokenPairShape = closed({ token: Type.String(), refreshToken: Type.String() }, 'TokenPair');

export function pageShape(item: Type.Schema) {
  const members = {
    data: Type.Array(item),
    totalPages: Type.Integer(),
    totalElements: Type.Integer(),
    hasNext: Type.Boolean(),
  };
  return closed(members, `PageOf${item.title}`);
}

export function pageJson<T>(page: Page<T>, item: (entity: T) => unknown): object {
  const { data, totalPages, totalElements, hasNext } = page;
  return { data: data.map(item), totalPages, totalElements, hasNext };
}
