/** Codes of errors of ClickHouse on which Millrace decides something of its own, by the names that ClickHouse has. */
export const serverCodes = {
  unknownTable: 60,
  argumentOutOfBound: 69,
  cannotReadFromFileDescriptor: 74,
  cannotWriteToFileDescriptor: 75,
  cannotOpenFile: 76,
  unknownDatabase: 81,
  tooManyRows: 158,
  timeoutExceeded: 159,
  tooSlow: 160,
  cannotAllocateMemory: 173,
  tooManySimultaneousQueries: 202,
  socketTimeout: 209,
  queryIsTooLarge: 229,
  /** The code of a merge that was stopped, or whose partition was dropped. */
  aborted: 236,
  memoryLimitExceeded: 241,
  notEnoughSpace: 243,
  tooManyParts: 252,
  tooManyBytes: 307,
  /** The code of a result beyond `max_result_rows` or `max_result_bytes`. */
  tooManyRowsOrBytes: 396,
  cannotScheduleTask: 439,
} as const;
