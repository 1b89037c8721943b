{{/* Of each pod of the chart: where it runs, and as whom. */}}
{{- define "service.scheduling" -}}
{{- range $key := tuple "imagePullSecrets" "nodeSelector" "affinity" "tolerations" "serviceAccountName" "priorityClassName" }}
{{- with get $.Values $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "service.application" -}}
name: app
image: {{ .Values.image }}{{ with .Values.digest }}@{{ . }}{{ end }}
env:
- {name: PORT, value: {{ .Values.port | quote }}}
- {name: DATABASE_URL, valueFrom: {secretKeyRef: {name: {{ .Values.databaseSecret }}, key: uri}}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}
