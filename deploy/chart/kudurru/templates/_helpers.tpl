{{- define "kudurru.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "kudurru.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "kudurru.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kudurru.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kudurru.selector" -}}
app.kubernetes.io/name: {{ include "kudurru.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kudurru.labels" -}}
{{ include "kudurru.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kudurru.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kudurru.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kudurru.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The names that a Service has in the cluster. Takes the root and its name. */}}
{{- define "kudurru.hosts" -}}
{{- $name := index . 1 -}}
{{- $inside := printf "%s.%s" $name (index . 0).Release.Namespace -}}
{{- list $name $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside) | toJson -}}
{{- end -}}

{{/* The Service that external-dns asks. */}}
{{- define "kudurru.webhook" -}}
{{- include "kudurru.fullname" . }}-webhook
{{- end -}}

{{/* Settings of the release under those of `config`, which win. */}}
{{- define "kudurru.config" -}}
{{- $hosts := include "kudurru.hosts" (list . (include "kudurru.fullname" .)) | fromJsonArray -}}
{{- $kubernetes := dict "owner" .Values.kubernetes.owner "enabled" true -}}
{{- with .Values.kubernetes.namespaces }}{{ $_ := set $kubernetes "namespaces" . }}{{ end -}}
{{- $ours := dict "kubernetes" $kubernetes -}}
{{- if .Values.externalDNS.enabled -}}
{{- $hosts = concat $hosts (include "kudurru.hosts" (list . (include "kudurru.webhook" .)) | fromJsonArray) -}}
{{- $_ := set $ours "externalDNS" (dict "listen" (printf "0.0.0.0:%d" (int .Values.externalDNS.port)) "clients" .Values.externalDNS.clients) -}}
{{- end -}}
{{- $_ := set $ours "api" (dict "names" $hosts) -}}
{{- if .Values.tls.secretName -}}
{{- $listeners := list -}}
{{- range .Values.listen -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" -}}
{{- $listeners = concat $listeners (list (dict "proto" "udp" "address" .) (dict "proto" "tcp" "address" .) (dict "proto" "tls" "address" (printf "%s:853" $host)) (dict "proto" "quic" "address" (printf "%s:853" $host)) (dict "proto" "https" "address" (printf "%s:443" $host))) -}}
{{- end -}}
{{- $_ := set $ours "listeners" $listeners -}}
{{- $_ := set $ours "tls" (dict "cert" "file:/etc/kudurru-tls/tls.crt" "key" "file:/etc/kudurru-tls/tls.key") -}}
{{- end -}}
{{- toYaml (mergeOverwrite $ours (deepCopy .Values.config)) -}}
{{- end -}}

{{/* The port of the pod that DNS is asked at. */}}
{{- define "kudurru.port" -}}
{{- regexFind "[0-9]+$" (first .Values.listen) -}}
{{- end -}}
