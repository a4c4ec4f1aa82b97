{{/* The operator's rights in namespaces with experiments: the rules of deploy/operator/operator.yaml. */}}
{{- define "lastmile.rules" -}}
- apiGroups: [experiments.lastmile.dev]
  resources: [datasetexperiments]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [experiments.lastmile.dev]
  resources: [datasetexperiments/status]
  verbs: [update]
- apiGroups: [experiments.lastmile.dev]
  resources: [datasetexperiments/finalizers]
  verbs: [update] # to set owner references, where the API server checks it
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts] # of experiments' pods, without rights
  verbs: [get, create]
- apiGroups: [""]
  resources: [secrets] # no list and no watch: it reads only tokens that it made
  verbs: [get, create]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete] # short-lived pods that write the history
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}

{{/*
An egress rule to name servers: a predefined one by its name, or the given rule. The operator has the
same for experiments (dataset_operator/builders/name_servers.py).
*/}}
{{- define "lastmile.nameServer" -}}
{{- if not (kindIs "string" .) -}}
- {{ toYaml . | nindent 2 | trim }}
{{- else if eq . "KubeDns" -}}
- ports:
  - {port: 53, protocol: UDP}
  - {port: 53, protocol: TCP}
  to:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
    podSelector: {matchLabels: {k8s-app: kube-dns}}
{{- else if eq . "NodeLocalDns" -}}
- ports:
  - {port: 53, protocol: UDP}
  - {port: 53, protocol: TCP}
  to:
  - ipBlock: {cidr: 169.254.20.10/32}
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
    podSelector: {matchLabels: {k8s-app: node-local-dns}}
{{- else if eq . "OpenShift" -}}
- ports:
  - {port: 5353, protocol: UDP}
  - {port: 5353, protocol: TCP}
  to:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: openshift-dns}}
    podSelector: {matchLabels: {dns.operator.openshift.io/daemonset-dns: default}}
{{- else -}}
{{ fail (printf "networkPolicy.egress.nameServers: must be KubeDns, NodeLocalDns, OpenShift or a rule of a NetworkPolicy, got %q" .) }}
{{- end }}
{{- end }}

{{/* The key of the operator's seals, in its own namespace; `create` cannot be bound to a name. */}}
{{- define "lastmile.sealRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "lastmile.leaseName" . }}-seal]
  verbs: [get]
{{- end }}

{{/* The rights of the Job that removes finalisers after the operator. */}}
{{- define "lastmile.releaseRules" -}}
- apiGroups: [experiments.lastmile.dev]
  resources: [datasetexperiments]
  verbs: [list, patch]
{{- end }}

{{/*
A role and its binding, from a dict with root, name, rules, account, labels, annotations, and namespace
("" for the whole cluster).
*/}}
{{- define "lastmile.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (ne .namespace "") -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  {{- include "lastmile.roleMetadata" . | nindent 2 }}
rules:
{{ .rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  {{- include "lastmile.roleMetadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ .account }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}

{{- define "lastmile.roleMetadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- .labels | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The rights to the Lease by which the replicas elect a leader; `create` cannot be bound to a name. */}}
{{- define "lastmile.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "lastmile.leaseName" . }}]
  verbs: [get, update]
{{- end }}
