/**
 * A server to compare with: uWebSockets.js alone, one process, which takes the same requests, parses their JSON and
 * answers 200. It checks no token and stores nothing. Prints its port on stdout.
 */
import uWS from 'uWebSockets.js';

const app = uWS.App();

app.post('/api/v1/:token/telemetry', (response) => {
  let gathered: Buffer | undefined;
  response.onAborted(() => {});
  response.onData((chunk, isLast) => {
    const piece = Buffer.from(chunk);
    if (!isLast) {
      // The chunk belongs to the library and is gone after this call.
      gathered = gathered ? Buffer.concat([gathered, piece]) : Buffer.from(piece);
      return;
    }
    JSON.parse((gathered ? Buffer.concat([gathered, piece]) : piece).toString());
    response.end();
  });
});

app.listen('127.0.0.1', 0, (socket) => {
  if (!socket) throw new Error('no port');
  process.stdout.write(`${uWS.us_socket_local_port(socket)}\n`);
});
