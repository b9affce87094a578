{{- define "omni.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "omni.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "omni.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "omni.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "omni.selector" -}}
app.kubernetes.io/name: {{ include "omni.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of the pod of `helm test`: other ones, because the Service selects the operator's. */}}
{{- define "omni.testSelector" -}}
app.kubernetes.io/name: {{ include "omni.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* managed-by stays Helm's: objects of jobs have another value of that label. */}}
{{- define "omni.labels" -}}
{{ include "omni.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of an object by which Prometheus or Grafana finds it: those of its own value replace the others. */}}
{{- define "omni.labelsWith" -}}
{{- toYaml (merge (dict) (default dict .labels) (include "omni.labels" .root | fromYaml)) -}}
{{- end -}}

{{- define "omni.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "omni.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "omni.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Watched namespaces, separated by commas; empty: all. */}}
{{- define "omni.namespaces" -}}
{{- join "," .Values.watch.namespaces -}}
{{- end -}}

{{- define "omni.subject" -}}
- kind: ServiceAccount
  name: {{ include "omni.account" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}
