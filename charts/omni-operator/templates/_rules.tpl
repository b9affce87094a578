{{/*
What the operator does, as RBAC rules. An apply that makes an object asks for `create` as well as `patch`.
*/}}
{{- define "omni.rules.jobs" -}}
- apiGroups: [diffusionrl.io]
  resources: [diffusionrljobs]
  verbs: [list, watch, patch, delete] # patch: its finalizer; delete: ttlSecondsAfterFinished
- apiGroups: [diffusionrl.io]
  resources: [diffusionrljobs/status]
  verbs: [patch]
- apiGroups: [diffusionrl.io]
  resources: [diffusionrljobs/finalizers] # children that hold up their owner's deletion
  verbs: [update]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, patch]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [list, watch, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, watch]
{{- end -}}

{{/* Its own Lease, whose write must come back by its own watch. */}}
{{- define "omni.rules.own" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, patch]
{{- end -}}

{{/* Whether a token that comes with a report is good. */}}
{{- define "omni.rules.reports" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end -}}
