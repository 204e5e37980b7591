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

{{/* Whether nodes serve the log of another node, and not what the cluster has. */}}
{{- define "kudurru.copies" -}}
{{- if or .Values.follow.url .Values.follow.promoted }}yes{{ end -}}
{{- end -}}

{{/* Whether nodes ask other ones, with the token. */}}
{{- define "kudurru.asks" -}}
{{- if or (include "kudurru.copies" .) .Values.follow.peers }}yes{{ end -}}
{{- end -}}

{{/* Of follow.*: a node that was promoted keeps all but its leader. */}}
{{- define "kudurru.follow" -}}
{{- with .Values.follow -}}
{{- $found := dict "token" "file:/etc/kudurru-follow/token" "peers" .peers "forwardWrites" .forwardWrites -}}
{{- if .caSecret }}{{ $_ := set $found "ca" "file:/etc/kudurru-follow-ca/ca.crt" }}{{ end -}}
{{- if and .url (not .promoted) }}{{ $_ := set $found "url" .url }}{{ end -}}
{{- toJson $found -}}
{{- end -}}
{{- end -}}

{{/* Names of the release in the cluster, and of each node: followers ask one node. */}}
{{- define "kudurru.apiNames" -}}
{{- $full := include "kudurru.fullname" . -}}
{{- $hosts := include "kudurru.hosts" (list . $full) | fromJsonArray -}}
{{- range $number := until (int .Values.replicas) -}}
{{- $node := printf "%s-%d.%s-nodes" $full $number $full -}}
{{- $hosts = concat $hosts (include "kudurru.hosts" (list $ $node) | fromJsonArray) -}}
{{- end -}}
{{- toJson $hosts -}}
{{- end -}}

{{/* Settings of the release under those of `config`, which win. */}}
{{- define "kudurru.config" -}}
{{- $hosts := include "kudurru.apiNames" . | fromJsonArray -}}
{{- $kubernetes := dict "owner" .Values.kubernetes.owner "enabled" true -}}
{{- with .Values.kubernetes.namespaces }}{{ $_ := set $kubernetes "namespaces" . }}{{ end -}}
{{- $ours := dict "kubernetes" $kubernetes -}}
{{- if include "kudurru.copies" . -}}
{{- $ours = dict "kubernetes" (dict "enabled" false) -}}
{{- end -}}
{{- if include "kudurru.asks" . }}{{ $_ := set $ours "follow" (include "kudurru.follow" . | fromJson) }}{{ end -}}
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
{{- toYaml (mergeOverwrite $ours (deepCopy (default dict .Values.config))) -}}
{{- end -}}

{{/* The port of the pod that DNS is asked at. */}}
{{- define "kudurru.port" -}}
{{- regexFind "[0-9]+$" (first .Values.listen) -}}
{{- end -}}
