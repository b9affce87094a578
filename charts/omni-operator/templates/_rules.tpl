{{/*
RBAC rules of the operator. It reads (get) an object only if its name was taken when it was created,
and a RayCluster before it replaces rollout pods.
*/}}
{{- define "omni.rules.jobs" -}}
- apiGroups: [diffusionrl.io]
  resources: [diffusionrljobs]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [diffusionrl.io]
  resources: [diffusionrljobs/status]
  verbs: [patch]
- apiGroups: [diffusionrl.io]
  resources: [diffusionrljobs/finalizers] # to set blockOwnerDeletion on children
  verbs: [update]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch, patch] # patch: number and template of the rollout pods
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list] # why Kueue has not admitted a job
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create] # of head and trainer pods; they go with their RayCluster
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/*
In the operator's own namespace: the leader's Lease, the canary Lease of the liveness check, events of a new leader.
A rule with names cannot grant create, nor the list and the watch of both Leases together.
*/}}
{{- define "omni.rules.own" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, watch, create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "omni.fullname" . | quote }}, omni-operator-canary]
  verbs: [get, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* Authentication of reports. */}}
{{- define "omni.rules.reports" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end -}}
