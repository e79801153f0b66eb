import { expect, test } from 'vitest';
import { readStatement } from './statement.ts';

const file = (sql: string) => readStatement(sql).rows?.fromFile('/f').replace(/\s+/g, ' ').trim();
const rest = (sql: string) => sql.slice(readStatement(sql).rows!.offset);

test('an INSERT reads its rows from a file', () => {
  expect(file('INSERT INTO t FORMAT Native')).toBe("INSERT INTO t FROM INFILE '/f' FORMAT Native");
  expect(file('insert into t (a, `FORMAT x`) format CSV 1,2')).toBe(
    "insert into t (a, `FORMAT x`) FROM INFILE '/f' FORMAT CSV",
  );
  expect(file('INSERT INTO t SETTINGS a = 1 FORMAT TSV')).toBe(
    "INSERT INTO t FROM INFILE '/f' SETTINGS a = 1 FORMAT TSV",
  );
  expect(file('/* FORMAT */ INSERT INTO t -- FORMAT no\n VALUES (1)')).toBe(
    "/* FORMAT */ INSERT INTO t -- FORMAT no FROM INFILE '/f' FORMAT Values",
  );
});

test('an INSERT with input reads the file in its place', () => {
  const sql =
    "INSERT INTO t SELECT a, sum(b) FROM (SELECT * FROM input('a Int8, b Enum8(\\'x)\\' = 1)')) GROUP BY a FORMAT Native";
  expect(file(sql)).toBe(
    "INSERT INTO t SELECT a, sum(b) FROM (SELECT * FROM file('/f', 'Native', 'a Int8, b Enum8(\\'x)\\' = 1)')) GROUP BY a",
  );
});

test('rows begin after the line break or the spaces', () => {
  expect(rest('INSERT INTO t FORMAT CSV\n 1')).toBe(' 1');
  expect(rest('INSERT INTO t FORMAT CSV   1\n2')).toBe('1\n2');
  expect(rest('INSERT INTO t FORMAT CSV\r\n\n1')).toBe('\n1');
  expect(rest('INSERT INTO t FORMAT CSV')).toBe('');
});

test('other statements have no rows, and give the format of their result', () => {
  expect(readStatement("SELECT 'FORMAT CSV' FORMAT JSON;")).toEqual({
    verb: 'SELECT',
    resultFormat: 'JSON',
    rows: undefined,
  });
  expect(readStatement('INSERT INTO t SELECT format, 1 FROM x').rows).toBeUndefined();
  expect(readStatement('INSERT INTO t SELECT format FROM x').rows).toBeUndefined();
  expect(readStatement('(SELECT 1)').verb).toBe('SELECT');
});

test('one statement only', () => {
  for (const sql of ['SELECT 1; SELECT 2', "SELECT ';' ;x", 'SELECT 1;\n-- a\n(SELECT 2)', "SELECT 1; 'x'"]) {
    expect(() => readStatement(sql), sql).toThrow(/Multi-statements/);
  }
  for (const sql of [
    'SELECT 1;',
    'SELECT \';x\', `;`, ";" ; -- done',
    'SELECT 1 /* ; */ -- ; x\n;;',
    'SELECT $a$;$a$',
  ]) {
    expect(() => readStatement(sql), sql).not.toThrow();
  }
});
