{{/*
The sidecar, for a chart of your own. Each template takes .Values.onceward: image and config, and as needed digest, secrets,
files, resources, graceSeconds, ready, securityContext. The result equals deploy/kubernetes/component.

  terminationGracePeriodSeconds: {{ include "onceward.podGraceSeconds" .Values.onceward }}
  initContainers: {{- include "onceward.container" .Values.onceward | nindent 6 }}
  volumes: {{- include "onceward.volumes" (dict "onceward" .Values.onceward "name" .Release.Name) | nindent 6 }}
and in the application's container
  lifecycle: {{- include "onceward.applicationLifecycle" .Values.onceward | nindent 10 }}
*/}}

{{/* Of the sidecar and the migration. Where the platform assigns users, a securityContext without runAsUser and runAsGroup. */}}
{{- define "onceward.security" -}}
{{- if .securityContext }}
  {{- toYaml .securityContext }}
{{- else -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}

{{/* Bytes of a size in the configuration. Of name and size. */}}
{{- define "onceward.bytes" -}}
{{- $size := toString .size }}
{{- if not (regexMatch "^[0-9]+(B|KiB|MiB|GiB)$" $size) }}
  {{- fail (printf "onceward.resources is needed: %s, %s, is not a number with B, KiB, MiB or GiB" .name $size) }}
{{- end }}
{{- $factor := get (dict "B" 1 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824) (regexFind "[A-Za-z]+$" $size) }}
{{- mul (regexFind "^[0-9]+" $size) $factor }}
{{- end }}

{{/* Memory limit in MiB: 4/3 of the sum of max_bytes, twice the largest max_message, the batches in flight and the rows of the outbox, as
     `onceward check` computes it; at least the component's. */}}
{{- define "onceward.memoryMiB" -}}
{{- $config := .config | default dict }}
{{- $defaults := $config.defaults | default dict }}
{{- $sum := 0 }}
{{- $largest := 0 }}
{{- $beside := 0 }}
{{- if hasKey $config "outbox" }}
  {{- $outbox := $config.outbox | default dict }}
  {{- if hasKey $outbox "max_message_file" }}
    {{- fail "onceward.resources is needed: config has outbox.max_message_file" }}
  {{- end }}
  {{- $row := include "onceward.bytes" (dict "name" "outbox.max_message" "size" ($outbox.max_message | default "16MiB")) | int64 }}
  {{- $beside = add 5242880 (mul 2 $row) }}
{{- end }}
{{- range $name, $own := $config.queues }}
  {{- $own = $own | default dict }}
  {{- range tuple "max_bytes_file" "max_message_file" }}
    {{- if or (hasKey $own .) (hasKey $defaults .) }}
      {{- fail (printf "onceward.resources is needed: config has %s for queue %s" . $name) }}
    {{- end }}
  {{- end }}
  {{- $size := $own.max_bytes | default $defaults.max_bytes | default "64MiB" }}
  {{- $bytes := include "onceward.bytes" (dict "name" "max_bytes" "size" $size) | int64 }}
  {{- $message := min $bytes 16777216 }}
  {{- with $own.max_message | default $defaults.max_message }}
    {{- $message = include "onceward.bytes" (dict "name" "max_message" "size" .) | int64 }}
  {{- end }}
  {{- $forward := $own.forward | default dict }}
  {{- $shared := $defaults.forward | default dict }}
  {{- $batch := $forward.batch | default $shared.batch | default dict }}
  {{- if $batch.max_messages }}
    {{- $size := include "onceward.bytes" (dict "name" "forward.batch.max_bytes" "size" ($batch.max_bytes | default "256KiB")) | int64 }}
    {{- $concurrency := $forward.concurrency | default $shared.concurrency | default 16 | int64 }}
    {{- $copies := div (mul 4 $bytes) 3 }}
    {{- if or (hasKey $own "order") (hasKey $defaults "order") }}
      {{- $copies = mul 2 $copies }}
    {{- end }}
    {{- $beside = add $beside (min $copies (mul $concurrency (max $size (div (mul 4 $message) 3)))) }}
    {{- $result := $own.store_response | default $defaults.store_response | default "none" }}
    {{- if and (ne $result "none") (ne ($own.completion | default $defaults.completion | default "response") "transaction") }}
      {{- $result = include "onceward.bytes" (dict "name" "store_response" "size" $result) | int64 }}
      {{- $answer := add 65536 (mul $batch.max_messages (add 1024 64 $result)) }}
      {{- with $forward.max_response | default $shared.max_response }}
        {{- $answer = include "onceward.bytes" (dict "name" "forward.max_response" "size" .) | int64 }}
      {{- end }}
      {{- $beside = add $beside (mul $concurrency $answer) }}
    {{- end }}
  {{- end }}
  {{- $sum = add $sum $bytes }}
  {{- $largest = max $largest $message }}
{{- end }}
{{- max 128 (div (add (mul 4 (add $sum (mul 2 $largest) $beside)) 3145727) 3145728) }}
{{- end }}

{{- define "onceward.resources" -}}
{{- if .resources }}
  {{- toYaml .resources }}
{{- else }}
  {{- dict "requests" (dict "cpu" "10m" "memory" "16Mi") "limits" (dict "memory" (printf "%sMi" (include "onceward.memoryMiB" .))) | toYaml }}
{{- end }}
{{- end }}

{{/* An image, with its digest where one is given. */}}
{{- define "onceward.image" -}}
{{ required "onceward.image is needed" .image }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}

{{/* A list of one: the native sidecar. */}}
{{- define "onceward.container" -}}
- name: onceward
  image: {{ include "onceward.image" . | quote }}
  restartPolicy: Always
  args: [run, --config, /etc/onceward/onceward.json]
  env:
  - {name: ONCEWARD_CONFIG, value: /etc/onceward/onceward.json}
  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  - {name: DATABASE_USER, valueFrom: {secretKeyRef: {name: {{ dig "secrets" "postgresql" "onceward-postgresql" . }}, key: username}}}
  startupProbe: {exec: {command: [/usr/bin/onceward, health, --started]}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 30}
  livenessProbe: {exec: {command: [/usr/bin/onceward, health, --live]}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6,
    terminationGracePeriodSeconds: 5}
  {{- if eq (default "" .ready) "consuming" }}
  readinessProbe: {exec: {command: [/usr/bin/onceward, health, --consuming]}, periodSeconds: 2, timeoutSeconds: 5}
  {{- end }}
  {{- $page := dig "metrics" "listen" "" (.config | default dict) }}
  {{- if and (regexMatch ":[0-9]+$" $page) (not (regexMatch "^(127\\.|\\[::1\\])" $page)) }}
  ports: [{name: onceward, containerPort: {{ regexFind "[0-9]+$" $page }}}]
  {{- end }}
  lifecycle: {preStop: {exec: {command: [/usr/bin/onceward, drain]}}}
  resources: {{- include "onceward.resources" . | nindent 4 }}
  securityContext: {{- include "onceward.security" . | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
  - {name: onceward-run, mountPath: /run/onceward}
  - {name: onceward, mountPath: /etc/onceward, readOnly: true}
{{- end }}

{{- define "onceward.volumes" -}}
- name: onceward-run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: onceward
  projected:
    defaultMode: 0644
    sources:
    - configMap: {name: {{ .name }}-onceward}
    - secret: {name: {{ dig "secrets" "rabbitmq" "onceward-rabbitmq" .onceward }}, items: [{key: username, path: rabbitmq/username}, {key: password, path: rabbitmq/password}]}
    - secret: {name: {{ dig "secrets" "postgresql" "onceward-postgresql" .onceward }}, items: [{key: password, path: postgresql/password}]}
    {{- with .onceward.files }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* shutdown_grace of the configuration, in whole seconds; graceSeconds, where the chart cannot read it there. */}}
{{- define "onceward.graceSeconds" -}}
{{- $config := .config | default dict }}
{{- $said := $config.shutdown_grace | default "" | toString }}
{{- $unit := dict "ms" 0 "s" 1 "m" 60 "h" 3600 }}
{{- $grace := 25 }}
{{- if regexMatch "^[0-9]+(ms|s|m|h)$" $said }}
  {{- $number := regexFind "^[0-9]+" $said | int }}
  {{- $factor := get $unit (regexFind "[a-z]+$" $said) }}
  {{- $grace = ternary (ceil (divf $number 1000) | int) (mul $number $factor | int) (eq $factor 0) }}
  {{- if lt (int (default $grace .graceSeconds)) $grace }}
    {{- fail (printf "onceward.graceSeconds is %v, below config.shutdown_grace, %s: leave it out" .graceSeconds $said) }}
  {{- end }}
{{- else if or $said $config.shutdown_grace_file }}
  {{- $_ := required "onceward.graceSeconds is needed: config.shutdown_grace is not a number with ms, s, m or h" .graceSeconds }}
{{- end }}
{{- default $grace .graceSeconds }}
{{- end }}

{{/* Of the application's container: it waits until the sidecar has drained, and 5 s, since on a busy node the sidecar's hook begins later. */}}
{{- define "onceward.applicationLifecycle" -}}
preStop: {sleep: {seconds: {{ add 5 (include "onceward.graceSeconds" .) }}}}
{{- end }}

{{/* Of the pod: all hooks, the application's end and the sidecar's together. */}}
{{- define "onceward.podGraceSeconds" -}}
{{- add 35 (include "onceward.graceSeconds" .) }}
{{- end }}

{{/* Of the pod template: a change of the configuration rolls out. */}}
{{- define "onceward.annotations" -}}
onceward.dev/config: {{ .config | toJson | sha256sum | trunc 16 }}
{{- end }}

{{- define "onceward.configmap" -}}
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .name }}-onceward}
data:
  onceward.json: {{ required "onceward.config is needed" .onceward.config | toPrettyJson | quote }}
{{- end }}

{{/* The schema, by the URL of its owner: Secret secrets.owner, key uri. */}}
{{- define "onceward.migrate" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}-onceward-migrate
spec:
  backoffLimit: 10 # a new database takes a while
  ttlSecondsAfterFinished: 3600
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: onceward-migrate
        image: {{ include "onceward.image" .onceward | quote }}
        args: [migrate, --database-file, /etc/onceward/uri]
        resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 128Mi}}
        securityContext: {{- include "onceward.security" .onceward | nindent 10 }}
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
        - {name: onceward, mountPath: /etc/onceward, readOnly: true}
      volumes:
      - name: onceward
        projected:
          defaultMode: 0644
          sources:
          - secret: {name: {{ dig "secrets" "owner" "onceward-postgresql-owner" .onceward }}, items: [{key: uri, path: uri}]}
          {{- with .onceward.files }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
{{- end }}
