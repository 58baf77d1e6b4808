{{- /*
A native sidecar for pods of a chart of yours: an entry of initContainers, and its volumes. Both take the values of this
chart as a dependency ("kennel"). The container that calls mounts kennel-socket at /run/kennel, has
KENNEL_SERVER=unix:/run/kennel/s/kennel.sock and KENNEL_SERVER_USER=<sidecar's user>, and the pod has the sidecar's
fsGroup. See ../../agent.
*/ -}}
{{- define "kennel.sidecar.env" -}}
- name: KENNEL_LISTEN
  value: unix:/run/kennel/s/kennel.sock?mode=0660&group={{ .Values.runAs.group | toJson }}
- name: KENNEL_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: KENNEL_ACCESS
  value: /etc/kennel/config/access.toml
{{- end }}

{{- define "kennel.sidecar" -}}
{{- $own := dict "env" (include "kennel.sidecar.env" .) "ports" "" "mounts" "" "lifecycle" "" -}}
- name: kennel
  image: {{ include "kennel.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  command: ["kennel", "serve"]
  {{- include "kennel.serves" (dict "own" $own "Values" .Values) | nindent 2 }}
  securityContext:
    runAsUser: {{ .Values.runAs.user | toJson }}
    runAsGroup: {{ .Values.runAs.group | toJson }}
    {{- include "kennel.restricted" . | nindent 4 }}
{{- end }}

{{- /* ConfigMap with the sidecar's settings and access file: kennel.toml and access.toml. */ -}}
{{- define "kennel.sidecar.config" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "kennel.name" . }}
data:
  kennel.toml: |
    {{- with .Values.settings }}
    {{- toToml . | trim | nindent 4 }}
    {{- end }}
  access.toml: |
    {{- required "sidecar.access says who may call: the text of the access file" .Values.sidecar.access | trim | nindent 4 }}
{{- end }}
