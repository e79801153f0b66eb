/**
 * A server to compare with: Aedes, the MQTT broker written for Node, one process with its own storage in memory. There
 * is no subscriber, so a message is acknowledged and stored nowhere. Prints its port on stdout.
 */
import { type AddressInfo, createServer } from 'node:net';
import { Aedes } from 'aedes';

const broker = await Aedes.createBroker();
const server = createServer({ noDelay: true }, broker.handle);
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`));
