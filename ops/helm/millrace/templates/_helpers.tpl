{{- define "millrace.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select the pods of the hosts; they never change. */}}
{{- define "millrace.selector" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: host
{{- end -}}

{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "millrace.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "millrace.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* "true" when both stores are external, else empty. */}}
{{- define "millrace.externalStores" -}}
{{- if and .Values.stores.clickhouse.url .Values.stores.postgresql.existingSecret -}}true{{- end -}}
{{- end -}}

{{/* "true" when the Job changes the schemas, else empty. */}}
{{- define "millrace.migrateJob" -}}
{{- if and .Values.migrate.enabled (include "millrace.externalStores" .) -}}true{{- end -}}
{{- end -}}

{{- define "millrace.image" -}}
{{- $tag := printf "%s%s" .Chart.AppVersion (ternary "-slim" "" (eq (include "millrace.externalStores" .) "true")) -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default $tag) -}}
{{- end -}}

{{/* Seconds from SIGTERM to SIGKILL. */}}
{{- define "millrace.graceSeconds" -}}
{{- $of := .Values.shutdown -}}
{{- $evictMs := ternary 0 (int $of.evictMsMax) (eq (int $of.evictPerSecond) 0) -}}
{{- add 15 (div (add (int $of.delayMs) $evictMs (int $of.drainMsMax) (int $of.storesMsMax) 999) 1000) -}}
{{- end -}}

{{/* Settings of the stores, as a map. */}}
{{- define "millrace.storeSettings" -}}
{{- with .Values.stores.clickhouse -}}
{{- if .url }}
CLICKHOUSE_URL: {{ .url | quote }}
CLICKHOUSE_USER: {{ .user | quote }}
{{- end }}
CLICKHOUSE_DATABASE: {{ .database | quote }}
{{- if .cluster }}
CLICKHOUSE_CLUSTER: {{ .cluster | quote }}
{{- end }}
{{- end }}
{{- with .Values.stores.authorities }}
{{- if or .existingSecret .existingConfigMap }}
NODE_EXTRA_CA_CERTS: /authorities/{{ .key }}
{{- end }}
{{- end }}
{{- end -}}

{{/* All settings of a host that are no secrets, as a map. */}}
{{- define "millrace.hostSettings" -}}
{{ include "millrace.storeSettings" . }}
DATA_DIR: /data/millrace
WORKERS: {{ .Values.workers | quote }}
MIGRATE: {{ ternary "false" "true" (eq (include "millrace.migrateJob" .) "true") | quote }}
ADMIN_EMAIL: {{ .Values.admin.email | quote }}
SYSTEM_ADMIN_EMAIL: {{ .Values.admin.systemEmail | quote }}
HTTP_BIND_PORT: {{ .Values.ports.http | quote }}
MQTT_BIND_PORT: {{ .Values.ports.mqtt | quote }}
ANALYTICS_ENABLED: {{ .Values.reports.enabled | quote }}
ANALYTICS_BIND_PORT: {{ .Values.ports.reports | quote }}
MONITOR_BIND_ADDRESS: {{ .Values.monitorAddress | quote }}
MONITOR_BIND_PORT: {{ .Values.ports.monitor | quote }}
SHUTDOWN_DELAY_MS: {{ int .Values.shutdown.delayMs | quote }}
SHUTDOWN_EVICT_PER_SECOND: {{ int .Values.shutdown.evictPerSecond | quote }}
SHUTDOWN_EVICT_MS_MAX: {{ int .Values.shutdown.evictMsMax | quote }}
SHUTDOWN_DRAIN_MS_MAX: {{ int .Values.shutdown.drainMsMax | quote }}
SHUTDOWN_STORES_MS_MAX: {{ int .Values.shutdown.storesMsMax | quote }}
{{- if .Values.trustedProxies }}
TRUSTED_PROXIES: {{ join "," .Values.trustedProxies | quote }}
{{- end }}
{{- if .Values.mqttProxyProtocol }}
MQTT_PROXY_PROTOCOL_ENABLED: "true"
{{- end }}
{{- if .Values.settingsFile }}
MILLRACE_CONFIG: /settings/millrace.yaml
{{- end }}
{{- if and .Values.tls.existingSecret .Values.tls.mqtt }}
MQTT_SSL_ENABLED: "true"
MQTT_SSL_BIND_PORT: {{ .Values.ports.mqtts | quote }}
MQTT_SSL_PEM_CERT: /tls/tls.crt
MQTT_SSL_PEM_KEY: /tls/tls.key
{{- end }}
{{- if and .Values.tls.existingSecret .Values.tls.https }}
SSL_ENABLED: "true"
HTTPS_BIND_PORT: {{ .Values.ports.https | quote }}
SSL_PEM_CERT: /tls/tls.crt
SSL_PEM_KEY: /tls/tls.key
{{- end }}
{{- end -}}

{{/* All settings as a map: what the operator names wins. Names whose values are in Secrets are left out. */}}
{{- define "millrace.settings" -}}
{{- $settings := include "millrace.hostSettings" . | fromYaml -}}
{{- /* `merge` would take false, 0 and "" of the operator for absent. */ -}}
{{- range $name, $value := .Values.settings -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- range .Values.secretSettings -}}
{{- $_ := unset $settings .name -}}
{{- end -}}
{{ toYaml $settings }}
{{- end -}}

{{/* "true" when the operator names this setting, so that the chart does not, else empty: a dict of `root` and `name`. */}}
{{- define "millrace.isGiven" -}}
{{- $name := .name -}}
{{- $given := hasKey .root.Values.settings $name -}}
{{- range .root.Values.secretSettings -}}
{{- if eq .name $name -}}{{- $given = true -}}{{- end -}}
{{- end -}}
{{- if $given -}}true{{- end -}}
{{- end -}}

{{/* A map of settings as a list of `env`. */}}
{{- define "millrace.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  {{- /* Helm reads every number as a float, which would be 1e+06 as text. */}}
  {{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
  value: {{ printf "%.0f" $value | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "millrace.secretEnv" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end -}}

{{/* A secret that the chart sets unless the operator names it: a dict of `root`, `name`, `secret` and `key`. */}}
{{- define "millrace.ownSecretEnv" -}}
{{- if and .secret (not (include "millrace.isGiven" .)) }}
{{ include "millrace.secretEnv" . }}
{{- end }}
{{- end -}}

{{/* The secrets of the stores and those of `secretSettings`, as a list of `env`; for hosts and for the Job. */}}
{{- define "millrace.secrets" -}}
{{- with .Values.stores.clickhouse }}
{{- if .url }}
{{- include "millrace.ownSecretEnv" (dict "root" $ "name" "CLICKHOUSE_PASSWORD" "secret" .existingSecret "key" .passwordKey) }}
{{- end }}
{{- end }}
{{- with .Values.stores.postgresql }}
{{- include "millrace.ownSecretEnv" (dict "root" $ "name" "DATABASE_URL" "secret" .existingSecret "key" .urlKey) }}
{{- end }}
{{- with .Values.stores.redis }}
{{- include "millrace.ownSecretEnv" (dict "root" $ "name" "REDIS_URL" "secret" .existingSecret "key" .urlKey) }}
{{- end }}
{{- range .Values.secretSettings }}
{{ include "millrace.secretEnv" (dict "name" .name "secret" .secretName "key" .key) }}
{{- end }}
{{- end -}}

{{- define "millrace.authoritiesVolume" -}}
{{- with .Values.stores.authorities }}
{{- if .existingSecret }}
- name: authorities
  secret:
    secretName: {{ .existingSecret }}
{{- else if .existingConfigMap }}
- name: authorities
  configMap:
    name: {{ .existingConfigMap }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "millrace.authoritiesMount" -}}
{{- with .Values.stores.authorities }}
{{- if or .existingSecret .existingConfigMap }}
- name: authorities
  mountPath: /authorities
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{/* Refuses values that cannot work, with what to change. */}}
{{- define "millrace.check" -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- if not (include "millrace.externalStores" .) -}}
{{- fail "replicaCount above 1 needs stores that the hosts share: set stores.clickhouse.url and stores.postgresql.existingSecret." -}}
{{- end -}}
{{- if not .Values.stores.redis.existingSecret -}}
{{- fail "replicaCount above 1 needs Redis between the hosts: set stores.redis.existingSecret." -}}
{{- end -}}
{{- end -}}
{{- range .Values.secretSettings -}}
{{- if hasKey $.Values.settings .name -}}
{{- fail (printf "%s is in settings and in secretSettings: name it in one of them." .name) -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "millrace.fullname" .)) -}}
{{- fail (printf "A service cannot be named %s, as the release is: set fullnameOverride to small letters, digits and hyphens." (include "millrace.fullname" .)) -}}
{{- end -}}
{{- /* Services, probes and the time for a stop contain these values. */ -}}
{{- $values := dict "HTTP_BIND_PORT" "ports.http" "HTTPS_BIND_PORT" "ports.https" "MQTT_BIND_PORT" "ports.mqtt" -}}
{{- $values = merge $values (dict "MQTT_SSL_BIND_PORT" "ports.mqtts" "ANALYTICS_BIND_PORT" "ports.reports") -}}
{{- $values = merge $values (dict "MONITOR_BIND_PORT" "ports.monitor" "MONITOR_BIND_ADDRESS" "monitorAddress") -}}
{{- $values = merge $values (dict "SHUTDOWN_DELAY_MS" "shutdown.delayMs" "SHUTDOWN_DRAIN_MS_MAX" "shutdown.drainMsMax") -}}
{{- $values = merge $values (dict "SHUTDOWN_EVICT_PER_SECOND" "shutdown.evictPerSecond") -}}
{{- $values = merge $values (dict "SHUTDOWN_EVICT_MS_MAX" "shutdown.evictMsMax" "SHUTDOWN_STORES_MS_MAX" "shutdown.storesMsMax") -}}
{{- range $name, $value := $values -}}
{{- if include "millrace.isGiven" (dict "root" $ "name" $name) -}}
{{- fail (printf "%s is in settings, or in secretSettings: set %s, which other parts of the chart use as well." $name $value) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.mqttProxyProtocol (not .Values.trustedProxies) -}}
{{- fail "mqttProxyProtocol needs trustedProxies: the addresses of the balancers that send PROXY headers." -}}
{{- end -}}
{{- end -}}
