#!/bin/sh
# Makes secrets/ once, as root: a password of PostgreSQL and the key that seals secrets beside the log.
set -eu
cd "$(dirname "$0")"
if [ -e secrets ]; then
  echo "secrets/ is there already; nothing was changed" >&2
  exit 1
fi
umask 077
mkdir secrets
hex() { od -An -v -tx1 -N "$1" /dev/urandom | tr -d ' \n'; }
password=$(hex 24)
printf '%s' "$password" >secrets/postgres-password
printf '172.30.53.5:5432:kudurru:kudurru:%s\n' "$password" >secrets/pgpass
hex 32 >secrets/node-key
# Compose mounts each file as it is. PostgreSQL's image reads as a user of its own, so its file is open to
# all within the folder, which is not; the nodes run as 10053.
chmod 0444 secrets/postgres-password
chown 10053:10053 secrets/pgpass secrets/node-key
