{{/*
Values without which nothing can be made. Where a release names one and says nothing, Helm takes its default
away before the schema is asked. Asked first in each template, as their order is Helm's.
*/}}
{{- define "kudurru.given" -}}
{{- $wanted := list "replicas" "lameduck" "terminationGracePeriodSeconds" "listen" "image" "kubernetes" "kubernetes.owner" "store" "store.key" "follow" "follow.tokenKey" "tls" "service" "service.dns" "service.dns.port" "service.http" "service.http.port" "externalDNS" "externalDNS.port" "persistence" "persistence.size" "persistence.accessModes" "serviceAccount" "rbac" "podDisruptionBudget" "networkPolicy" "serviceMonitor" "prometheusRule" -}}
{{- $faults := list -}}
{{- $absent := list -}}
{{- range $path := $wanted -}}
{{- $parts := splitList "." $path -}}
{{- $here := $.Values -}}
{{- range $parts -}}
{{- if kindIs "map" $here }}{{ $here = index $here . }}{{ end -}}
{{- end -}}
{{- if kindIs "invalid" $here -}}
{{- $absent = append $absent $path -}}
{{- if not (has (join "." (initial $parts)) $absent) -}}
{{- $faults = append $faults (printf "%s: nothing is given, which takes its default away: give a value, or leave the name out too" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n%s" (join "\n" $faults)) -}}
{{- end -}}
{{- end -}}

{{/*
Values that are right by themselves and wrong together, which the schema cannot tell. All of them at once.
*/}}
{{- define "kudurru.checks" -}}
{{- $faults := list -}}
{{- range list "owner" "follow" "overrides" "namespaces" "account" "times" "listen" "http" "webhook" "passwords" -}}
{{- $faults = concat $faults (include (printf "kudurru.checks.%s" .) $ | trim | splitList "\n" | compact) -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n%s" (join "\n" $faults)) -}}
{{- end -}}
{{- end -}}

{{- define "kudurru.checks.owner" -}}
{{- if include "kudurru.copies" . }}
{{- else if eq .Values.kubernetes.owner "log" }}
{{- if and (gt (int .Values.replicas) 1) (not .Values.store.existingSecret) }}
kubernetes.owner: with log, {{ .Values.replicas }} nodes need one log: name a database in store.existingSecret, or have replicas: 1
{{- end }}
{{- if not .Values.persistence.enabled }}
persistence.enabled: kubernetes.owner is log, and {{ ternary "the keys that sign it and seal its secrets are" "the log is" (ne .Values.store.existingSecret "") }} nowhere else: switch it on
{{- end }}
{{- end }}
{{- end -}}

{{/* Followers have their objects, and the changes to them, from their leader alone. */}}
{{- define "kudurru.checks.follow" -}}
{{- $urls := append (compact .Values.follow.peers) .Values.follow.url | compact }}
{{- range $urls }}
{{- if not (regexMatch "^https?://[^/?#@\\s]+/?$" .) }}
{{ ternary "follow.url" "follow.peers" (eq . $.Values.follow.url) }}: an API is named as https://HOST:PORT, without user, path and query
{{- end }}
{{- end }}
{{- if and (include "kudurru.asks" .) (not .Values.follow.existingSecret) }}
follow.existingSecret: other nodes are asked with a token of role follower: name the Secret that has it
{{- else if and (not (include "kudurru.asks" .)) (or .Values.follow.existingSecret .Values.follow.caSecret) }}
follow.url: name the leader, or the peers: what else follow says has no effect
{{- end }}
{{- if include "kudurru.copies" . }}
{{- $theirs := dict "zones" .Values.zones "blocklists" .Values.blocklists "kubernetes.namespaces" .Values.kubernetes.namespaces "externalDNS.enabled" .Values.externalDNS.enabled "kubernetes.owner: log" (eq .Values.kubernetes.owner "log") -}}
{{- range $place, $value := $theirs }}
{{- if $value }}
{{ $place }}: followers have objects and changes from their leader: give it to the leader's release
{{- end }}
{{- end }}
{{- if .Values.store.existingSecret }}
store.existingSecret: each follower keeps a copy of its own: leave it out
{{- end }}
{{- if and .Values.follow.promoted (gt (int .Values.replicas) 1) }}
follow.promoted: one node leads, and {{ .Values.replicas }} would go on apart: make replicas 1, and have a release of others follow it
{{- end }}
{{- if and .Values.follow.promoted (not .Values.persistence.enabled) }}
persistence.enabled: the log of a node that was promoted is nowhere else: switch it on
{{- end }}
{{- end }}
{{- end -}}

{{/* What the rights, volumes and ports of the release go by is said once. */}}
{{- define "kudurru.checks.overrides" -}}
{{- $mine := dict "store" "store.existingSecret" "kubernetes.owner" "kubernetes.owner" "kubernetes.namespaces" "kubernetes.namespaces" "follow.url" "follow.url" "follow.token" "follow.existingSecret" "follow.ca" "follow.caSecret" "follow.peers" "follow.peers" "follow.forwardWrites" "follow.forwardWrites" -}}
{{- range $key, $value := $mine }}
{{- if include "kudurru.setting" (list $.Values.config $key) }}
config.{{ $key }}: it would override a value of the chart: set {{ $value }} instead
{{- end }}
{{- end }}
{{- $variables := list "KUDURRU_DATA" "KUDURRU_HEADLESS_SERVICE" "KUDURRU__NODE__NAME" "POD_NAME" "POD_NAMESPACE" -}}
{{- range .Values.env }}
{{- $name := default "" .name -}}
{{- if has $name $variables }}
env: the chart sets {{ $name }}: leave it out
{{- end }}
{{- range $key, $value := $mine }}
{{- if eq $name (printf "KUDURRU__%s" (replace "." "__" (upper $key))) }}
env: {{ $name }} would override a value of the chart: set {{ $value }} instead
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.extraArgs }}
{{- if regexMatch "^--(store|kubernetes|follow|token|ca)(=|$)" . }}
extraArgs: {{ . }} would override a value of the chart: set store.existingSecret, kubernetes.owner or follow instead
{{- end }}
{{- end }}
{{- end -}}

{{- define "kudurru.checks.namespaces" -}}
{{- if and .Values.kubernetes.namespaces .Values.blocklists (not (has .Release.Namespace .Values.kubernetes.namespaces)) }}
blocklists: they would be in namespace {{ .Release.Namespace }}, which is not watched: add it to kubernetes.namespaces
{{- end }}
{{- end -}}

{{- define "kudurru.checks.account" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
serviceAccount.name: serviceAccount.create is false: name the account that is there, or "default"
{{- end }}
{{- end -}}

{{/* A pod ends by preStop, then by the server's own lameduck, and is killed when its time is over. */}}
{{- define "kudurru.checks.times" -}}
{{- $own := include "kudurru.setting" (list .Values.config "health.lameduck") | default "5s" -}}
{{- $needed := addf (include "kudurru.seconds" .Values.lameduck) (include "kudurru.seconds" $own) 10 | ceil -}}
{{- if lt (float64 .Values.terminationGracePeriodSeconds) $needed }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }} is too short for lameduck ({{ .Values.lameduck }}), config.health.lameduck ({{ $own }}) and ten seconds to end: make it {{ $needed }} or more
{{- end }}
{{- end -}}

{{- define "kudurru.checks.listen" -}}
{{- $taken := include "kudurru.taken" . | fromJson -}}
{{- if .Values.externalDNS.enabled -}}
{{- $_ := set $taken (toString .Values.externalDNS.port) "external-dns" -}}
{{- end -}}
{{- $hosts := list -}}
{{- range .Values.listen }}
{{- $port := regexFind "[0-9]+$" . -}}
{{- $host := trimSuffix (printf ":%s" $port) . -}}
{{- if or (lt (int $port) 1) (gt (int $port) 65535) }}
listen: {{ . }}: a port is from 1 to 65535
{{- else if hasKey $taken $port }}
listen: {{ . }}: port {{ $port }} is for {{ get $taken $port }}: take another
{{- end }}
{{- if not (include "kudurru.isAddress" $host) }}
listen: {{ . }}: {{ $host }} is no address: "0.0.0.0" and "[::]" are all of the pod's
{{- else if regexMatch "^(127\\.|\\[::1\\]$)" $host }}
listen: {{ . }}: nobody outside of the pod would reach it: "0.0.0.0" and "[::]" are all of the pod's
{{- else if and (has $host $hosts) $.Values.tls.secretName }}
listen: {{ . }}: {{ $host }} is there twice, and an encrypted listener of it once only: name it once
{{- end }}
{{- $hosts = append $hosts $host -}}
{{- end }}
{{- end -}}

{{- define "kudurru.checks.http" -}}
{{- with .Values.service.http }}
{{- $isLimited := and $.Values.networkPolicy.enabled $.Values.networkPolicy.httpFrom -}}
{{- $isSecure := and $.Values.tls.secretName (eq (include "kudurru.setting" (list $.Values.config "api.tls")) "true") -}}
{{- if and .enabled (eq .type "LoadBalancer") (not $isLimited) (not $isSecure) }}
service.http.type: with LoadBalancer, tokens would be sent unencrypted, from anywhere: name who may ask in networkPolicy.httpFrom, or have HTTPS by tls.secretName and config.api.tls: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "kudurru.checks.webhook" -}}
{{- with .Values.externalDNS }}
{{- if .enabled }}
{{- if not (and $.Values.networkPolicy.enabled .from) }}
externalDNS.from: whoever reaches the listener may change records: name external-dns' pods, and leave networkPolicy.enabled on
{{- end }}
{{- if not .clients }}
externalDNS.clients: name the networks of external-dns' pods: others are not answered
{{- end }}
{{- range list "listen" "clients" }}
{{- if include "kudurru.setting" (list $.Values.config (printf "externalDNS.%s" .)) }}
config.externalDNS.{{ . }}: it would override a value of the chart: set externalDNS.{{ ternary "port" "clients" (eq . "listen") }} instead
{{- end }}
{{- end }}
{{- $namespace := include "kudurru.setting" (list $.Values.config "externalDNS.namespace") | default "default" }}
{{- if and $.Values.kubernetes.namespaces (not (has $namespace $.Values.kubernetes.namespaces)) }}
config.externalDNS.namespace: record sets would be in namespace {{ $namespace }}, which is not watched: add it to kubernetes.namespaces, or name another
{{- end }}
{{- if hasKey (include "kudurru.taken" $ | fromJson) (toString .port) }}
externalDNS.port: {{ .port }} is for {{ get (include "kudurru.taken" $ | fromJson) (toString .port) }}: take another
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Ports over TCP that are not for DNS, and what they are for. */}}
{{- define "kudurru.taken" -}}
{{- $taken := dict "8080" "the API" "8081" "health checks" "9153" "metrics" -}}
{{- if .Values.tls.secretName -}}
{{- $taken = merge $taken (dict "853" "DNS over TLS" "443" "DNS over HTTPS") -}}
{{- end -}}
{{- toJson $taken -}}
{{- end -}}

{{- define "kudurru.checks.passwords" -}}
{{- include "kudurru.checks.password" (list "config" .Values.config) -}}
{{- end -}}

{{- define "kudurru.checks.password" -}}
{{- $place := index . 0 -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- range $key, $inner := $value -}}
{{- include "kudurru.checks.password" (list (printf "%s.%s" $place $key) $inner) -}}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- range $value -}}
{{- include "kudurru.checks.password" (list $place .) -}}
{{- end -}}
{{- else if kindIs "string" $value -}}
{{- $isNamed := and (regexMatch "(?i)(password|passphrase|secret|token)$" $place) (not (hasPrefix "file:" $value)) -}}
{{- if or $isNamed (regexMatch "://[^/?#@]*:[^/?#@]*@|(?i)[?&]pass(word)?=|PRIVATE KEY-----" $value) }}
{{ $place }}: a secret would be readable in a ConfigMap: mount a Secret by extraVolumes and name its file, or use store.existingSecret and tls.secretName
{{- end }}
{{- end }}
{{- end -}}

{{/*
What a settings file says of a key, nested or flat, as text; nothing where it does not. Takes the file and
the key.
*/}}
{{- define "kudurru.setting" -}}
{{- $here := index . 0 -}}
{{- $key := index . 1 -}}
{{- range $name, $value := $here -}}
{{- if eq $name $key -}}
{{- if kindIs "string" $value }}{{ $value }}{{ else }}{{ toJson $value }}{{ end -}}
{{- else if and (kindIs "map" $value) (hasPrefix (printf "%s." $name) $key) -}}
{{- include "kudurru.setting" (list $value (trimPrefix (printf "%s." $name) $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kudurru.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1 "m" 60 "h" 3600 "d" 86400 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" . -1 -}}
{{- $sum = addf $sum (mulf (regexFind "^[0-9]+" .) (get $units (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Whether a host of `listen` is an address; IPv6 is in brackets. */}}
{{- define "kudurru.isAddress" -}}
{{- if hasPrefix "[" . -}}
{{- $text := trimAll "[]" . -}}
{{- $groups := splitList ":" $text -}}
{{- $named := without $groups "" -}}
{{- $isWhole := and (eq (len $named) 8) (eq (len $groups) 8) -}}
{{- $isShort := and (eq (len (splitList "::" $text)) 2) (lt (len $named) 8) (not (regexMatch "^:[^:]|[^:]:$|:::" $text)) -}}
{{- if and (or $isWhole $isShort) (not (regexMatch "[0-9a-fA-F]{5}" $text)) }}yes{{ end -}}
{{- else if regexMatch "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\\.|$)){4}$" . -}}
yes
{{- end -}}
{{- end -}}
