{{- define "beeline.selector" -}}
app.kubernetes.io/name: beeline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "beeline.labels" -}}
{{ include "beeline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "beeline.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "beeline.metricsPort" -}}
{{ .Values.metrics.port | default (ternary 10349 10249 .Values.besideKubeProxy) | int }}
{{- end }}

{{- define "beeline.healthPort" -}}
{{ .Values.health.port | default (ternary 10356 10256 .Values.besideKubeProxy) | int }}
{{- end }}

{{- define "beeline.metricsAddress" -}}
{{- $here := ternary "$(BEELINE_HOST_IP)" "127.0.0.1" .Values.serviceMonitor.enabled -}}
{{ .Values.metrics.address | default $here }}:{{ include "beeline.metricsPort" . }}
{{- end }}

{{/* The agent's command line, one argument per line. */}}
{{- define "beeline.args" -}}
{{- $values := .Values -}}
- agent
{{- if $values.config }}
- --config=/etc/beeline/config.yaml
{{- end }}
{{- if not $values.config.clusters }}
{{- range $values.apiServers }}
- --api-server={{ . }}
{{- end }}
{{- else }}
- --state-dir={{ $values.stateDir }}
{{- end }}
- --node-source={{ $values.nodeSource }}
- --controller={{ ternary "watch" "none" $values.controller.enabled }}
- --controller-namespace={{ .Release.Namespace }}
{{- if $values.controller.enabled }}
- {{ printf "--report-namespace=%s" $values.reportNamespace | quote }}
{{- else }}
- --report-interval=off
{{- end }}
{{- if $values.besideKubeProxy }}
- --beside-kube-proxy
{{- else if $values.packetPath }}
- --packet-path=on
{{- end }}
{{- if $values.clearStartupTaint }}
- --clear-startup-taint
{{- end }}
{{- with $values.cgroup }}
- --cgroup={{ . }}
{{- end }}
- --pin-dir={{ $values.pinDir }}
- --events={{ $values.events }}
- --max-services={{ $values.sizes.maxServices | int }}
{{- with $values.sizes.maxFrontends }}
- --max-frontends={{ . | int }}
{{- end }}
{{- with $values.sizes.maxBackends }}
- --max-backends={{ . | int }}
{{- end }}
{{- with $values.sizes.maxSlots }}
- --max-slots={{ . | int }}
{{- end }}
{{- with $values.sizes.maxAffinity }}
- --max-affinity={{ . | int }}
{{- end }}
{{- with $values.sizes.maxRecordMemory }}
- --max-record-memory={{ . | int }}
{{- end }}
- --healthz-bind-address={{ $values.health.address }}:{{ include "beeline.healthPort" . }}
- --metrics-bind-address={{ include "beeline.metricsAddress" . }}
{{- range $name, $value := $values.options }}
{{- if kindIs "slice" $value }}
- {{ printf "--%s=%s" $name (join "," $value) | quote }}
{{- else if eq (toString $value) "true" }}
- --{{ $name }}
{{- else }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- range $values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Fields that both webhooks share. */}}
{{- define "beeline.webhook" -}}
rules:
  - apiGroups: [beeline.dev]
    apiVersions: [v1alpha1]
    operations: [CREATE, UPDATE]
    resources: [localredirectpolicies, balancingpolicies]
    scope: Namespaced
clientConfig:
  service: {name: {{ .Release.Name }}-controller, namespace: {{ .Release.Namespace }}}
admissionReviewVersions: [v1]
sideEffects: None
timeoutSeconds: 5
{{- end }}
