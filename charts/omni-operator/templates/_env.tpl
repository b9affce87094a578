{{- /* Settings as environment variables. Numbers in values are floats, which would be rendered as 8.64e+07. */ -}}
{{- define "omni.env" -}}
{{- $values := dict
  "NAMESPACE" .Release.Namespace
  "LEASE" (include "omni.fullname" .)
  "HTTP_PORT" .Values.metrics.port
  "REPORTS_PORT" .Values.reports.port
  "RAY_VERSION" .Values.jobs.rayVersion
  "LOG_FORMAT" .Values.log.format
  "VERBOSE" .Values.log.verbose
-}}
{{- with include "omni.namespaces" . }}{{ $_ := set $values "NAMESPACES" . }}{{ end -}}
{{- with .Values.jobs.image }}{{ $_ := set $values "IMAGE" . }}{{ end -}}
{{- with .Values.jobs.kuberayNamespace }}{{ $_ := set $values "KUBERAY_NAMESPACE" . }}{{ end -}}
{{- if .Values.reports.enabled -}}
{{- $_ := set $values "REPORT_URL" (printf "http://%s.%s.svc:%v" (include "omni.fullname" .) .Release.Namespace .Values.reports.port) -}}
{{- end -}}
{{- $pairs := list -}}
{{- range $vendor, $resource := .Values.jobs.resourceNames }}{{ $pairs = append $pairs (printf "%s=%s" $vendor $resource) }}{{ end -}}
{{- with $pairs }}{{ $_ := set $values "RESOURCE_NAMES" (join "," .) }}{{ end -}}
{{- with .Values.jobs.podPolicy }}{{ $_ := set $values "POD_POLICY" (toJson .) }}{{ end -}}
{{- range $name, $value := .Values.tuning }}{{ $_ := set $values ($name | snakecase | upper) $value }}{{ end -}}
{{- range $name, $value := $values }}
{{- if kindIs "float64" $value }}{{ if eq (floor $value) $value }}{{ $value = int64 $value }}{{ end }}{{ end }}
- name: OMNI_OPERATOR_{{ $name }}
  value: {{ $value | toString | quote }}
{{- end -}}
{{- end -}}
