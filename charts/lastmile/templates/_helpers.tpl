{{/* The prefix of all names: the release's name, and the chart's unless the release's contains it. */}}
{{- define "lastmile.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $both .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "lastmile.operator" -}}
{{ include "lastmile.fullname" . }}-operator
{{- end }}

{{- define "lastmile.selectorLabels" -}}
app.kubernetes.io/name: lastmile-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of all objects; pods have the selectorLabels too. */}}
{{- define "lastmile.commonLabels" -}}
app.kubernetes.io/part-of: lastmile
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lastmile.labels" -}}
{{ include "lastmile.selectorLabels" . }}
{{ include "lastmile.commonLabels" . }}
{{- end }}

{{- define "lastmile.serviceAccount" -}}
{{- $own := ternary (include "lastmile.operator" .) "default" .Values.serviceAccount.create -}}
{{- default $own .Values.serviceAccount.name -}}
{{- end }}

{{/* An image reference, from (list CONTEXT .Values.image.X). */}}
{{- define "lastmile.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $path := $image.repository -}}
{{- with $root.Values.image.registry }}{{ $path = printf "%s/%s" (trimSuffix "/" .) $path }}{{ end -}}
{{- if $image.digest -}}
{{ $path }}@{{ $image.digest }}
{{- else -}}
{{ $path }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{/* The operator's settings: the given ones, completed by those that the chart can derive. */}}
{{- define "lastmile.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if not $settings.runtimeImage -}}
{{- $_ := set $settings "runtimeImage" (include "lastmile.image" (list . .Values.image.runtime)) -}}
{{- end -}}
{{- $network := default dict $settings.network -}}
{{- if not (hasKey $network "operatorNamespace") -}}
{{- $_ := set $network "operatorNamespace" .Release.Namespace -}}
{{- end -}}
{{- if not (hasKey $network "operatorLabels") -}}
{{- $_ := set $network "operatorLabels" (include "lastmile.selectorLabels" . | fromYaml) -}}
{{- end -}}
{{- $_ := set $settings "network" $network -}}
{{- /* The operator's own default need not be set. */ -}}
{{- $lease := include "lastmile.leaseName" . -}}
{{- if ne $lease "lastmile-operator" -}}
{{- $_ := set $settings "lease" (set (default dict $settings.lease) "name" $lease) -}}
{{- end -}}
{{ toYaml $settings }}
{{- end }}

{{/* Each release has a Lease of its own, or two in one namespace would wait for each other. The key of the seals is named after it. */}}
{{- define "lastmile.leaseName" -}}
{{- dig "lease" "name" (include "lastmile.operator" .) .Values.settings -}}
{{- end }}

{{- define "lastmile.elects" -}}
{{- if ne (toString .Values.settings.leaderElection) "false" }}true{{ end -}}
{{- end }}

{{- define "lastmile.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Scheduling and security context of a pod with the operator's image. */}}
{{- define "lastmile.placement" -}}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
