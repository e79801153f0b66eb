/** Statements of the copy of device data that reports read. */

export const anyDevice = 'SELECT 1 AS one FROM device_metadata LIMIT 1';

export const tenantsOfDevices =
  'SELECT DISTINCT device, tenant FROM device_metadata WHERE device IN {devices:Array(UInt64)}';

/** Inserts a row that marks each copied row of the attributes as deleted. */
export const markAttributesDeleted = `INSERT INTO device_attribute (scope, key, device, kind, text, deleted, version)
       SELECT DISTINCT scope, key, device, 0, '', 1, {version:UInt64} FROM device_attribute
        WHERE has(arrayZip({scopes:Array(UInt8)}, {keys:Array(String)}), (scope, toString(key)))`;

export function insertRows(table: 'device_metadata' | 'device_attribute', columns: string): string {
  return `INSERT INTO ${table} (${columns}) FORMAT JSONEachRow`;
}
