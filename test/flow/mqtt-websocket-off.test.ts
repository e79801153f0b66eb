/** MQTT_WS_ENABLED=false: the HTTP port speaks no MQTT; the MQTT port does as ever. */
import { expect, test } from 'vitest';
import { startEngine } from '../engine.ts';
import { codeOf, MqttClient } from '../wire/mqtt-client.ts';
import { RawWebSocket } from '../wire/web-socket.ts';

test('without the setting /mqtt is an unknown path, and MQTT over TCP goes on', async () => {
  const engine = await startEngine({ workers: 1, env: { MQTT_WS_ENABLED: 'false' } });
  try {
    const { token } = await engine.api.createDevice('plain');
    const socket = await RawWebSocket.open(engine.port);
    expect(socket.upgrade.status).toBe(404);
    socket.close();
    const client = await MqttClient.open({ port: engine.mqttPort });
    expect(codeOf(await client.connect({ token }))).toBe(0);
    client.cut();
  } finally {
    await engine.destroy();
  }
});
