/** Imports devices from a CSV file, as the pages of ThingsBoard do (docs/rest.md#devices). */

import { type CsvRow, csvRows } from '../admin/csv.ts';
import { type ImportDeps, type ImportRow, importDevices } from '../admin/import.ts';
import { requireTenant, tenantAdmins } from '../auth/roles.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { nextTurn } from '../base/loop-turns.ts';
import * as Type from '../base/schema.ts';
import {
  certificateCredentials,
  mqttBasicCredentials,
  type NewCredentials,
  tokenCredentials,
} from '../device/model/credentials.ts';
import { flag, optional, readLongStrings, text } from '../rest/body.ts';
import { json, type Route, route } from '../rest/route.ts';
import { closed } from '../rest/shapes.ts';
import { keyFault } from '../telemetry/keys.ts';
import { castString, Kind, type TypedValue } from '../value/typed.ts';

const keyed = ['SHARED_ATTRIBUTE', 'SERVER_ATTRIBUTE', 'TIMESERIES'] as const;
const columnTypes = [
  ...['NAME', 'TYPE', 'LABEL', 'DESCRIPTION', 'IS_GATEWAY'],
  ...['ACCESS_TOKEN', 'X509', 'MQTT_CLIENT_ID', 'MQTT_USER_NAME', 'MQTT_PASSWORD'],
  ...keyed,
];

const importBody = Type.Object({
  file: Type.String({ description: 'The text of the file' }),
  mapping: Type.Object({
    columns: Type.Array(Type.Object({ type: Type.Enum(columnTypes), key: text }), {
      maxItems: limits.importColumnsMax,
    }),
    delimiter: optional(Type.String({ minLength: 1, maxLength: 8 })),
    update: flag,
    header: flag,
  }),
});

const resultShape = closed(
  {
    created: Type.Integer(),
    updated: Type.Integer(),
    errors: Type.Integer(),
    errorsList: Type.Array(Type.String({ description: 'Line of the file, and what is wrong with it' })),
  },
  'BulkImportResult',
);

type Mapping = Type.Static<typeof importBody>['mapping'];

export function bulkImportRoutes(deps: ImportDeps): Route[] {
  return [
    route({
      method: 'POST',
      pattern: '/api/device/bulk_import',
      summary: 'Create devices, or change those of the same name, out of a CSV file',
      description: `At most ${limits.importRowsMax} rows. A row that cannot be taken is listed with its line; the others are taken all the same.`,
      roles: tenantAdmins,
      ownBody: { shape: importBody, jsonOnly: true },
      bodyBytesMax: limits.importBodyBytesMax,
      answer: resultShape,
      async handle({ principal, request }) {
        const { file, mapping } = await readLongStrings(request, importBody);
        if (!mapping.columns.some(({ type }) => type === 'NAME'))
          throw badRequest('import_name', 'No column has the type NAME.');
        for (const { type, key } of mapping.columns) {
          const fault = isKeyed(type) ? keyFault(key ?? '') : undefined;
          if (fault) throw fault;
        }
        const hasHeader = mapping.header ?? false;
        const rowsMax = limits.importRowsMax + Number(hasHeader);
        const columns = columnsOf(mapping);
        let isHeader = hasHeader;
        const errors: { line: number; message: string }[] = [];
        const rows: { line: number; row: ImportRow }[] = [];
        for (const line of csvRows(file, mapping.delimiter || ',', rowsMax)) {
          if (!line) {
            await nextTurn();
            continue;
          }
          if (isHeader) {
            isHeader = false;
            continue;
          }
          try {
            rows.push({ line: line.line, row: rowOf(line, columns) });
          } catch (error) {
            if (!(error instanceof Fault)) throw error;
            errors.push({ line: line.line, message: error.message });
          }
        }
        const caller = requireTenant(principal);
        const outcomes = await importDevices(
          deps,
          caller,
          rows.map(({ row }) => row),
          mapping.update ?? false,
        );
        for (const [i, outcome] of outcomes.entries()) {
          if (outcome instanceof Fault) errors.push({ line: rows[i]!.line, message: outcome.message });
        }
        errors.sort((a, b) => a.line - b.line);
        return json({
          created: outcomes.filter((outcome) => outcome === 'created').length,
          updated: outcomes.filter((outcome) => outcome === 'updated').length,
          errors: errors.length,
          errorsList: errors.map(({ line, message }) => `Line ${line}: ${message}`),
        });
      },
    }),
  ];
}

function isKeyed(type: string): boolean {
  return (keyed as readonly string[]).includes(type);
}

/** The columns of each value of a row. */
interface Columns {
  /** Type of a column → index of its first column. */
  indexes: ReadonlyMap<string, number>;
  /** Columns of attributes and telemetry. */
  keyed: readonly { index: number; type: string; key: string }[];
}

function columnsOf({ columns }: Mapping): Columns {
  const indexes = new Map<string, number>();
  for (const [index, { type }] of columns.entries()) if (!indexes.has(type)) indexes.set(type, index);
  const keyed = columns.flatMap(({ type, key }, index) => (isKeyed(type) ? [{ index, type, key: key ?? '' }] : []));
  return { indexes, keyed };
}

function rowOf({ cells }: CsvRow, { indexes, keyed }: Columns): ImportRow {
  /** Returns undefined for an empty cell, which leaves the value as it is. */
  const cell = (type: string): string | undefined => {
    const index = indexes.get(type);
    const given = index === undefined ? '' : (cells[index] ?? '').trim();
    return given === '' ? undefined : given;
  };
  const name = cell('NAME');
  if (name === undefined) throw badRequest('device_name', 'Device name should be specified!');
  const gateway = cell('IS_GATEWAY');
  const isGateway = gateway === undefined ? undefined : Type.booleanOf(gateway);
  if (gateway !== undefined && isGateway === undefined) {
    throw badRequest('import_gateway', `IS_GATEWAY must be true or false, not '${gateway.slice(0, 40)}'.`);
  }
  const values = keyed.flatMap(({ index, type, key }) => {
    const given = (cells[index] ?? '').trim();
    return given === '' ? [] : [{ type, key, value: typedCell(given) }];
  });
  return {
    name,
    type: cell('TYPE'),
    label: cell('LABEL'),
    description: cell('DESCRIPTION'),
    isGateway,
    credentials: credentialsOf(cell),
    attributes: values
      .filter(({ type }) => type !== 'TIMESERIES')
      .map(({ type, ...rest }) => ({ scope: type === 'SHARED_ATTRIBUTE' ? 'SHARED_SCOPE' : 'SERVER_SCOPE', ...rest })),
    series: values.filter(({ type }) => type === 'TIMESERIES').map(({ key, value }) => ({ key, value })),
  };
}

function credentialsOf(cell: (type: string) => string | undefined): NewCredentials | undefined {
  const [clientId, userName, password] = [cell('MQTT_CLIENT_ID'), cell('MQTT_USER_NAME'), cell('MQTT_PASSWORD')];
  const certificate = cell('X509');
  const token = cell('ACCESS_TOKEN');
  if (clientId !== undefined || userName !== undefined || password !== undefined) {
    return mqttBasicCredentials({ clientId: clientId ?? null, userName: userName ?? null, password: password ?? null });
  }
  if (certificate !== undefined) return certificateCredentials(certificate);
  return token === undefined ? undefined : tokenCredentials(token);
}

/** Returns the typed value of a cell: a boolean or a number when the cell is one, else a string. */
function typedCell(cell: string): TypedValue {
  const lower = cell.toLowerCase();
  if (lower === 'true' || lower === 'false') {
    return { kind: Kind.boolean, num: 0, int: lower === 'true' ? '1' : '0', text: '' };
  }
  return castString(cell) ?? { kind: Kind.string, num: 0, int: '0', text: cell };
}
