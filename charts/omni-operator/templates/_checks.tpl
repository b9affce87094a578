{{/* Refuse values that each follow the schema and contradict one another, before anything is created. */}}
{{- define "omni.checks" -}}
{{- $problems := list -}}
{{- $name := include "omni.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- $problems = append $problems (printf "the objects would have the name %s, which no Service can have: set fullnameOverride to lower-case letters, digits and '-', with a letter first" $name) -}}
{{- end -}}
{{- if not (regexMatch "^((\\[[0-9a-f:]+\\]|[A-Za-z0-9.-]+)(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$" .Values.image.repository) -}}
{{- $problems = append $problems (printf "image.repository is %q: write REGISTRY/NAME in lower-case letters; the tag and the digest are values of their own" .Values.image.repository) -}}
{{- end -}}
{{- if eq (int .Values.reports.port) (int .Values.metrics.port) -}}
{{- $problems = append $problems (printf "reports.port and metrics.port are both %d: set another one" (int .Values.reports.port)) -}}
{{- end -}}
{{- $stop := dig "stopSeconds" 10 (default dict .Values.tuning) -}}
{{- if ge (float64 $stop) (float64 .Values.terminationGracePeriodSeconds) -}}
{{- $problems = append $problems (printf "tuning.stopSeconds is %v and terminationGracePeriodSeconds %v: the second one must be larger" $stop .Values.terminationGracePeriodSeconds) -}}
{{- end -}}
{{- $variables := list -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "OMNI_OPERATOR_" .name }}{{ $problems = append $problems (printf "extraEnv: %s is a setting of the operator, and each has a value of its own" .name) }}{{ end -}}
{{- if has .name $variables }}{{ $problems = append $problems (printf "extraEnv: %s is there twice" .name) }}{{ end -}}
{{- if and (hasKey . "value") (hasKey . "valueFrom") }}{{ $problems = append $problems (printf "extraEnv: %s has both value and valueFrom" .name) }}{{ end -}}
{{- $variables = append $variables .name -}}
{{- end -}}
{{- $volumes := list -}}
{{- range .Values.extraVolumes -}}
{{- if has .name $volumes }}{{ $problems = append $problems (printf "extraVolumes: %s is there twice" .name) }}{{ end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $paths := list -}}
{{- range .Values.extraVolumeMounts -}}
{{- if not (has .name $volumes) }}{{ $problems = append $problems (printf "extraVolumeMounts: no volume %s in extraVolumes" .name) }}{{ end -}}
{{- if has .mountPath $paths }}{{ $problems = append $problems (printf "extraVolumeMounts: %s is there twice" .mountPath) }}{{ end -}}
{{- $paths = append $paths .mountPath -}}
{{- end -}}
{{- $labels := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "diffusionrl.io/component" -}}
{{- range $label, $_ := .Values.commonLabels -}}
{{- if has $label $labels }}{{ $problems = append $problems (printf "commonLabels: the chart sets %s itself" $label) }}{{ end -}}
{{- $labels = append $labels $label -}}
{{- end -}}
{{- range $label, $_ := .Values.podLabels -}}
{{- if has $label $labels }}{{ $problems = append $problems (printf "podLabels: the chart or commonLabels sets %s already" $label) }}{{ end -}}
{{- end -}}
{{- with $problems }}{{ fail (join "; " .) }}{{ end -}}
{{- end -}}
