{{- define "kennel.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kennel.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kennel.labels" -}}
{{ include "kennel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kennel.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kennel.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{- /* Of an init container, which copies or makes a few files. */ -}}
{{- define "kennel.briefly" -}}
requests:
  cpu: 10m
  memory: 32Mi
limits:
  memory: 128Mi
{{- end -}}

{{- define "kennel.pod" -}}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.runAs.user | toJson }}
  runAsGroup: {{ .Values.runAs.group | toJson }}
  fsGroup: {{ .Values.runAs.group | toJson }}
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "kennel.podMetadata" -}}
labels:
  {{- include "kennel.selector" . | nindent 2 }}
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- /* Of the settings alone: a server reads the access file again by itself. */}}
  checksum/settings: {{ toToml .Values.settings | sha256sum }}
  {{- with .Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* Variables, ports, probes and limits of a container that serves. */ -}}
{{- define "kennel.serves" -}}
env:
  - name: KENNEL_CONFIG
    value: /etc/kennel/config/kennel.toml
  - name: KENNEL_DATA_DIR
    value: /var/lib/kennel/data
  - name: KENNEL_HEALTH_LISTEN
    value: 0.0.0.0:8080
  {{- if .Values.metrics.enabled }}
  - name: KENNEL_METRICS_LISTEN
    value: 0.0.0.0:{{ .Values.metrics.port }}
  - name: KENNEL_METRICS_PUBLIC
    value: "true"
  {{- end }}
  {{- with .own.env }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: health
    containerPort: 8080
  {{- if .Values.metrics.enabled }}
  - name: metrics
    containerPort: {{ .Values.metrics.port }}
  {{- end }}
  {{- with .own.ports }}
  {{- . | nindent 2 }}
  {{- end }}
startupProbe:
  httpGet:
    path: /startupz
    port: health
  periodSeconds: 1
  {{- /* After a loss of its host a node waits for the end of its lease. */}}
  failureThreshold: 120
{{- /* No livenessProbe: a restart of this container ends every run, and the keeper restarts its server by itself. */}}
readinessProbe:
  httpGet:
    path: /readyz
    port: health
{{- with .own.lifecycle }}
lifecycle: {{- . | nindent 2 }}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - name: kennel-config
    mountPath: /etc/kennel/config
    readOnly: true
  - name: kennel-socket
    mountPath: /run/kennel
  - name: kennel-data
    mountPath: /var/lib/kennel
  - name: tmp
    mountPath: /tmp
  {{- with .own.mounts }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "kennel.volumes" -}}
- name: kennel-config
  configMap:
    name: {{ include "kennel.name" . }}
- name: kennel-socket
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
- name: kennel-data
  {{- if .Values.data.hostPath }}
  hostPath:
    path: {{ .Values.data.hostPath }}
    type: DirectoryOrCreate
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.data.sizeLimit }}
  {{- end }}
- name: tmp
  emptyDir: {}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
